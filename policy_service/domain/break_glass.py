"""When people may open what a gate holds without the people it asks: a pure function of (gates, signatures).

Rules kept here: two different people who may, or one who may do so alone; each with the step-up that every gate asks;
nobody of the requester's side. It stands in for the gates' quorums and for nothing else: a deny of policy's or of a
person's wins, and whoever counts it asks for that first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from policy_service.domain.gates import MergedGate, step_up_suffices

VALID_FOR: Final = timedelta(minutes=15)
"""How long a release may be used at most that came to be so: an emergency is over by then, or is none."""


@dataclass(frozen=True, slots=True)
class Signature:
    """One person's, with what policy says of them now."""

    vote_id: str
    person: str
    step_up: str | None
    may: bool  # as one of two
    alone: bool


@dataclass(frozen=True, slots=True)
class Opening:
    """The signatures an effect is opened by. Alone, it owes a review afterwards."""

    vote_ids: tuple[str, ...]
    alone: bool


def opening(
    gates: Sequence[MergedGate], signatures: Sequence[Signature], *, excluded: frozenset[str] = frozenset()
) -> Opening | None:
    """What these signatures, in the order they were given, come to; None while they are not enough."""
    by_person: dict[str, Signature] = {}
    for signature in signatures:
        proved = all(step_up_suffices(signature.step_up, gate.step_up) for gate in gates)
        if gates and proved and signature.person not in excluded and (signature.may or signature.alone):
            by_person.setdefault(signature.person, signature)
    signed = tuple(by_person.values())
    if len(signed) > 1:
        return Opening(tuple(signature.vote_id for signature in signed), alone=False)
    return next((Opening((one.vote_id,), alone=True) for one in signed if one.alone), None)
