"""The states of effects and transactions, and their transitions (design section 7).

Each table is applied by one function on each side. Terminal states absorb (I-6). The SDK's journal has its own table
with `staged` and `firing`, which the service never sees.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from .errors import IllegalTransitionError


class EffectState(StrEnum):
    """The state of one revision of an effect on the service."""

    REVIEW = "review"
    RELEASED = "released"
    DENIED = "denied"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    REVOKED = "revoked"
    REDEEMED = "redeemed"
    FIRED = "fired"
    FAILED = "failed"
    UNKNOWN = "unknown"
    UNUSED = "unused"
    COMPENSATING = "compensating"
    COMPENSATED = "compensated"
    COMPENSATION_FAILED = "compensation_failed"


ENDED_UNREDEEMED: Final = frozenset(
    {EffectState.DENIED, EffectState.EXPIRED, EffectState.WITHDRAWN, EffectState.REVOKED}
)
"""Ended without redemption: such an effect cannot have fired."""


class TxnState(StrEnum):
    """The state of a transaction, derived from its effects."""

    REVIEW = "review"
    READY = "ready"
    REDEEMED = "redeemed"
    SETTLED = "settled"
    UNSETTLED = "unsettled"
    ENDED = "ended"


class Outcome(StrEnum):
    """The reported outcome of a redeemed effect."""

    FIRED = "fired"
    FAILED = "failed"
    UNKNOWN = "unknown"
    UNUSED = "unused"
    COMPENSATED = "compensated"
    COMPENSATION_FAILED = "compensation_failed"


class Mode(StrEnum):
    """How a release was granted."""

    AUTO = "auto"
    REVIEW = "review"
    GRANT = "grant"
    BREAK_GLASS = "break_glass"


class Verdict(StrEnum):
    """The policy's answer for one effect."""

    RELEASE = "release"
    REVIEW = "review"
    DENY = "deny"


class TaskKind(StrEnum):
    """What a task asks a person to settle."""

    UNKNOWN = "unknown"
    RESTORED = "restored"
    COMPENSATION_FAILED = "compensation_failed"
    COMPENSATION_DUE = "compensation_due"
    STANDING = "standing"
    CONTRADICTION = "contradiction"
    IMPOSSIBLE_QUORUM = "impossible_quorum"
    BREAK_GLASS_REVIEW = "break_glass_review"


class TaskAnswer(StrEnum):
    """A person's answer to a task. The service's table lists the answers that each kind accepts."""

    FIRED = "fired"
    NOT_FIRED = "not_fired"
    COMPENSATED = "compensated"
    LEFT_STANDING = "left_standing"
    RECORD_HOLDS = "record_holds"
    REPORT_HOLDS = "report_holds"
    WITHDRAWN = "withdrawn"
    LEFT_WAITING = "left_waiting"
    JUSTIFIED = "justified"
    NOT_JUSTIFIED = "not_justified"


_E = EffectState
_T = TxnState

EFFECT_TRANSITIONS: Final[Mapping[EffectState, frozenset[EffectState]]] = MappingProxyType(
    {
        # to unknown only by `policy-service restored`
        _E.REVIEW: frozenset({_E.RELEASED, _E.DENIED, _E.EXPIRED, _E.WITHDRAWN, _E.REVOKED, _E.UNKNOWN}),
        # back to review when a policy or a vote is no longer valid; to unknown as above
        _E.RELEASED: frozenset(
            {_E.REDEEMED, _E.REVIEW, _E.DENIED, _E.EXPIRED, _E.WITHDRAWN, _E.REVOKED, _E.UNKNOWN}
        ),
        _E.REDEEMED: frozenset({_E.FIRED, _E.FAILED, _E.UNKNOWN, _E.UNUSED}),
        # by a late report, a probe, a retry or a person
        _E.UNKNOWN: frozenset({_E.FIRED, _E.FAILED, _E.UNUSED}),
        _E.FIRED: frozenset({_E.COMPENSATING}),
        _E.COMPENSATING: frozenset({_E.COMPENSATED, _E.COMPENSATION_FAILED}),
        # by a person
        _E.COMPENSATION_FAILED: frozenset({_E.COMPENSATED}),
        _E.DENIED: frozenset(),
        _E.EXPIRED: frozenset(),
        _E.WITHDRAWN: frozenset(),
        _E.REVOKED: frozenset(),
        _E.UNUSED: frozenset(),
        _E.FAILED: frozenset(),
        _E.COMPENSATED: frozenset(),
    }
)

TXN_TRANSITIONS: Final[Mapping[TxnState, frozenset[TxnState]]] = MappingProxyType(
    {
        # unsettled from here and from ready only by `policy-service restored`
        _T.REVIEW: frozenset({_T.READY, _T.ENDED, _T.UNSETTLED}),
        _T.READY: frozenset({_T.REDEEMED, _T.REVIEW, _T.ENDED, _T.UNSETTLED}),
        _T.REDEEMED: frozenset({_T.SETTLED, _T.UNSETTLED, _T.ENDED}),
        # a compensation that starts late and fails
        _T.SETTLED: frozenset({_T.UNSETTLED}),
        # ended when the unknown turns out not to have happened
        _T.UNSETTLED: frozenset({_T.SETTLED, _T.ENDED}),
        _T.ENDED: frozenset(),
    }
)

TERMINAL: Final[frozenset[EffectState]] = frozenset(
    state for state, moves in EFFECT_TRANSITIONS.items() if not moves
)
"""Terminal effect states (I-6)."""


def can_transition(frm: EffectState | TxnState, to: EffectState | TxnState) -> bool:
    """Whether the table contains this transition; never between states of different kinds."""
    if isinstance(frm, EffectState):
        return isinstance(to, EffectState) and to in EFFECT_TRANSITIONS[frm]
    return isinstance(to, TxnState) and to in TXN_TRANSITIONS[frm]


def require_transition(frm: EffectState | TxnState, to: EffectState | TxnState) -> None:
    """Refuse a transition that the table does not contain.

    Raises:
        IllegalTransitionError: `illegal_state`.
    """
    if not can_transition(frm, to):
        raise IllegalTransitionError(
            "illegal_state", f"{frm.value!r} does not move to {to.value!r}; reload and look again"
        )
