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
from policy_service.pap.changes.cases_of_both import case_findings, same_cases
from policy_service.pap.changes.differences import tool_findings
from policy_service.pap.changes.findings import Finding, Way, of_way
from policy_service.pap.changes.partition import meaning, only_stricter, same_ground, same_policy
from policy_service.pap.changes.people import answer_findings, people_findings
from policy_service.pap.changes.regions import Pair, Tried, never_laxer
from policy_service.pap.changes.sides import Side
from policy_service.pap.changes.structure import (
    fact_findings,
    group_findings,
    meter_findings,
    meters_of,
    opened_by_leaving,
)
from policy_service.pap.changes.versions import Versions, version_findings, versions_of_both
from policy_service.pap.parts import Parts, read_parts
from policy_service.pap.tools import ToolVersion
from policy_service.pdp.rules import PolicySource


def means_the_same(name: str, bundles: tuple[Bundle, Bundle], parts: tuple[Parts, Parts]) -> bool:
    """Whether both bundles read the same from this file."""
    before, after = bundles
    mine, theirs = parts
    if name == "groups.toml":
        return bool(_people(mine.directory) == _people(theirs.directory))
    if name == "facts.toml":
        return bool(mine.config == theirs.config)
    if name == "meters.toml":
        return meters_of(mine) == meters_of(theirs)
    if name.endswith(".cedar"):
        return _same_policies(name, before, after)
    if name.startswith("tools/"):
        return bool(_manifest(name, before) == _manifest(name, after))
    if name.startswith("facts/"):
        return name in before.source.files and name in after.source.files and _same_json(name, bundles)
    return name.startswith("cases/") and same_cases(name, before.source.files, after.source.files)


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
        if old is None or new is None or meaning(old) != meaning(new) or old.annotations != new.annotations:
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
class ToolTried:
    """How one tool was looked at: `unchanged`, `exhaustive` or `sampled`, with how many made-up calls."""

    tool: str
    how: str
    count: int = 0
    why_not: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """What changes from one bundle to another. ``same_in_meaning`` are files whose bytes alone differ."""

    before: Bundle
    after: Bundle
    findings: tuple[Finding, ...]
    tools: tuple[ToolTried, ...]
    same_in_meaning: tuple[str, ...] = ()

    def of_way(self, way: Way) -> list[Finding]:
        """The findings that go this way."""
        return of_way(self.findings, way)

    def not_acknowledged(self, ids: Iterable[str]) -> list[Finding]:
        """The loosenings nobody has acknowledged."""
        known = frozenset(ids)
        return [finding for finding in self.of_way(Way.LOOSENING) if finding.id not in known]


def compare(before: Bundle, after: Bundle, more: Iterable[Finding] = ()) -> Report:
    """Everything that changes from ``before`` to ``after``; ``more`` are findings of replayed calls."""
    if before.digest == after.digest:
        return Report(before, after, tuple(more), ())
    parts = (read_parts(before.source.files)[0], read_parts(after.source.files)[0])
    versions = versions_of_both(before, after)
    findings, tools = _rules(before, after, parts, versions)
    exhaustive = frozenset(tool.tool for tool in tools if tool.how != "sampled")
    findings += people_findings(before, after)
    findings += answer_findings(before, after, versions)
    findings += version_findings(versions, exhaustive)
    opened = opened_by_leaving((before, after))
    findings += group_findings(before.directory, after.directory, opened)
    findings += fact_findings(*parts)
    findings += meter_findings(*parts)
    findings += case_findings(before, after)
    findings += _texts(before, after, findings)
    findings += more
    accounted = frozenset(file for finding in findings for file in finding.files)
    same, unknown = _rest(before, after, parts, accounted)
    findings += unknown
    return Report(before, after, tuple(findings), tuple(tools), tuple(same))


def _rules(
    before: Bundle, after: Bundle, parts: tuple[Parts, Parts], versions: Iterable[Versions]
) -> tuple[list[Finding], list[ToolTried]]:
    findings: list[Finding] = []
    tools: list[ToolTried] = []
    for each in versions:
        tool = each.name
        pair = (_side(before, parts[0], each.before), _side(after, parts[1], each.after))
        if _is_unchanged(pair):
            tools.append(ToolTried(tool, "unchanged"))
            continue
        found, rounds = tool_findings(tool, pair)
        findings += found
        findings += _unproved(tool, pair, found, rounds, _rewritten(before, after))
        tools.append(_told(tool, rounds))
    return findings, tools


def _side(bundle: Bundle, parts: Parts, version: ToolVersion | None) -> Side | None:
    return None if version is None else Side(bundle, parts, version.tool, version)


def _is_unchanged(pair: Pair) -> bool:
    before, after = pair
    if before is None or after is None or not same_ground(before, after):
        return False
    return before.trees.keys() == after.trees.keys() and all(
        same_policy(before, after, name) for name in before.trees
    )


def _told(tool: str, rounds: list[Tried]) -> ToolTried:
    if not rounds:
        return ToolTried(tool, "sampled", 0, ("no call could be made up that its manifest takes",))
    why_not = tuple(dict.fromkeys(why for tried in rounds for why in tried.why_not))
    count = sum(tried.count for tried in rounds)
    return ToolTried(tool, "sampled" if why_not else "exhaustive", count, why_not)


def _rewritten(before: Bundle, after: Bundle) -> frozenset[str]:
    """The rules whose own words changed, wherever they match."""
    mine, theirs = before.policies, after.policies
    kept = {name for name in mine.keys() & theirs.keys() if meaning(mine[name]) == meaning(theirs[name])}
    return frozenset(mine.keys() | theirs.keys()) - kept


def _unproved(
    tool: str, pair: Pair, found: list[Finding], rounds: list[Tried], rewritten: frozenset[str]
) -> Iterator[Finding]:
    """Changed rules that could not be tried in full, and whose effect no made-up call showed."""
    inexact = {name for tried in rounds for name in tried.inexact_ids}
    shown = {name for finding in of_way(found, Way.LOOSENING) for name in finding.policies}
    names = {name for side in pair if side is not None for name in side.trees}
    for name in sorted(names - shown):
        if same_policy(pair[0], pair[1], name):
            continue
        is_tried = bool(rounds) and name not in inexact
        beside_another = bool(shown) and name in rewritten
        if is_tried and (not beside_another or never_laxer(name, pair, [tried.base for tried in rounds])):
            continue
        old, new = (None if side is None else side.bundle.policies.get(name) for side in pair)
        if only_stricter(old if name in _trees(pair[0]) else None, new if name in _trees(pair[1]) else None):
            continue
        files = _files(old, new)
        words = f"the rule {name} changed, and no made-up call shows which way: it cannot be tried in full"
        if is_tried:
            words = f"the rule {name} changed beside others that loosen, and by itself it may let more through too"
        content = [None if policy is None else meaning(policy) for policy in (old, new)]
        yield Finding(Way.LOOSENING, "unproved", tool, words, _where(old, new), (name,), content, files)


def _files(old: PolicySource | None, new: PolicySource | None) -> frozenset[str]:
    return frozenset(policy.file for policy in (old, new) if policy is not None)


def _trees(side: Side | None) -> Any:
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
        differs = old is None or new is None or meaning(old) != meaning(new)
        if differs and name not in shown:
            what = "is new" if old is None else "is gone" if new is None else "changed"
            words = f"the rule {what}, and no difference to any decision was found"
            content = [None if policy is None else policy.text for policy in (old, new)]
            yield Finding(Way.LOOK, "rule", name, words, _where(old, new), (name,), content, files)
        if old is None or new is None:
            continue
        for key in sorted(old.annotations.keys() | new.annotations.keys()):
            said, says = old.annotations.get(key), new.annotations.get(key)
            if said != says and key in ("title", "doc", "channel", "remind"):
                words = f"@{key} {said!r} becomes {says!r}"
                yield Finding(
                    Way.LOOK, f"text-{key}", name, words, _where(old, new), (name,), [said, says], files
                )


def _rest(
    before: Bundle, after: Bundle, parts: tuple[Parts, Parts], accounted: frozenset[str]
) -> tuple[list[str], list[Finding]]:
    mine, theirs = before.source.files, after.source.files
    differing = [name for name in sorted(mine.keys() | theirs.keys()) if mine.get(name) != theirs.get(name)]
    same, unknown = [], []
    for name in differing:
        if name in accounted:
            continue
        if means_the_same(name, (before, after), parts):
            same.append(name)
        else:
            words = "this file differs, and no comparison here tells how"
            content = [repr(mine.get(name)), repr(theirs.get(name))]
            unknown.append(
                Finding(Way.LOOSENING, "unknown-file", name, words, content=content, files=frozenset({name}))
            )
    return same, unknown
