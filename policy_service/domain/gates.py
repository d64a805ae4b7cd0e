"""Approval gates, and how gates that fire together merge (design section 4, "Gates together").

A gate is a Cedar `forbid` with `@approval`. Gates with the same group set merge into one. The merged gate is never
laxer than its parts: it takes the highest quorum and step-up, the shortest times, a reason if any gate requires one,
sharing only if all gates share, and only the escalation groups that all gates name. Escalation adds voters to a merged
gate; it never causes another merge.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

DEFAULT_ANSWER_WITHIN: Final = timedelta(hours=24)
"""How long a review stays open when its gate sets no limit."""

DEFAULT_VALID_FOR: Final = timedelta(hours=1)
"""How long a release may be used when no gate sets a limit, or no gate fired."""

STEP_UPS: Final = ("passkey",)
"""The step-up methods, weakest first."""


@dataclass(frozen=True, slots=True)
class Gate:
    """One gate, as its policy annotations define it.

    Raises:
        ValueError: it names no group, or its quorum is below one, so that it could never or always be met.
    """

    policy_id: str
    groups: frozenset[str]
    quorum: int = 1
    step_up: str | None = None
    shared: bool = False
    answer_within: timedelta = DEFAULT_ANSWER_WITHIN
    valid_for: timedelta = DEFAULT_VALID_FOR
    reason: bool = False
    channel: str | None = None
    remind: timedelta | None = None
    escalate: frozenset[str] = frozenset()
    title: str = ""

    def __post_init__(self) -> None:
        name = self.policy_id
        if not self.groups:
            raise ValueError(
                f'gate {name!r} names no group, so no one could approve; write @approval("group")'
            )
        if type(self.quorum) is not int or self.quorum < 1:
            raise ValueError(f"gate {name!r} has the quorum {self.quorum!r}; the minimum is 1")
        if self.step_up is not None and self.step_up not in STEP_UPS:
            raise ValueError(
                f"gate {name!r} has the unknown step-up {self.step_up!r}; known are {', '.join(STEP_UPS)}"
            )

    def to_json(self) -> dict[str, Any]:
        """The gate as JSON, for storage."""
        return {
            "policy_id": self.policy_id,
            "groups": sorted(self.groups),
            "quorum": self.quorum,
            "step_up": self.step_up,
            "shared": self.shared,
            "answer_within": int(self.answer_within.total_seconds()),
            "valid_for": int(self.valid_for.total_seconds()),
            "reason": self.reason,
            "channel": self.channel,
            "remind": None if self.remind is None else int(self.remind.total_seconds()),
            "escalate": sorted(self.escalate),
            "title": self.title,
        }

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Gate:
        """Read what `to_json` wrote. Every field is required: a default could make a stored gate laxer."""
        return cls(
            policy_id=stored["policy_id"],
            groups=frozenset(stored["groups"]),
            quorum=stored["quorum"],
            step_up=stored["step_up"],
            shared=stored["shared"],
            answer_within=timedelta(seconds=stored["answer_within"]),
            valid_for=timedelta(seconds=stored["valid_for"]),
            reason=stored["reason"],
            channel=stored["channel"],
            remind=None if stored["remind"] is None else timedelta(seconds=stored["remind"]),
            escalate=frozenset(stored["escalate"]),
            title=stored["title"],
        )


@dataclass(frozen=True, slots=True)
class MergedGate:
    """The combined requirements of all fired gates with one group set."""

    gates: tuple[str, ...]
    groups: frozenset[str]
    quorum: int
    step_up: str | None
    shared: bool
    answer_within: timedelta
    valid_for: timedelta
    reason: bool
    channels: tuple[str, ...]
    remind: timedelta | None
    escalate: frozenset[str]
    added: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        """Its name within a review: the groups as written, without groups that escalation added."""
        return "|".join(sorted(self.groups))

    @property
    def voters(self) -> frozenset[str]:
        """The groups whose members may vote on it now."""
        return self.groups | self.added

    def escalated(self) -> MergedGate:
        """The same gate after escalation: more voters, no other change."""
        return replace(self, added=self.escalate)


def merge(gates: Iterable[Gate], escalated: Container[str] = ()) -> tuple[MergedGate, ...]:
    """Merge fired gates: one merged gate for each group set, in the order of their first gate.

    ``escalated`` holds the keys of merged gates that have escalated. A gate that fires later on the same groups removes
    any escalation group it does not name itself.
    """
    by_groups: dict[frozenset[str], list[Gate]] = {}
    for gate in gates:
        by_groups.setdefault(gate.groups, []).append(gate)
    merged = (_merged(same) for same in by_groups.values())
    return tuple(gate.escalated() if gate.key in escalated else gate for gate in merged)


def satisfies_step_up(have: str | None, required: str | None) -> bool:
    """Whether a step-up is at least as strong as the required one. An unknown method never is."""
    return required is None or (have in STEP_UPS and _strength(have) >= _strength(required))


def is_stronger_step_up(have: str | None, than: str | None) -> bool:
    """Whether a step-up satisfies a requirement that the other one does not. An unknown method never does."""
    return have in STEP_UPS and not satisfies_step_up(than, have)


def _merged(same: Sequence[Gate]) -> MergedGate:
    return MergedGate(
        gates=_unique(gate.policy_id for gate in same),
        groups=same[0].groups,
        quorum=max(gate.quorum for gate in same),
        step_up=max((gate.step_up for gate in same), key=_strength),
        shared=all(gate.shared for gate in same),
        answer_within=min(gate.answer_within for gate in same),
        valid_for=min(gate.valid_for for gate in same),
        reason=any(gate.reason for gate in same),
        channels=_unique(gate.channel for gate in same if gate.channel is not None),
        remind=min((gate.remind for gate in same if gate.remind is not None), default=None),
        escalate=frozenset.intersection(*(gate.escalate for gate in same)),
    )


def _unique(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))


def _strength(step_up: str | None) -> int:
    return 0 if step_up is None else 1 + STEP_UPS.index(step_up)
