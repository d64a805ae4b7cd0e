"""Compare two bundles: everything that changed, which way it goes, and how thoroughly it was looked at.

Rules kept here: every file that differs is accounted for, by a finding or as the same in meaning; a changed rule whose
effect could not be shown either way is a loosening, unless a change of its kind can only make things stricter. Files
mean the same only when what is read from them is equal; one that is not read here must be equal as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from countersign.contract import ContractError, load
from policy_service.facts.groups import GroupDirectory
from policy_service.pap.bundle import Bundle
from policy_service.pap.diff.case_changes import are_same_cases, case_changes
from policy_service.pap.diff.data_changes import (
    fact_changes,
    group_changes,
    groups_that_restrict,
    meter_changes,
    meters_by_name,
)
from policy_service.pap.diff.exploration import Exploration, SidePair, never_relaxes
from policy_service.pap.diff.findings import Direction, Finding, select_direction
from policy_service.pap.diff.manifest_changes import VersionPair, pair_versions, version_changes
from policy_service.pap.diff.partition import only_restricts, policy_meaning, same_context, same_policy
from policy_service.pap.diff.people_changes import approver_input_changes, people_rule_changes
from policy_service.pap.diff.tool_changes import tool_findings
from policy_service.pap.diff.tool_side import ToolSide
from policy_service.pap.parts import BundleParts, read_parts
from policy_service.pap.tools import ToolVersion
from policy_service.pdp.rules import PolicySource


def is_equivalent_file(
    name: str, bundles: tuple[Bundle, Bundle], parts: tuple[BundleParts, BundleParts]
) -> bool:
    """Whether both bundles read the same from this file."""
    before, after = bundles
    mine, theirs = parts
    if name == "groups.toml":
        return bool(_people(mine.directory) == _people(theirs.directory))
    if name == "facts.toml":
        return bool(mine.config == theirs.config)
    if name == "meters.toml":
        return meters_by_name(mine) == meters_by_name(theirs)
    if name.endswith(".cedar"):
        return _same_policies(name, before, after)
    if name.startswith("tools/"):
        return bool(_manifest(name, before) == _manifest(name, after))
    if name.startswith("facts/"):
        return name in before.source.files and name in after.source.files and _same_json(name, bundles)
    return name.startswith("cases/") and are_same_cases(name, before.source.files, after.source.files)


def _people(directory: GroupDirectory) -> Any:
    groups = {group: (directory.members(group), directory.title_of(group)) for group in directory.groups}
    return groups, directory.people, directory.elsewhere


def _manifest(name: str, bundle: Bundle) -> Any:
    return next((each.manifest.digest for each in bundle.tools if each.file == name), None)


def _same_policies(name: str, before: Bundle, after: Bundle) -> bool:
    """Also where a rule moved to another file: what counts is that both bundles hold it."""
    held = {each.id for bundle in (before, after) for each in bundle.policies.values() if each.file == name}
    for policy_id in held:
        old, new = before.policies.get(policy_id), after.policies.get(policy_id)
        if (
            old is None
            or new is None
            or policy_meaning(old) != policy_meaning(new)
            or old.annotations != new.annotations
        ):
            return False
    return True


def _same_json(name: str, bundles: tuple[Bundle, Bundle]) -> bool:
    try:
        before, after = (_typed(load(bundle.source.files[name])) for bundle in bundles)
    except (ContractError, ValueError):
        return False
    return bool(before == after)


def _typed(value: Any) -> Any:
    """A number or truth with its type beside it: Python calls `1` and `true` equal, and policy does not."""
    if isinstance(value, dict):
        return {key: _typed(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_typed(each) for each in value]
    return (type(value), value)


@dataclass(frozen=True)
class ToolCoverage:
    """How one tool was looked at: `unchanged`, `exhaustive` or `sampled`, with how many made-up calls."""

    tool: str
    how: str
    count: int = 0
    why_not: tuple[str, ...] = ()


@dataclass(frozen=True)
class DiffReport:
    """What changes from one bundle to another. ``same_in_meaning`` are files whose bytes alone differ."""

    before: Bundle
    after: Bundle
    findings: tuple[Finding, ...]
    tools: tuple[ToolCoverage, ...]
    equivalent_files: tuple[str, ...] = ()

    def in_direction(self, way: Direction) -> list[Finding]:
        """The findings that go this way."""
        return select_direction(self.findings, way)

    def not_acknowledged(self, ids: Iterable[str]) -> list[Finding]:
        """The loosenings nobody has acknowledged."""
        known = frozenset(ids)
        return [finding for finding in self.in_direction(Direction.LOOSENING) if finding.id not in known]


def compare(before: Bundle, after: Bundle, more: Iterable[Finding] = ()) -> DiffReport:
    """Everything that changes from ``before`` to ``after``; ``more`` are findings of replayed calls."""
    if before.digest == after.digest:
        return DiffReport(before, after, tuple(more), ())
    parts = (read_parts(before.source.files)[0], read_parts(after.source.files)[0])
    versions = pair_versions(before, after)
    findings, tools = _rules(before, after, parts, versions)
    exhaustive = frozenset(tool.tool for tool in tools if tool.how != "sampled")
    findings += people_rule_changes(before, after)
    findings += approver_input_changes(before, after, versions)
    findings += version_changes(versions, exhaustive)
    opened = groups_that_restrict((before, after))
    findings += group_changes(before.directory, after.directory, opened)
    findings += fact_changes(*parts)
    findings += meter_changes(*parts)
    findings += case_changes(before, after)
    findings += _texts(before, after, findings)
    findings += more
    accounted = frozenset(file for finding in findings for file in finding.files)
    same, unknown = _rest(before, after, parts, accounted)
    findings += unknown
    return DiffReport(before, after, tuple(findings), tuple(tools), tuple(same))


def _rules(
    before: Bundle, after: Bundle, parts: tuple[BundleParts, BundleParts], versions: Iterable[VersionPair]
) -> tuple[list[Finding], list[ToolCoverage]]:
    findings: list[Finding] = []
    tools: list[ToolCoverage] = []
    for each in versions:
        tool = each.name
        pair = (_side(before, parts[0], each.before), _side(after, parts[1], each.after))
        if _is_unchanged(pair):
            tools.append(ToolCoverage(tool, "unchanged"))
            continue
        found, rounds = tool_findings(tool, pair)
        findings += found
        findings += _unproved(tool, pair, found, rounds, _rewritten(before, after))
        tools.append(_told(tool, rounds))
    return findings, tools


def _side(bundle: Bundle, parts: BundleParts, version: ToolVersion | None) -> ToolSide | None:
    return None if version is None else ToolSide(bundle, parts, version.tool, version)


def _is_unchanged(pair: SidePair) -> bool:
    before, after = pair
    if before is None or after is None or not same_context(before, after):
        return False
    return before.trees.keys() == after.trees.keys() and all(
        same_policy(before, after, name) for name in before.trees
    )


def _told(tool: str, rounds: list[Exploration]) -> ToolCoverage:
    if not rounds:
        return ToolCoverage(tool, "sampled", 0, ("no call could be made up that its manifest takes",))
    why_not = tuple(dict.fromkeys(why for tried in rounds for why in tried.why_not))
    count = sum(tried.count for tried in rounds)
    return ToolCoverage(tool, "sampled" if why_not else "exhaustive", count, why_not)


def _rewritten(before: Bundle, after: Bundle) -> frozenset[str]:
    """The rules whose own words changed, wherever they match."""
    mine, theirs = before.policies, after.policies
    kept = {
        name
        for name in mine.keys() & theirs.keys()
        if policy_meaning(mine[name]) == policy_meaning(theirs[name])
    }
    return frozenset(mine.keys() | theirs.keys()) - kept


def _unproved(
    tool: str, pair: SidePair, found: list[Finding], rounds: list[Exploration], rewritten: frozenset[str]
) -> Iterator[Finding]:
    """Changed rules that could not be tried in full, and whose effect no made-up call showed."""
    inexact = {name for tried in rounds for name in tried.inexact_ids}
    shown = {name for finding in select_direction(found, Direction.LOOSENING) for name in finding.policies}
    names = {name for side in pair if side is not None for name in side.trees}
    for name in sorted(names - shown):
        if same_policy(pair[0], pair[1], name):
            continue
        is_tried = bool(rounds) and name not in inexact
        beside_another = bool(shown) and name in rewritten
        if is_tried and (not beside_another or never_relaxes(name, pair, [tried.base for tried in rounds])):
            continue
        old, new = (None if side is None else side.bundle.policies.get(name) for side in pair)
        if only_restricts(old if name in _trees(pair[0]) else None, new if name in _trees(pair[1]) else None):
            continue
        files = _files(old, new)
        words = f"the rule {name} changed, and no made-up call shows which way: it cannot be tried in full"
        if is_tried:
            words = f"the rule {name} changed beside others that loosen, and by itself it may let more through too"
        content = [None if policy is None else policy_meaning(policy) for policy in (old, new)]
        yield Finding(Direction.LOOSENING, "unproved", tool, words, _where(old, new), (name,), content, files)


def _files(old: PolicySource | None, new: PolicySource | None) -> frozenset[str]:
    return frozenset(policy.file for policy in (old, new) if policy is not None)


def _trees(side: ToolSide | None) -> Any:
    return {} if side is None else side.trees


def _where(old: PolicySource | None, new: PolicySource | None) -> tuple[str, ...]:
    words = (("before", old), ("after", new))
    return tuple(f"{word}: {policy.place}" for word, policy in words if policy is not None)


def _texts(before: Bundle, after: Bundle, findings: list[Finding]) -> Iterator[Finding]:
    """Rules that changed without a difference found, and words that people read."""
    shown = {name for finding in findings for name in finding.policies}
    for name in [*before.policies, *(name for name in after.policies if name not in before.policies)]:
        old, new = before.policies.get(name), after.policies.get(name)
        files = _files(old, new)
        differs = old is None or new is None or policy_meaning(old) != policy_meaning(new)
        if differs and name not in shown:
            what = "is new" if old is None else "is gone" if new is None else "changed"
            words = f"the rule {what}, and no difference to any decision was found"
            content = [None if policy is None else policy.text for policy in (old, new)]
            yield Finding(Direction.LOOK, "rule", name, words, _where(old, new), (name,), content, files)
        if old is None or new is None:
            continue
        for key in sorted(old.annotations.keys() | new.annotations.keys()):
            said, says = old.annotations.get(key), new.annotations.get(key)
            if said != says and key in ("title", "doc", "channel", "remind"):
                words = f"@{key} {said!r} becomes {says!r}"
                yield Finding(
                    Direction.LOOK, f"text-{key}", name, words, _where(old, new), (name,), [said, says], files
                )


def _rest(
    before: Bundle, after: Bundle, parts: tuple[BundleParts, BundleParts], accounted: frozenset[str]
) -> tuple[list[str], list[Finding]]:
    mine, theirs = before.source.files, after.source.files
    differing = [name for name in sorted(mine.keys() | theirs.keys()) if mine.get(name) != theirs.get(name)]
    same, unknown = [], []
    for name in differing:
        if name in accounted:
            continue
        if is_equivalent_file(name, (before, after), parts):
            same.append(name)
        else:
            words = "this file differs, and no comparison here tells how"
            content = [repr(mine.get(name)), repr(theirs.get(name))]
            unknown.append(
                Finding(
                    Direction.LOOSENING, "unknown-file", name, words, content=content, files=frozenset({name})
                )
            )
    return same, unknown
