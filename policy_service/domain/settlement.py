"""The state of a transaction, derived from its effects; and what each answer to a task does to an effect. Pure.

A transaction waits while one effect waits, and is ready when every effect may be released. Once redeemed it stays open
until every outcome is known. It is settled if the outcomes agree: all fired, or everything that fired was compensated.
It is ended if nothing fired. It is unsettled if a person is needed: for an unknown outcome (also of a compensation), a
failed compensation, or a fired effect without a compensation next to an effect that did not fire.

An effect that a person decided to keep needs no further decision. A failed effect whose manifest allows failure agrees
with any outcome. A read that fired leaves nothing to undo.

An answer moves an effect only along the contract's state table. A terminal state stays: a contradicting finding is
recorded next to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from countersign.contract import ENDED_UNREDEEMED, EffectState, TaskAnswer, TaskKind, TxnState

_WITHOUT_EFFECT = ENDED_UNREDEEMED | {EffectState.UNUSED, EffectState.FAILED, EffectState.COMPENSATED}
_NEEDS_PERSON = frozenset({EffectState.UNKNOWN, EffectState.COMPENSATION_FAILED})
_OPEN_OUTCOME = frozenset({EffectState.REDEEMED, EffectState.COMPENSATING})


@dataclass(frozen=True)
class EffectStatus:
    """One forward effect, reduced to what determines the transaction's state."""

    state: EffectState
    can_compensate: bool
    compensation_unknown: bool = False  # its compensation was redeemed, with an unknown outcome
    left_standing: bool = False  # a person decided to keep it although others did not fire
    may_fail: bool = False  # its manifest allows failure without affecting the other effects
    reads: bool = False  # its manifest says that the tool changes nothing

    @property
    def failed_optionally(self) -> bool:
        """Whether it failed as its manifest allows."""
        return self.may_fail and self.state is EffectState.FAILED

    @property
    def completed_read(self) -> bool:
        """Whether it is a read that fired, so there is nothing to undo."""
        return self.reads and self.state is EffectState.FIRED and not self.can_compensate


def transaction_state(parts: Sequence[EffectStatus]) -> TxnState:
    """The state of a transaction with these effects.

    Raises:
        ValueError: there are no effects.
    """
    if not parts:
        raise ValueError("a transaction has at least one effect")
    states = {part.state for part in parts}
    if states & ENDED_UNREDEEMED and not states & (_OPEN_OUTCOME | _NEEDS_PERSON | {EffectState.FIRED}):
        return TxnState.ENDED
    if EffectState.REVIEW in states:
        return TxnState.REVIEW
    if states == {EffectState.RELEASED}:
        return TxnState.READY
    return _after_redemption(parts)


def _after_redemption(parts: Sequence[EffectStatus]) -> TxnState:
    left = {part.state for part in parts if not (part.left_standing or part.completed_read)}
    if left & _NEEDS_PERSON or any(part.compensation_unknown for part in parts):
        return TxnState.UNSETTLED
    if left & _OPEN_OUTCOME:
        return TxnState.REDEEMED
    if {part.state for part in parts if not part.failed_optionally} == {EffectState.FIRED}:
        return TxnState.SETTLED
    if EffectState.FIRED in left:
        return TxnState.UNSETTLED if needs_manual_settlement(parts) else TxnState.REDEEMED
    stood = {part.state for part in parts if not part.completed_read} - (
        _WITHOUT_EFFECT - {EffectState.COMPENSATED}
    )
    return TxnState.SETTLED if stood else TxnState.ENDED


def needs_manual_settlement(parts: Sequence[EffectStatus]) -> bool:
    """Whether an effect fired that cannot be compensated, while another did not fire: only a person can settle it."""
    return has_missing_effect(parts) and any(needs_manual_decision(part) for part in parts)


def has_missing_effect(parts: Sequence[EffectStatus]) -> bool:
    """Whether an effect that was required did not fire, so that the fired ones are to be compensated."""
    return any(part.state in _WITHOUT_EFFECT and not part.failed_optionally for part in parts)


def needs_manual_decision(part: EffectStatus) -> bool:
    """Whether an effect fired, cannot be compensated, and no person has decided to keep it."""
    fired_for_good = part.state is EffectState.FIRED and not part.can_compensate
    return fired_for_good and not part.left_standing and not part.completed_read


_E, _K, _A = EffectState, TaskKind, TaskAnswer

ANSWERS: Final[Mapping[TaskKind, tuple[TaskAnswer, ...]]] = MappingProxyType(
    {
        _K.UNKNOWN: (_A.FIRED, _A.NOT_FIRED),
        _K.RESTORED: (_A.FIRED, _A.NOT_FIRED),
        _K.COMPENSATION_FAILED: (_A.COMPENSATED, _A.LEFT_STANDING),
        _K.COMPENSATION_DUE: (_A.COMPENSATED, _A.LEFT_STANDING),
        _K.STANDING: (_A.COMPENSATED, _A.LEFT_STANDING),
        _K.CONTRADICTION: (_A.RECORD_HOLDS, _A.REPORT_HOLDS),
        _K.IMPOSSIBLE_QUORUM: (_A.WITHDRAWN, _A.LEFT_WAITING),
        _K.BREAK_GLASS_REVIEW: (_A.JUSTIFIED, _A.NOT_JUSTIFIED),
    }
)
"""The answers each kind of task accepts."""

_OPEN_STATE: Final[Mapping[TaskKind, EffectState]] = MappingProxyType(
    {
        _K.UNKNOWN: _E.UNKNOWN,
        _K.RESTORED: _E.UNKNOWN,
        _K.COMPENSATION_FAILED: _E.COMPENSATION_FAILED,
        _K.COMPENSATION_DUE: _E.FIRED,
        _K.STANDING: _E.FIRED,
        _K.IMPOSSIBLE_QUORUM: _E.REVIEW,
    }
)


def applies_to(kind: TaskKind, state: EffectState) -> bool:
    """Whether a task of this kind still applies to an effect in this state."""
    return kind not in _OPEN_STATE or _OPEN_STATE[kind] is state


def transitions_for(state: EffectState, answer: TaskAnswer, *, spent: bool) -> tuple[EffectState, ...]:
    """The transitions that an answer causes, in order; empty if the answer is only recorded.

    A withdrawal is not among them, because it ends the whole transaction.
    """
    if answer is _A.FIRED:
        return (_E.FIRED,)
    if answer is _A.NOT_FIRED:
        return (_E.FAILED,) if spent else (_E.UNUSED,)
    if answer is _A.COMPENSATED:
        return (_E.COMPENSATED,) if state is _E.COMPENSATION_FAILED else (_E.COMPENSATING, _E.COMPENSATED)
    return ()
