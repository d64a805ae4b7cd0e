"""What a gate asks for, and what several gates that fired together ask for (design section 4, "Gates
together").

A gate is a forbid with `@approval`: "forbidden until these people agree". Rules kept here: gates with the
same group set merge, and the merged gate is never laxer than any of its parts: quorum and step-up the
highest, times the shortest, a reason if any asks, shared only if all say so, escalation only to groups all
name. Merging happens once, on the sets as written; escalation adds voters to a merged gate and never merges
again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

DEFAULT_ANSWER_WITHIN: Final = timedelta(hours=24)
"""How long a question stays open when its gate does not say."""

DEFAULT_VALID_FOR: Final = timedelta(hours=1)
"""How long a release may be used when no gate says, also where no gate fired."""

STEP_UPS: Final = ("passkey",)
"""Ways a person may have to prove themselves anew for one vote, weakest first."""


@dataclass(frozen=True, slots=True)
class Gate:
    """One gate as its annotations say.

    Raises:
        ValueError: it names no group, or its quorum is below one: such a gate would be met by nobody's vote.
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
        _require_valid_gate(self.policy_id, self.groups, self.quorum, self.step_up)

    def to_json(self) -> dict[str, Any]:
        """The gate as it is stored beside the revision it fired on."""
        return {
            "policy_id": self.policy_id,
            "groups": sorted(self.groups),
            "quorum": self.quorum,
            "step_up": self.step_up,
            "shared": self.shared,
            "answer_within": _seconds(self.answer_within),
            "valid_for": _seconds(self.valid_for),
            "reason": self.reason,
            "channel": self.channel,
            "remind": _seconds(self.remind),
            "escalate": sorted(self.escalate),
            "title": self.title,
        }

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Gate:
        """The gate that `to_json` wrote; every field must be there."""
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
            remind=_duration(stored["remind"]),
            escalate=frozenset(stored["escalate"]),
            title=stored["title"],
        )


@dataclass(frozen=True, slots=True)
class MergedGate:
    """What all fired gates of one group set ask for together."""

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

    def __post_init__(self) -> None:
        _require_valid_gate(self.key, self.groups, self.quorum, self.step_up)

    @property
    def key(self) -> str:
        """Its name within a review: the groups as written, whatever escalation added."""
        return "|".join(sorted(self.groups))

    @property
    def voters(self) -> frozenset[str]:
        """The groups whose people may serve it now."""
        return self.groups | self.added

    def escalated(self) -> MergedGate:
        """The same gate after nobody answered: more voters, nothing else."""
        return replace(self, added=self.escalate)

    def to_json(self) -> dict[str, Any]:
        """The merged gate as it is stored."""
        return {
            "gates": list(self.gates),
            "groups": sorted(self.groups),
            "quorum": self.quorum,
            "step_up": self.step_up,
            "shared": self.shared,
            "answer_within": _seconds(self.answer_within),
            "valid_for": _seconds(self.valid_for),
            "reason": self.reason,
            "channels": list(self.channels),
            "remind": _seconds(self.remind),
            "escalate": sorted(self.escalate),
            "added": sorted(self.added),
        }

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> MergedGate:
        """The merged gate that `to_json` wrote; every field must be there."""
        return cls(
            gates=tuple(stored["gates"]),
            groups=frozenset(stored["groups"]),
            quorum=stored["quorum"],
            step_up=stored["step_up"],
            shared=stored["shared"],
            answer_within=timedelta(seconds=stored["answer_within"]),
            valid_for=timedelta(seconds=stored["valid_for"]),
            reason=stored["reason"],
            channels=tuple(stored["channels"]),
            remind=_duration(stored["remind"]),
            escalate=frozenset(stored["escalate"]),
            added=frozenset(stored["added"]),
        )


def merge(gates: Iterable[Gate], escalated: Container[str] = ()) -> tuple[MergedGate, ...]:
    """Everything the fired gates ask for, one merged gate per group set, in the order of their first gate.

    ``escalated``: the keys of those that ask their further groups as well by now. A gate that fires late on the same
    groups and names none of these takes them back: escalation is only to groups all name.
    """
    by_groups: dict[frozenset[str], list[Gate]] = {}
    for gate in gates:
        by_groups.setdefault(gate.groups, []).append(gate)
    merged = (_merged(same) for same in by_groups.values())
    return tuple(gate.escalated() if gate.key in escalated else gate for gate in merged)


def satisfies_step_up(have: str | None, asked: str | None) -> bool:
    """Whether a proof of presence is at least as strong as the one asked for; an unknown one never is."""
    return asked is None or (have in STEP_UPS and _strength(have) >= _strength(asked))


def is_stronger_step_up(have: str | None, than: str | None) -> bool:
    """Whether a proof of presence suffices where the other would not; an unknown one is never stronger."""
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


def _require_valid_gate(name: str, groups: frozenset[str], quorum: int, step_up: str | None) -> None:
    if not groups:
        raise ValueError(f'gate {name!r} names no group, so nobody could serve it; write @approval("group")')
    if type(quorum) is not int or quorum < 1:
        raise ValueError(f"gate {name!r} has the quorum {quorum!r}; a gate asks at least one person")
    if step_up is not None and step_up not in STEP_UPS:
        raise ValueError(f"gate {name!r} asks for step-up {step_up!r}; known are {', '.join(STEP_UPS)}")


def _seconds(duration: timedelta | None) -> int | None:
    return None if duration is None else int(duration.total_seconds())


def _duration(seconds: int | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
