"""Changes of tools: which versions are active, and each manifest member by member.

Every version of the new bundle is compared with one of the old: the same manifest, else the file of the same name, else
the current one. So no version is activated without exploring its rules. A change of the args, the enforcement point,
secret fields, texts for people or idempotency is a loosening unless it narrows. Titles and descriptions are to be
reviewed. Any member that is not named here is a loosening.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from countersign.contract import ToolManifest
from policy_service.pap.bundle import Bundle
from policy_service.pap.diff.findings import Direction, Finding, exact_json, file_finding, short_json
from policy_service.pap.parts import ToolVersion

_RISKS: Final = ("low", "medium", "high")
_STRICTER: Final = {"recheck": True, "ask": "live", "on_exhausted": "transaction", "idempotent": False}
_WORDS: Final = frozenset({"title", "description"})
# `secret` and `money` change what people see: always a loosening
_KEPT_LISTS: Final = frozenset({"recipients"})
_WORDS_IN_ARGS: Final = frozenset(
    {"title", "description", "examples", "$comment", "deprecated", "readOnly", "writeOnly"}
)
_AT_LEAST: Final = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
_AT_MOST: Final = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})
_NARROWS_WHEN_ADDED: Final = (
    _AT_LEAST | _AT_MOST | {"enum", "const", "pattern", "multipleOf", "uniqueItems", "allOf", "not"}
)

Change = tuple[Direction, str]


def manifest_changes(
    old: ToolManifest, new: ToolManifest, subject: str, files: frozenset[str], is_settled: bool
) -> Iterator[Finding]:
    """Changes of one manifest. ``is_settled``: the exploration of its rules was exhaustive."""
    mine: dict[str, Any] = old.model_dump(mode="json")
    theirs: dict[str, Any] = new.model_dump(mode="json")
    for name in sorted(mine.keys() | theirs.keys()):
        before, after = mine.get(name), theirs.get(name)
        if exact_json(before) == exact_json(after):
            continue
        if name == "args":
            changes = list(dict.fromkeys(_schema(before, after, "args")))
            for way in Direction:
                if words := "; ".join(text for each, text in changes if each is way):
                    yield file_finding(way, "manifest-args", subject, words, files, [before, after])
            continue
        way = _way(name, before, after, is_settled)
        words = f"{name} {_shown(before)} becomes {_shown(after)}"
        yield file_finding(way, f"manifest-{name}", subject, words, files, [before, after])


def _way(name: str, before: Any, after: Any, is_settled: bool) -> Direction:
    if name in _WORDS or (name == "groups" and is_settled):
        return Direction.LOOK
    if name in _KEPT_LISTS:
        lost = [each for each in before if each not in after]
        return Direction.LOOSENING if lost else Direction.LOOK
    stricter = (
        (name == "risk" and _RISKS.index(after) > _RISKS.index(before))
        or (name == "timeout_seconds" and after < before)
        or (name in _STRICTER and after == _STRICTER[name])
    )
    return Direction.TIGHTENING if stricter else Direction.LOOSENING


def _schema(before: Any, after: Any, place: str) -> Iterator[Change]:
    """Differences of one schema node: known narrowing is stricter, texts are to be reviewed, else a loosening."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        yield Direction.LOOSENING, f"{place} {_shown(before)} becomes {_shown(after)}"
        return
    for key in sorted(before.keys() | after.keys()):
        mine, theirs = before.get(key), after.get(key)
        if exact_json(mine) == exact_json(theirs) and (key in before) is (key in after):
            continue
        if key in ("properties", "$defs") and isinstance(mine, dict) and isinstance(theirs, dict):
            yield from _properties(mine, theirs, f"{place}.{key}")
        elif key in ("items", "additionalProperties") and isinstance(mine, dict) and isinstance(theirs, dict):
            yield from _schema(mine, theirs, f"{place}.{key}")
        else:
            yield _keyword(key, mine, theirs, place, before.get("type"))


def _properties(before: dict[str, Any], after: dict[str, Any], place: str) -> Iterator[Change]:
    for name in sorted(before.keys() | after.keys()):
        if name not in before:
            yield Direction.LOOSENING, f"{place}.{name} is new: agents may send it"
        elif name not in after:
            yield Direction.TIGHTENING, f"{place}.{name} is gone"
        elif exact_json(before[name]) != exact_json(after[name]):
            yield from _schema(before[name], after[name], f"{place}.{name}")


def _keyword(key: str, before: Any, after: Any, place: str, kind: Any) -> Change:
    words = f"{place}.{key} {_shown(before)} becomes {_shown(after)}"
    if key in _WORDS_IN_ARGS:
        return Direction.LOOK, words
    # policy may begin to see the field
    shows_it = key == "uniqueItems" or (key == "multipleOf" and kind == "number")
    if before is None and key in _NARROWS_WHEN_ADDED and kind is not None and not shows_it:
        return Direction.TIGHTENING, words
    narrower = (
        (key in _AT_LEAST and _is_more(after, before))
        or (key in _AT_MOST and _is_more(before, after))
        or (
            key == "enum"
            and isinstance(after, list)
            and isinstance(before, list)
            and {exact_json(v) for v in after} <= {exact_json(v) for v in before}
        )
        or (key == "required" and isinstance(after, list) and set(before or ()) <= set(after))
    )
    return (Direction.TIGHTENING if narrower else Direction.LOOSENING), words


def _is_more(one: Any, other: Any) -> bool:
    return isinstance(one, int | float) and isinstance(other, int | float) and one > other


def _shown(value: Any) -> str:
    return "(nothing)" if value is None else short_json(value)


@dataclass(frozen=True, slots=True)
class VersionPair:
    """Two versions of one tool to compare; None on the side that has none."""

    before: ToolVersion | None
    after: ToolVersion | None
    is_added: bool = False  # in addition to the versions of the old bundle

    @property
    def name(self) -> str:
        """The tool's name, with the version's label if it has one."""
        version = self.after or self.before
        assert version is not None  # noqa: S101
        return version.tool if version.label is None else f"{version.tool}@{version.label}"

    @property
    def files(self) -> frozenset[str]:
        return frozenset(each.file for each in (self.before, self.after) if each is not None)


def pair_versions(before: Bundle, after: Bundle) -> list[VersionPair]:
    """Pair every new version with an old one, then list the removed versions."""
    pairs: list[VersionPair] = []
    for version in sorted(after.tools, key=lambda each: (each.tool, each.label or "")):
        old = [each for each in before.tools if each.tool == version.tool]
        same = [each for each in old if each.manifest.digest == version.manifest.digest]
        named = [each for each in old if each.label == version.label]
        current = [each for each in old if each.label is None]
        partner = next(iter([*same, *named, *current]), None)
        pairs.append(VersionPair(partner, version, bool(old) and not same and not named))
    kept = {(each.tool, each.manifest.digest) for each in after.tools}
    for version in before.tools:
        held_against = any(pair.before is version for pair in pairs)
        if not held_against and (version.tool, version.manifest.digest) not in kept:
            pairs.append(VersionPair(version, None))
    return pairs


def version_changes(pairs: list[VersionPair], settled_by_trying: frozenset[str]) -> Iterator[Finding]:
    """Changes of all manifests. ``settled_by_trying`` are the exhaustively explored versions."""
    kept = {pair.after.tool for pair in pairs if pair.after is not None}
    for pair in pairs:
        old, new = pair.before, pair.after
        if old is None:
            yield _finding(Direction.LOOK, pair, "tool", "the tool is new; findings about its rules follow")
        elif new is None and old.manifest.evaluates_live and old.tool not in kept:
            words = "live calls of it are no longer evaluated: a live tool without a manifest runs without a decision"
            yield _finding(Direction.LOOSENING, pair, "tool", words)
        elif new is None:
            yield _finding(
                Direction.TIGHTENING, pair, "tool", "agents may not submit under this manifest any more"
            )
        elif pair.is_added:
            words = "an additional version: agents may also submit under it instead of the current one"
            yield _finding(Direction.LOOSENING, pair, "tool-version", words)
        elif old.manifest.digest != new.manifest.digest:
            yield from manifest_changes(
                old.manifest, new.manifest, pair.name, pair.files, pair.name in settled_by_trying
            )
        elif old.file != new.file:
            yield _finding(
                Direction.LOOK, pair, "tool-version", f"the manifest was {old.file} and is {new.file}"
            )


def _finding(way: Direction, pair: VersionPair, kind: str, words: str) -> Finding:
    content = [None if each is None else each.manifest.digest for each in (pair.before, pair.after)]
    return file_finding(way, kind, pair.name, words, pair.files, content)
