"""Findings of a bundle diff, and the ways in which one decision is laxer than another on the same call.

A finding's id is the digest of all its content, so an acknowledgement never covers a later change. What cannot be
classified is a loosening. Deny is stricter than review, and review than release. A gate for the same groups is laxer
with a lower quorum, a weaker step-up, longer times, no reason, more sharing or wider escalation. A gate for other
groups is laxer unless groups were only removed. Every gate of the first decision needs a gate of its own in the second.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import Any, Final

from countersign.contract import Verdict
from policy_service.domain.gates import MergedGate, is_stronger_step_up, merge
from policy_service.domain.policy_request import Decision
from policy_service.pap.policy_tests.runner import STRICTNESS

_ID_DIGITS: Final = 12


class Direction(StrEnum):
    """The direction of a change: laxer, to be reviewed, or stricter."""

    LOOSENING = "loosening"
    LOOK = "look"
    TIGHTENING = "tightening"


def _in_order(value: Any) -> str:
    """Canonical JSON: the order of a set differs between processes."""
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
    """One change. ``subject`` is what changed (a tool, a group, a file), ``lines`` show an example and places.

    The id covers ``content`` in addition to direction, kind, subject, sentence and policies.
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
        """A short digest of the change, for acknowledgements."""
        content = [self.way.value, self.kind, self.subject, self.sentence, list(self.policies), self.content]
        raw = _in_order(content).encode()
        return hashlib.sha256(b"countersign/finding/v1\n" + raw).hexdigest()[:_ID_DIGITS]

    def to_json(self) -> dict[str, Any]:
        """The finding for machines."""
        names = ("kind", "subject", "sentence", "lines", "policies", "example")
        values = {name: getattr(self, name) for name in names}
        return {"id": self.id, "way": self.way.value, **values, "files": sorted(self.files)}

    def to_text(self) -> str:
        """The finding for people, with its lines indented below."""
        name = f"[{self.id}] " if self.way is Direction.LOOSENING else ""
        return "\n".join(
            [f"  {name}{self.subject}: {self.sentence}", *(f"      {line}" for line in self.lines)]
        )


def file_finding(
    way: Direction, kind: str, subject: str, sentence: str, files: Collection[str], content: Any = None
) -> Finding:
    """A finding about whole files, which its lines name."""
    lines = tuple(f"in {file}" for file in sorted(files))
    return Finding(way, kind, subject, sentence, lines, content=content, files=frozenset(files))


def exact_json(value: Any) -> str:
    """A value as comparable JSON: Python treats `1` and `true` as equal, JSON does not."""
    return json.dumps(value, sort_keys=True)


def short_json(value: Any, most: int = 120) -> str:
    """A value as JSON, truncated."""
    text = exact_json(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def select_direction(findings: Iterable[Finding], way: Direction) -> list[Finding]:
    """The findings of one direction, in order, without duplicates."""
    return list({finding.id: finding for finding in findings if finding.way is way}.values())


@dataclass(frozen=True, slots=True)
class Relaxation:
    """One way in which the second decision is laxer; ``kind`` is one word, ``words`` a sentence."""

    kind: str
    words: str


def find_relaxations(before: Decision, after: Decision) -> list[Relaxation]:
    """Every way in which ``after`` is laxer than ``before``."""
    if STRICTNESS[after.outcome] < STRICTNESS[before.outcome]:
        return [_outcome_change(before, after)]
    if after.outcome is not Verdict.REVIEW or before.outcome is not Verdict.REVIEW:
        return []
    found = _gates(merge(before.gates), merge(after.gates))
    if after.valid_for > before.valid_for:
        words = f"a release is valid for {after.valid_for} instead of {before.valid_for}"
        found.append(Relaxation("valid_for", words))
    return list(dict.fromkeys(found))


def find_restrictions(before: Decision, after: Decision) -> list[Relaxation]:
    """Every way in which ``after`` is stricter than ``before``."""
    laxer = find_relaxations(after, before)
    if before.outcome is not after.outcome:
        return [_outcome_change(before, after)] if laxer else []
    return [Relaxation(each.kind, f"more is asked ({each.kind})") for each in laxer]


def _outcome_change(before: Decision, after: Decision) -> Relaxation:
    old, new = before.outcome, after.outcome
    return Relaxation(f"{old}-to-{new}", f"{old} becomes {new}")


def describe_review(decision: Decision) -> str:
    """The gates of a review, for people."""
    return " and ".join(_gate_words(gate) for gate in merge(decision.gates)) or "no people"


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
    """Match each earlier gate with a later one that replaces it; no later gate replaces two."""
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
    """One step of a bipartite matching; a gate with the same groups is tried first."""
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
    who, wider = gate.key, ", ".join(sorted(now.escalate - gate.escalate))
    weaker_step_up = is_stronger_step_up(gate.step_up, now.step_up)
    longer = now.answer_within > gate.answer_within
    ways = (
        (now.quorum < gate.quorum, "quorum", f"{now.quorum} instead of {gate.quorum} of {who} are enough"),
        (weaker_step_up, "step_up", f"{who} need not step up by {gate.step_up}"),
        (longer, "answer_within", f"{who} are asked for {now.answer_within}, not {gate.answer_within}"),
        (gate.reason and not now.reason, "reason", f"{who} need not give a reason"),
        (now.shared and not gate.shared, "shared", f"a vote for {who} serves other questions too"),
        (wider, "escalate", f"escalation adds {wider} to {who}"),
    )
    return [Relaxation(kind, words) for is_laxer, kind, words in ways if is_laxer]
