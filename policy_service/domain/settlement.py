"""What a transaction is, given what its effects are. Pure; the only place where the two state tables meet.

Rules: one effect that waits makes the transaction wait; it is ready only when every effect may be released; once spent
it stays open until every outcome is known; it is settled when the outcomes agree (all fired, or nothing left standing),
ended when nothing fired, and unsettled when a person is needed: an unknown, of a compensation too, a failed
compensation, or something that fired beside something that did not and cannot be taken back. What a person left
standing needs nobody any more. What failed and may, by its reviewed manifest, agrees with any other outcome. A read
that fired changed nothing, so nothing of it stands.

What a person may answer to a task, and what each answer makes of the effect. Pure; the one table of it.

Rules: an answer moves an effect only where the contract's table leads (what was spent and did not happen has failed,
what never was is unused); what is terminal stays so, and a finding that contradicts it stands beside it; an answer that
does not belong to a kind of task is none.
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
    """One forward effect, as far as settling cares."""

    state: EffectState
    can_compensate: bool
    compensation_unknown: bool = False  # it is compensating, and nobody knows whether that has happened
    left_standing: bool = False  # it fired, should not have, and a person settled that it stays
    may_fail: bool = False  # people agreed that it may be missing: failed, it says nothing about the others
    reads: bool = False  # its reviewed manifest is in the group of tools that change nothing

    @property
    def failed_optionally(self) -> bool:
        """Whether it is known not to have acted, and stops no other."""
        return self.may_fail and self.state is EffectState.FAILED

    @property
    def completed_read(self) -> bool:
        """Whether it fired, and there is nothing to take back."""
        return self.reads and self.state is EffectState.FIRED and not self.can_compensate


def transaction_state(parts: Sequence[EffectStatus]) -> TxnState:
    """The state of a transaction with these effects.

    Raises:
        ValueError: there are no effects; a transaction without any does not exist.
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
    """Whether something fired beside something that did not, and has no compensation: only a person can settle it."""
    return has_missing_effect(parts) and any(needs_manual_decision(part) for part in parts)


def has_missing_effect(parts: Sequence[EffectStatus]) -> bool:
    """Whether something is missing that people did not agree may be missing: then what fired is taken back."""
    return any(part.state in _WITHOUT_EFFECT and not part.failed_optionally for part in parts)


def needs_manual_decision(part: EffectStatus) -> bool:
    """Whether this fired, has no compensation, and nobody has said yet that it stays."""
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
"""The answers each kind of task takes."""

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
    """Whether a task of this kind still has something to settle about an effect in this state."""
    return kind not in _OPEN_STATE or _OPEN_STATE[kind] is state


def transitions_for(state: EffectState, answer: TaskAnswer, *, spent: bool) -> tuple[EffectState, ...]:
    """Where an answer leads an effect, step by step; nowhere, where only the word is kept.

    A withdrawal is not among them: it ends a whole transaction, by its own verb.
    """
    if answer is _A.FIRED:
        return (_E.FIRED,)
    if answer is _A.NOT_FIRED:
        return (_E.FAILED,) if spent else (_E.UNUSED,)
    if answer is _A.COMPENSATED:
        return (_E.COMPENSATED,) if state is _E.COMPENSATION_FAILED else (_E.COMPENSATING, _E.COMPENSATED)
    return ()
