"""Replay recorded calls through one bundle or two: outcomes by tool and by label, and differences.

A call is not replayable, and never guessed, when a rule reads a hidden value or a meter has no recorded value. Labels
appear in the report only; no decision reads them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from policy_service.domain.policy_request import Decision
from policy_service.pap.bundle import Bundle
from policy_service.pap.diff.findings import (
    Direction,
    Finding,
    describe_review,
    find_relaxations,
    find_restrictions,
)
from policy_service.pap.diff.policy_inputs import policy_inputs
from policy_service.pap.diff.recorded_calls import (
    RecordedCall,
    decide_recorded_call,
    missing_meters,
    reads_hidden,
    recorded_tool_digest,
)
from policy_service.pap.diff.tool_side import Path
from policy_service.pap.parts import read_parts

NOT_REPLAYABLE: Final = "not replayable"
OUTCOMES: Final = ("release", "review", "deny", NOT_REPLAYABLE)
_MAX_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class ReplayedCall:
    """One call and its decision, or why there is none."""

    call: RecordedCall
    decision: Decision | None
    why_not: str = ""

    @property
    def outcome(self) -> str:
        """The outcome, or `not replayable`."""
        return NOT_REPLAYABLE if self.decision is None else self.decision.outcome.value

    @property
    def policies(self) -> tuple[str, ...]:
        return () if self.decision is None else self.decision.policies

    def to_json(self) -> dict[str, Any]:
        decision = self.decision
        return {
            "line": self.call.number,
            "id": self.call.name or None,
            "tool": self.call.tool,
            "label": self.call.label,
            "outcome": self.outcome,
            "policies": list(self.policies),
            "reasons": [] if decision is None else [reason.code for reason in decision.reasons],
            "why_not": self.why_not or None,
        }


@dataclass(frozen=True)
class ReplayDifference:
    """A call that two bundles decide differently, and the direction."""

    way: Direction
    kinds: tuple[str, ...]
    words: str
    before: ReplayedCall
    after: ReplayedCall


@dataclass
class OutcomeCounts:
    """Number of outcomes by tool, and by label."""

    by_tool: Counter[tuple[str, str]] = field(default_factory=Counter)
    by_label: Counter[tuple[str, str]] = field(default_factory=Counter)


def replay(bundle: Bundle, calls: Iterable[RecordedCall]) -> list[ReplayedCall]:
    """Decide every call by the bundle, in order. Blocks while fact sources are read."""
    parts = read_parts(bundle.source.files)[0]
    read: dict[tuple[str, str], frozenset[Path]] = {}

    async def all_of_them() -> list[ReplayedCall]:
        found = []
        for call in calls:
            if why := _why_not(bundle, call, read):
                found.append(ReplayedCall(call, None, why))
                continue
            try:
                found.append(ReplayedCall(call, await decide_recorded_call(call, bundle, parts)))
            except ValueError as error:
                found.append(ReplayedCall(call, None, str(error)))
        return found

    return asyncio.run(all_of_them())


def _why_not(bundle: Bundle, call: RecordedCall, read: dict[tuple[str, str], frozenset[Path]]) -> str:
    if call.hidden and reads_hidden(call, bundle, _read_by(bundle, call, read)):
        return f"a rule reads {', '.join(call.hidden)}, and the record has no value of it"
    if missing := missing_meters(call, bundle):
        names = ", ".join(f"history.{name}" for name in missing)
        return f"{call.tool} is counted by {names}, and the record has no value of it"
    return ""


def _read_by(
    bundle: Bundle, call: RecordedCall, known: dict[tuple[str, str], frozenset[Path]]
) -> frozenset[Path]:
    version = call.tool, recorded_tool_digest(call, bundle)
    if version not in known:
        rules = bundle.rules.versions.get(version)
        trees = {} if rules is None else rules.everything.to_pst().static_policies
        known[version] = frozenset(path for tree in trees.values() for path in policy_inputs(tree).literals)
    return known[version]


def count_outcomes(replayed: Iterable[ReplayedCall]) -> OutcomeCounts:
    counts = OutcomeCounts()
    for each in replayed:
        counts.by_tool[each.call.tool, each.outcome] += 1
        if each.call.label is not None:
            counts.by_label[each.call.label, each.outcome] += 1
    return counts


def replay_differences(
    before: Sequence[ReplayedCall], after: Sequence[ReplayedCall]
) -> list[ReplayDifference]:
    """The calls that the second bundle decides differently."""
    found = []
    for old, new in zip(before, after, strict=True):
        if old.decision is None or new.decision is None:
            if old.outcome != new.outcome:
                words = f"{old.outcome} becomes {new.outcome}"
                found.append(ReplayDifference(Direction.LOOSENING, ("not-replayable",), words, old, new))
            continue
        for way, changes in (
            (Direction.LOOSENING, find_relaxations(old.decision, new.decision)),
            (Direction.TIGHTENING, find_restrictions(old.decision, new.decision)),
        ):
            if changes:
                kinds = tuple(dict.fromkeys(each.kind for each in changes))
                found.append(
                    ReplayDifference(way, kinds, "; ".join(each.words for each in changes), old, new)
                )
    return found


def replay_findings(differences: Iterable[ReplayDifference]) -> list[Finding]:
    """The differences as findings, one for each direction, tool and kind, with the calls that show it."""
    grouped: dict[tuple[Direction, str, str], list[ReplayDifference]] = {}
    for each in differences:
        for kind in each.kinds:
            grouped.setdefault((each.way, each.before.call.tool, kind), []).append(each)
    return [_finding(way, tool, kind, group) for (way, tool, kind), group in grouped.items()]


def _finding(way: Direction, tool: str, kind: str, group: list[ReplayDifference]) -> Finding:
    named = [each.before.call.name or f"line {each.before.call.number}" for each in group]
    rest = f" and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
    words = f"{len(group)} recorded calls are decided differently: {group[0].words}"
    lines = [
        f"calls: {', '.join(named[:_MAX_NAMED])}{rest}",
        f"before: {_describe(group[0].before)}",
        f"after: {_describe(group[0].after)}",
    ]
    policies = sorted({name for each in group for name in {*each.before.policies} ^ {*each.after.policies}})
    return Finding(way, f"recorded-{kind}", tool, words, tuple(lines), tuple(policies), content=named)


def _describe(one: ReplayedCall) -> str:
    if one.decision is None:
        return f"{one.outcome}: {one.why_not}"
    by = ", ".join(one.decision.policies) or one.decision.code
    asked = f" of {describe_review(one.decision)}" if one.decision.gates else ""
    return f"{one.outcome}{asked} by {by}"


def outcome_table(counts: Mapping[tuple[str, str], int], head: str) -> str:
    """A table with outcomes as columns and a row for each name."""
    names = sorted({name for name, _ in counts})
    columns = [
        each for each in OUTCOMES if each != NOT_REPLAYABLE or any(counts[name, each] for name in names)
    ]
    width = max([len(head), *(len(name) for name in names)]) + 2
    rows = [f"{head:{width}}" + "".join(f"{each:>16}" for each in columns)]
    rows += [
        f"{name:{width}}" + "".join(f"{counts[name, each] or '.':>16}" for each in columns) for name in names
    ]
    return "\n".join(rows)
