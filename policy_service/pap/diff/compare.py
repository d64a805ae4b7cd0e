"""Compare two bundles: every change, its direction, and how thoroughly it was explored.

Every differing file has a finding or is listed as equivalent. A changed rule whose effect could not be shown is a
loosening, unless its kind of change can only restrict. Files are equivalent only if the values read from them are
equal; a file that is not parsed here must be equal as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from countersign.contract import ContractError, load
from policy_service.domain.quorum import GroupDirectory
from policy_service.pap.bundle import Bundle
from policy_service.pap.diff.case_changes import are_same_cases, case_changes
from policy_service.pap.diff.data_changes import (
    fact_changes,
    group_changes,
    groups_that_restrict,
    meter_changes,
    meters_by_name,
)
from policy_service.pap.diff.exploration import (
    Exploration,
    SidePair,
    never_relaxes,
    only_restricts,
    policies_of,
    policy_meaning,
    same_context,
    same_policy,
)
from policy_service.pap.diff.findings import Direction, Finding, exact_json, select_direction
from policy_service.pap.diff.manifest_changes import VersionPair, pair_versions, version_changes
from policy_service.pap.diff.people_changes import approver_input_changes, people_rule_changes
from policy_service.pap.diff.tool_changes import tool_findings
from policy_service.pap.diff.tool_side import ToolSide
from policy_service.pap.parts import BundleParts, ToolVersion, read_parts
from policy_service.pdp.rules import PolicySource


def is_equivalent_file(
    name: str, bundles: tuple[Bundle, Bundle], parts: tuple[BundleParts, BundleParts]
) -> bool:
    """Whether both bundles read the same values from this file."""
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
    """Also when a rule moved to another file: both bundles must hold it unchanged."""
    held = {each.id for bundle in (before, after) for each in bundle.policies.values() if each.file == name}
    for policy_id in held:
        old, new = before.policies.get(policy_id), after.policies.get(policy_id)
        if old is None or new is None or old.annotations != new.annotations:
            return False
        if policy_meaning(old) != policy_meaning(new):
            return False
    return True


def _same_json(name: str, bundles: tuple[Bundle, Bundle]) -> bool:
    try:
        before, after = (exact_json(load(bundle.source.files[name])) for bundle in bundles)
    except (ContractError, ValueError):
        return False
    return before == after


@dataclass(frozen=True)
class ToolCoverage:
    """How one tool was explored: `unchanged`, `exhaustive` or `sampled`, with the number of generated calls."""

    tool: str
    how: str
    count: int = 0
    why_not: tuple[str, ...] = ()


@dataclass(frozen=True)
class DiffReport:
    """The changes from one bundle to another. ``equivalent_files`` differ only in bytes."""

    before: Bundle
    after: Bundle
    findings: tuple[Finding, ...]
    tools: tuple[ToolCoverage, ...]
    equivalent_files: tuple[str, ...] = ()

    def in_direction(self, way: Direction) -> list[Finding]:
        return select_direction(self.findings, way)

    def not_acknowledged(self, ids: Iterable[str]) -> list[Finding]:
        """The loosenings whose ids are not among these."""
        known = frozenset(ids)
        return [finding for finding in self.in_direction(Direction.LOOSENING) if finding.id not in known]


def compare(before: Bundle, after: Bundle, more: Iterable[Finding] = ()) -> DiffReport:
    """All changes from ``before`` to ``after``; ``more`` are findings of replayed calls."""
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
        tools.append(_coverage(tool, rounds))
    return findings, tools


def _side(bundle: Bundle, parts: BundleParts, version: ToolVersion | None) -> ToolSide | None:
    return None if version is None else ToolSide(bundle, parts, version)


def _is_unchanged(pair: SidePair) -> bool:
    before, after = pair
    if before is None or after is None or not same_context(before, after):
        return False
    return before.trees.keys() == after.trees.keys() and all(same_policy(pair, name) for name in before.trees)


def _coverage(tool: str, rounds: list[Exploration]) -> ToolCoverage:
    if not rounds:
        return ToolCoverage(tool, "sampled", 0, ("no call could be made up that its manifest takes",))
    why_not = tuple(dict.fromkeys(why for tried in rounds for why in tried.why_not))
    count = sum(tried.count for tried in rounds)
    return ToolCoverage(tool, "sampled" if why_not else "exhaustive", count, why_not)


def _rewritten(before: Bundle, after: Bundle) -> frozenset[str]:
    """The rules whose own meaning changed."""
    mine, theirs = before.policies, after.policies
    names = mine.keys() | theirs.keys()
    return frozenset(n for n in names if policy_meaning(mine.get(n)) != policy_meaning(theirs.get(n)))


def _unproved(
    tool: str, pair: SidePair, found: list[Finding], rounds: list[Exploration], rewritten: frozenset[str]
) -> Iterator[Finding]:
    """Changed rules that were not explored exhaustively, and whose effect no generated call showed."""
    inexact = {name for tried in rounds for name in tried.inexact_ids}
    shown = {name for finding in select_direction(found, Direction.LOOSENING) for name in finding.policies}
    names = {name for side in pair if side is not None for name in side.trees}
    for name in sorted(names - shown):
        if same_policy(pair, name):
            continue
        is_tried = bool(rounds) and name not in inexact
        other_loosens = bool(shown) and name in rewritten
        if is_tried and (not other_loosens or never_relaxes(name, pair, [tried.base for tried in rounds])):
            continue
        old, new = policies_of(pair, name)
        matching = [side is not None and name in side.trees for side in pair]
        if only_restricts(old if matching[0] else None, new if matching[1] else None):
            continue
        words = f"the rule {name} changed, and no made-up call shows which way: it cannot be tried in full"
        if is_tried:
            words = f"the rule {name} changed together with rules that loosen, and alone it may permit more"
        content = [policy_meaning(policy) for policy in (old, new)]
        yield _policy_finding(Direction.LOOSENING, "unproved", tool, words, name, (old, new), content)


def _policy_finding(
    way: Direction,
    kind: str,
    subject: str,
    words: str,
    name: str,
    policies: tuple[PolicySource | None, PolicySource | None],
    content: Any,
) -> Finding:
    held = [pair for pair in zip(("before", "after"), policies, strict=True) if pair[1] is not None]
    lines = tuple(f"{word}: {policy.place}" for word, policy in held if policy is not None)
    files = frozenset(policy.file for _, policy in held if policy is not None)
    return Finding(way, kind, subject, words, lines, (name,), content, files)


def _texts(before: Bundle, after: Bundle, findings: list[Finding]) -> Iterator[Finding]:
    """Rules that changed without an observed difference, and changed texts for people."""
    shown = {name for finding in findings for name in finding.policies}
    for name in [*before.policies, *(name for name in after.policies if name not in before.policies)]:
        old, new = before.policies.get(name), after.policies.get(name)
        if policy_meaning(old) != policy_meaning(new) and name not in shown:
            what = "is new" if old is None else "is gone" if new is None else "changed"
            words = f"the rule {what}, and no difference to any decision was found"
            content = [None if policy is None else policy.text for policy in (old, new)]
            yield _policy_finding(Direction.LOOK, "rule", name, words, name, (old, new), content)
        if old is None or new is None:
            continue
        for key in ("channel", "doc", "remind", "title"):
            texts = [policy.annotations.get(key) for policy in (old, new)]
            if texts[0] != texts[1]:
                words = f"@{key} {texts[0]!r} becomes {texts[1]!r}"
                yield _policy_finding(Direction.LOOK, f"text-{key}", name, words, name, (old, new), texts)


def _rest(
    before: Bundle, after: Bundle, parts: tuple[BundleParts, BundleParts], accounted: frozenset[str]
) -> tuple[list[str], list[Finding]]:
    mine, theirs = before.source.files, after.source.files
    same, unknown = [], []
    for name in sorted((mine.keys() | theirs.keys()) - accounted):
        old, new = mine.get(name), theirs.get(name)
        if old == new:
            continue
        if is_equivalent_file(name, (before, after), parts):
            same.append(name)
            continue
        words = "this file differs in a way that is not analyzed"
        finding = Finding(Direction.LOOSENING, "unknown-file", name, words, files=frozenset({name}))
        unknown.append(replace(finding, content=[repr(old), repr(new)]))
    return same, unknown
