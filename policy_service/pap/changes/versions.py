"""Which version of a tool on one side stands against which on the other, since agents may submit under each in force.

Rules kept here: every version in force after is held against one in force before: the same manifest, else the file of
the same name, else the current one; so no version comes into force without its rules being tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from policy_service.pap.bundle import Bundle
from policy_service.pap.changes.findings import Finding, Way
from policy_service.pap.changes.manifests import manifest_changes
from policy_service.pap.tools import ToolVersion


@dataclass(frozen=True, slots=True)
class Versions:
    """Two versions of one tool to hold against each other; None where one side holds none."""

    before: ToolVersion | None
    after: ToolVersion | None
    is_added: bool = False  # beside the versions that were in force

    @property
    def name(self) -> str:
        """The tool as people are told of it: with its label, if it has one."""
        version = self.after or self.before
        assert version is not None  # noqa: S101
        return version.tool if version.label is None else f"{version.tool}@{version.label}"

    @property
    def files(self) -> frozenset[str]:
        """The manifests' files."""
        return frozenset(each.file for each in (self.before, self.after) if each is not None)


def versions_of_both(before: Bundle, after: Bundle) -> list[Versions]:
    """Every version in force after with what it is held against, then those that are gone."""
    pairs: list[Versions] = []
    for version in sorted(after.tools, key=lambda each: (each.tool, each.label or "")):
        old = [each for each in before.tools if each.tool == version.tool]
        same = [each for each in old if each.manifest.digest == version.manifest.digest]
        named = [each for each in old if each.label == version.label]
        current = [each for each in old if each.label is None]
        partner = next(iter([*same, *named, *current]), None)
        pairs.append(Versions(partner, version, bool(old) and not same and not named))
    kept = {(each.tool, each.manifest.digest) for each in after.tools}
    for version in before.tools:
        held_against = any(pair.before is version for pair in pairs)
        if not held_against and (version.tool, version.manifest.digest) not in kept:
            pairs.append(Versions(version, None))
    return pairs


def version_findings(pairs: list[Versions], settled_by_trying: frozenset[str]) -> Iterator[Finding]:
    """What changes in the manifests. ``settled_by_trying`` are the versions of which everything was tried."""
    kept = {pair.after.tool for pair in pairs if pair.after is not None}
    for pair in pairs:
        old, new = pair.before, pair.after
        if old is None:
            yield _finding(
                Way.LOOK, pair, "tool", "the tool is new; what its rules let through stands under it"
            )
        elif new is None and old.manifest.asks_live and old.tool not in kept:
            words = "nobody asks any more before a live call of it runs: a live tool without a manifest runs unasked"
            yield _finding(Way.LOOSENING, pair, "tool", words)
        elif new is None:
            yield _finding(Way.TIGHTENING, pair, "tool", "agents may not submit under this manifest any more")
        elif pair.is_added:
            words = "a version more: agents may also submit under it, whatever the current one says"
            yield _finding(Way.LOOSENING, pair, "tool-version", words)
        elif old.manifest.digest != new.manifest.digest:
            yield from manifest_changes(
                old.manifest, new.manifest, pair.name, pair.files, pair.name in settled_by_trying
            )
        elif old.file != new.file:
            yield _finding(Way.LOOK, pair, "tool-version", f"the manifest was {old.file} and is {new.file}")


def _finding(way: Way, pair: Versions, kind: str, words: str) -> Finding:
    content = [None if each is None else each.manifest.digest for each in (pair.before, pair.after)]
    lines = tuple(f"in {file}" for file in sorted(pair.files))
    return Finding(way, kind, pair.name, words, lines, content=content, files=pair.files)
