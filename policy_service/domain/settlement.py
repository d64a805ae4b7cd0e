"""What a transaction is, given what its effects are. Pure; the only place where the two state tables meet.

Rules: one effect that waits makes the transaction wait; it is ready only when every effect may be released; once spent
it stays open until every outcome is known; it is settled when the outcomes agree (all fired, or nothing left standing),
ended when nothing fired, and unsettled when a person is needed: an unknown, of a compensation too, a failed
compensation, or something that fired beside something that did not and cannot be taken back. What a person left
standing needs nobody any more. What failed and may, by its reviewed manifest, agrees with any other outcome. A read
that fired changed nothing, so nothing of it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from countersign.contract import ENDED_UNSPENT, EffectState, TxnState

_NOTHING_STANDS = ENDED_UNSPENT | {EffectState.UNUSED, EffectState.FAILED, EffectState.COMPENSATED}
_NEEDS_A_PERSON = frozenset({EffectState.UNKNOWN, EffectState.COMPENSATION_FAILED})
_OPEN_OUTCOME = frozenset({EffectState.REDEEMED, EffectState.COMPENSATING})


@dataclass(frozen=True)
class Part:
    """One forward effect, as far as settling cares."""

    state: EffectState
    can_compensate: bool
    compensation_unknown: bool = False  # it is compensating, and nobody knows whether that has happened
    left_standing: bool = False  # it fired, should not have, and a person settled that it stays
    may_fail: bool = False  # people agreed that it may be missing: failed, it says nothing about the others
    reads: bool = False  # its reviewed manifest is in the group of tools that change nothing

    @property
    def failed_as_it_may(self) -> bool:
        """Whether it is known not to have acted, and stops no other."""
        return self.may_fail and self.state is EffectState.FAILED

    @property
    def has_read(self) -> bool:
        """Whether it fired, and there is nothing to take back."""
        return self.reads and self.state is EffectState.FIRED and not self.can_compensate


def state_of_transaction(parts: Sequence[Part]) -> TxnState:
    """The state of a transaction with these effects.

    Raises:
        ValueError: there are no effects; a transaction without any does not exist.
    """
    if not parts:
        raise ValueError("a transaction has at least one effect")
    states = {part.state for part in parts}
    if states & ENDED_UNSPENT and not states & (_OPEN_OUTCOME | _NEEDS_A_PERSON | {EffectState.FIRED}):
        return TxnState.ENDED
    if EffectState.REVIEW in states:
        return TxnState.REVIEW
    if states == {EffectState.RELEASED}:
        return TxnState.READY
    return _after_redemption(parts)


def _after_redemption(parts: Sequence[Part]) -> TxnState:
    left = {part.state for part in parts if not (part.left_standing or part.has_read)}
    if left & _NEEDS_A_PERSON or any(part.compensation_unknown for part in parts):
        return TxnState.UNSETTLED
    if left & _OPEN_OUTCOME:
        return TxnState.REDEEMED
    if {part.state for part in parts if not part.failed_as_it_may} == {EffectState.FIRED}:
        return TxnState.SETTLED
    if EffectState.FIRED in left:
        return TxnState.UNSETTLED if stands_for_good(parts) else TxnState.REDEEMED
    stood = {part.state for part in parts if not part.has_read} - (
        _NOTHING_STANDS - {EffectState.COMPENSATED}
    )
    return TxnState.SETTLED if stood else TxnState.ENDED


def stands_for_good(parts: Sequence[Part]) -> bool:
    """Whether something fired beside something that did not, and has no compensation: only a person can settle it."""
    return did_not_go_through(parts) and any(needs_a_word(part) for part in parts)


def did_not_go_through(parts: Sequence[Part]) -> bool:
    """Whether something is missing that people did not agree may be missing: then what fired is taken back."""
    return any(part.state in _NOTHING_STANDS and not part.failed_as_it_may for part in parts)


def needs_a_word(part: Part) -> bool:
    """Whether this fired, has no compensation, and nobody has said yet that it stays."""
    fired_for_good = part.state is EffectState.FIRED and not part.can_compensate
    return fired_for_good and not part.left_standing and not part.has_read
