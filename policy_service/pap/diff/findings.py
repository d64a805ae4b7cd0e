"""Findings of a comparison, and how one decision is laxer than another on the same call.

Rules kept here: an id is the digest of everything the finding says, so an acknowledgement never covers a later
change; what cannot be classified is a loosening. Deny is stricter than review, review than release; a question to the
same groups is laxer with a lower quorum, a weaker step-up, longer times, no reason, more sharing or wider escalation; a
question to other groups is laxer unless groups were only taken away; every question of the first decision needs one of
its own in the second.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import Any, Final

from countersign.contract import Verdict
from policy_service.domain.decision import Decision
from policy_service.domain.gates import MergedGate, is_stronger_step_up, merge
from policy_service.pap.policy_tests.runner import STRICTNESS

_ID_DIGITS: Final = 12


class Direction(StrEnum):
    """Which way a change goes: laxer, to be looked at, or stricter."""

    LOOSENING = "loosening"
    LOOK = "look"
    TIGHTENING = "tightening"


def _in_order(value: Any) -> str:
    """As JSON that is the same in every process: a set has another order in each."""
    return json.dumps(value, sort_keys=True, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset | set):
        return sorted(value, key=_in_order)
    if isinstance(value, Mapping):
        return dict(value)
    if is_dataclass(value):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    return str(value)


@dataclass(frozen=True, slots=True)
class Finding:
    """One change. ``subject`` is what changed (a tool, a group, a file), ``lines`` are an example and places, for
    people; ``content`` is what the id covers beside kind, subject and sentence.
    """

    way: Direction
    kind: str
    subject: str
    sentence: str
    lines: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    content: Any = None
    files: frozenset[str] = frozenset()
    example: Any = field(default=None, compare=False)

    @property
    def id(self) -> str:
        """Its short name; the same for the same change, another for any other."""
        said = [self.way.value, self.kind, self.subject, self.sentence, list(self.policies), self.content]
        raw = _in_order(said).encode()
        return hashlib.sha256(b"countersign/finding/v1\n" + raw).hexdigest()[:_ID_DIGITS]

    def to_json(self) -> dict[str, Any]:
        """The finding for machines."""
        names = ("kind", "subject", "sentence", "lines", "policies", "example")
        told = {name: getattr(self, name) for name in names}
        return {"id": self.id, "way": self.way.value, **told, "files": sorted(self.files)}

    def to_text(self) -> str:
        """The finding for people, its lines indented below it."""
        name = f"[{self.id}] " if self.way is Direction.LOOSENING else ""
        return "\n".join(
            [f"  {name}{self.subject}: {self.sentence}", *(f"      {line}" for line in self.lines)]
        )


def exact_json(value: Any) -> str:
    """A value to compare: Python calls `1` and `true` equal, and JSON does not."""
    return json.dumps(value, sort_keys=True)


def short_json(value: Any, most: int = 120) -> str:
    """A value as JSON, cut where it is longer."""
    text = exact_json(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def select_direction(findings: Iterable[Finding], way: Direction) -> list[Finding]:
    """Those that go this way, in order, each once."""
    return list({finding.id: finding for finding in findings if finding.way is way}.values())


@dataclass(frozen=True, slots=True)
class Relaxation:
    """One way in which the second decision is laxer; ``kind`` is one word, ``words`` a few."""

    kind: str
    words: str


def find_relaxations(before: Decision, after: Decision) -> list[Relaxation]:
    """Everything in which ``after`` asks less than ``before``; empty when it asks as much or more."""
    if STRICTNESS[after.outcome] < STRICTNESS[before.outcome]:
        return [
            Relaxation(f"{before.outcome}-to-{after.outcome}", f"{before.outcome} becomes {after.outcome}")
        ]
    if after.outcome is not Verdict.REVIEW or before.outcome is not Verdict.REVIEW:
        return []
    found = _gates(merge(before.gates), merge(after.gates))
    if after.valid_for > before.valid_for:
        found.append(
            Relaxation("valid_for", f"a release is valid for {after.valid_for} instead of {before.valid_for}")
        )
    return list(dict.fromkeys(found))


def find_restrictions(before: Decision, after: Decision) -> list[Relaxation]:
    """Everything in which ``after`` asks more than ``before``, in its own words."""
    if before.outcome is not after.outcome:
        words = f"{before.outcome} becomes {after.outcome}"
        return (
            [Relaxation(f"{before.outcome}-to-{after.outcome}", words)]
            if find_relaxations(after, before)
            else []
        )
    return [Relaxation(each.kind, f"more is asked ({each.kind})") for each in find_relaxations(after, before)]


def describe_review(decision: Decision) -> str:
    """Whom a review asks, in words."""
    return " and ".join(_gate_words(gate) for gate in merge(decision.gates)) or "nobody"


def _gate_words(gate: MergedGate) -> str:
    extras = [gate.step_up] if gate.step_up else []
    extras += ["shared"] if gate.shared else []
    extras += ["with a reason"] if gate.reason else []
    return " ".join([str(gate.quorum), "of", gate.key, *(f"({extra})" for extra in extras)])


def _gates(before: Sequence[MergedGate], after: Sequence[MergedGate]) -> list[Relaxation]:
    served = _served(before, after)
    found: list[Relaxation] = []
    for gate in before:
        partner = served.get(gate.key)
        if partner is None:
            what = ", ".join(_gate_words(each) for each in after)
            found.append(Relaxation("groups", f"{_gate_words(gate)} are not asked any more, only {what}"))
        else:
            found += _weaker(gate, partner)
    return found


def _served(before: Sequence[MergedGate], after: Sequence[MergedGate]) -> dict[str, MergedGate]:
    """For each earlier question the later one that stands for it: no later one stands for two."""
    taken: dict[str, str] = {}  # later key -> earlier key
    for gate in sorted(before, key=lambda one: one.key not in {each.key for each in after}):
        _place(gate, before, after, taken, set())
    by_key = {gate.key: gate for gate in after}
    return {earlier: by_key[later] for later, earlier in taken.items()}


def _place(
    gate: MergedGate,
    before: Sequence[MergedGate],
    after: Sequence[MergedGate],
    taken: dict[str, str],
    tried: set[str],
) -> bool:
    """One step of a bipartite matching; the question of the very same groups is tried first."""
    fitting = [each for each in after if each.groups <= gate.groups]
    for later in sorted(fitting, key=lambda each: each.key != gate.key):
        if later.key in tried:
            continue
        tried.add(later.key)
        holder = next((each for each in before if each.key == taken.get(later.key)), None)
        if holder is None or _place(holder, before, after, taken, tried):
            taken[later.key] = gate.key
            return True
    return False


def _weaker(gate: MergedGate, now: MergedGate) -> list[Relaxation]:
    who, found = gate.key, []
    if now.quorum < gate.quorum:
        found.append(Relaxation("quorum", f"{now.quorum} instead of {gate.quorum} of {who} are enough"))
    if is_stronger_step_up(gate.step_up, now.step_up):
        found.append(Relaxation("step_up", f"{who} need not step up by {gate.step_up}"))
    if now.answer_within > gate.answer_within:
        found.append(
            Relaxation("answer_within", f"{who} are asked for {now.answer_within}, not {gate.answer_within}")
        )
    if gate.reason and not now.reason:
        found.append(Relaxation("reason", f"{who} need not give a reason"))
    if now.shared and not gate.shared:
        found.append(Relaxation("shared", f"a vote for {who} serves other questions too"))
    if wider := now.escalate - gate.escalate:
        found.append(Relaxation("escalate", f"escalation adds {', '.join(sorted(wider))} to {who}"))
    return found
