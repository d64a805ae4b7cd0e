"""Recorded calls through one bundle or two: what each comes to, counted by tool and by label, and where two differ.

Rules kept here: a call whose hidden values some rule reads, or that does not tell what a meter of its tool stood at,
is counted as not replayable and never guessed; labels are
carried to the report and read by nothing that decides.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from policy_service.domain.decision import Decision
from policy_service.pap.bundle import Bundle
from policy_service.pap.diff.findings import (
    Direction,
    Finding,
    describe_review,
    find_relaxations,
    find_restrictions,
)
from policy_service.pap.diff.paths import Path
from policy_service.pap.diff.policy_inputs import policy_inputs
from policy_service.pap.diff.recorded_calls import (
    RecordedCall,
    decide_recorded_call,
    missing_meters,
    reads_hidden,
    recorded_tool_digest,
)
from policy_service.pap.parts import read_parts

NOT_REPLAYABLE: Final = "not replayable"
OUTCOMES: Final = ("release", "review", "deny", NOT_REPLAYABLE)
_MAX_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class ReplayedCall:
    """One call and what it came to: a decision, or why there is none."""

    call: RecordedCall
    decision: Decision | None
    why_not: str = ""

    @property
    def outcome(self) -> str:
        """The outcome in one word, or `not replayable`."""
        return NOT_REPLAYABLE if self.decision is None else self.decision.outcome.value

    def to_json(self) -> dict[str, Any]:
        """The line for machines."""
        decision = self.decision
        return {
            "line": self.call.number,
            "id": self.call.name or None,
            "tool": self.call.tool,
            "label": self.call.label,
            "outcome": self.outcome,
            "policies": [] if decision is None else list(decision.policies),
            "reasons": [] if decision is None else [reason.code for reason in decision.reasons],
            "why_not": self.why_not or None,
        }


@dataclass(frozen=True)
class ReplayDifference:
    """A call that two bundles answer differently, and which way."""

    way: Direction
    kinds: tuple[str, ...]
    words: str
    before: ReplayedCall
    after: ReplayedCall


@dataclass
class OutcomeCounts:
    """Outcomes by tool, and by tool and label where there are labels."""

    by_tool: Counter[tuple[str, str]] = field(default_factory=Counter)
    by_label: Counter[tuple[str, str]] = field(default_factory=Counter)


def replay(bundle: Bundle, calls: Iterable[RecordedCall]) -> list[ReplayedCall]:
    """Every call through the bundle, in order. Blocks while fact sources are read."""
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
        return f"a rule reads {', '.join(call.hidden)}, and the record holds no value of it"
    if missing := missing_meters(call, bundle):
        names = ", ".join(f"history.{name}" for name in missing)
        return f"{call.tool} is counted by {names}, and the record does not say what it stood at"
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
    """The table's numbers."""
    counts = OutcomeCounts()
    for each in replayed:
        counts.by_tool[each.call.tool, each.outcome] += 1
        if each.call.label is not None:
            counts.by_label[each.call.label, each.outcome] += 1
    return counts


def replay_differences(
    before: Sequence[ReplayedCall], after: Sequence[ReplayedCall]
) -> list[ReplayDifference]:
    """The calls that the second bundle answers otherwise."""
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
    """The differences as findings, one for each tool, way and kind, with the calls that show it."""
    grouped: dict[tuple[Direction, str, str], list[ReplayDifference]] = {}
    for each in differences:
        for kind in each.kinds:
            grouped.setdefault((each.way, each.before.call.tool, kind), []).append(each)
    return [_finding(way, tool, kind, group) for (way, tool, kind), group in grouped.items()]


def _finding(way: Direction, tool: str, kind: str, group: list[ReplayDifference]) -> Finding:
    named = [each.before.call.name or f"line {each.before.call.number}" for each in group]
    rest = f" and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
    words = f"{len(group)} recorded calls are answered otherwise: {group[0].words}"
    lines = [f"calls: {', '.join(named[:_MAX_NAMED])}{rest}", *_sides(group[0])]
    policies = sorted({name for each in group for name in _behind(each)})
    return Finding(way, f"recorded-{kind}", tool, words, tuple(lines), tuple(policies), content=named)


def _behind(each: ReplayDifference) -> set[str]:
    sides = [
        set() if one.decision is None else set(one.decision.policies) for one in (each.before, each.after)
    ]
    return sides[0] ^ sides[1]


def _sides(each: ReplayDifference) -> list[str]:
    return [f"{word}: {_told(one)}" for word, one in (("before", each.before), ("after", each.after))]


def _told(one: ReplayedCall) -> str:
    if one.decision is None:
        return f"{one.outcome}: {one.why_not}"
    by = ", ".join(one.decision.policies) or one.decision.code
    asked = f" of {describe_review(one.decision)}" if one.decision.gates else ""
    return f"{one.outcome}{asked} by {by}"


def outcome_table(counts: Mapping[tuple[str, str], int], head: str) -> str:
    """Outcomes in columns, one row for each name."""
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
