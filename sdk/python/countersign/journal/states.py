"""The journal's states and the allowed transitions; `transition` (effects.py) is the one function that makes one.

The states are the service's (contract.states), with `staged` before them and `firing` between redeemed and its outcome.
The journal polls the service only now and then, so a transition may skip states in between. Terminal states absorb
(I-6). Live effects have three states of their own; the adapter, not the service, decides them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class LocalState(StrEnum):
    """The state of one effect, as far as this journal knows."""

    STAGED = "staged"
    REVIEW = "review"
    RELEASED = "released"
    DENIED = "denied"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    REVOKED = "revoked"
    REDEEMED = "redeemed"
    FIRING = "firing"
    FIRED = "fired"
    FAILED = "failed"
    UNKNOWN = "unknown"
    UNUSED = "unused"
    COMPENSATING = "compensating"
    COMPENSATED = "compensated"
    COMPENSATION_FAILED = "compensation_failed"
    LIVE = "live"
    KEPT = "kept"
    UNDONE = "undone"
    RELISTED = "relisted"


class LocalTxn(StrEnum):
    """The state of one transaction, as far as this journal knows."""

    STAGING = "staging"
    FROZEN = "frozen"
    REVIEW = "review"
    READY = "ready"
    REDEEMED = "redeemed"
    STOPPED = "stopped"  # its program was, before every effect had begun (stops_and_reruns.py)
    SETTLED = "settled"
    UNSETTLED = "unsettled"
    ENDED = "ended"
    CLOSED = "closed"  # by a person, who resolved partly kept work: finished, but not reported as done


IN_DOUBT: Final = frozenset({LocalState.FIRING, LocalState.UNKNOWN})
"""Begun, with an unknown outcome."""

_S = LocalState
_REFUSED: Final = frozenset({_S.DENIED, _S.EXPIRED, _S.WITHDRAWN, _S.REVOKED})

TRANSITIONS: Final[Mapping[LocalState, frozenset[LocalState]]] = MappingProxyType(
    {
        # relisted: its run began another list with the same call
        _S.STAGED: frozenset({_S.REVIEW, _S.RELEASED, _S.REDEEMED, _S.RELISTED}) | _REFUSED,
        _S.REVIEW: frozenset({_S.RELEASED, _S.REDEEMED}) | _REFUSED,
        # back to review when a policy or a vote no longer holds
        _S.RELEASED: frozenset({_S.REDEEMED, _S.REVIEW}) | _REFUSED,
        _S.REDEEMED: frozenset({_S.FIRING, _S.UNUSED}),
        # again firing: an idempotent tool, same call key, after a crash or a lost answer
        _S.FIRING: frozenset({_S.FIRING, _S.FIRED, _S.FAILED, _S.UNKNOWN}),
        _S.UNKNOWN: frozenset({_S.FIRED, _S.FAILED, _S.UNUSED}),
        _S.FIRED: frozenset({_S.COMPENSATING}),
        _S.COMPENSATING: frozenset({_S.COMPENSATED, _S.COMPENSATION_FAILED}),
        _S.COMPENSATION_FAILED: frozenset({_S.COMPENSATED}),
        _S.LIVE: frozenset({_S.KEPT, _S.UNDONE, _S.RELISTED}),
        **{
            state: frozenset()
            for state in (*_REFUSED, _S.FAILED, _S.UNUSED, _S.COMPENSATED, _S.KEPT, _S.UNDONE, _S.RELISTED)
        },
    }
)

SOURCES: Final[Mapping[LocalState, frozenset[LocalState]]] = MappingProxyType(
    {to: frozenset(frm for frm, moves in TRANSITIONS.items() if to in moves) for to in LocalState}
)
"""The source states of each state; the conditional UPDATE names exactly these."""

OPEN_TXN: Final = frozenset(LocalTxn) - {LocalTxn.SETTLED, LocalTxn.ENDED, LocalTxn.CLOSED}
"""States of unfinished transactions."""
