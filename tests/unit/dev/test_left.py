"""What an agent has left to do once people have answered: a table."""

from types import SimpleNamespace
from typing import Any

import pytest

from countersign.contract import EffectState, TxnState
from policy_service.channels.admin.dev.pending import has_pending_work
from policy_service.domain.settlement import EffectStatus

E, T = EffectState, TxnState
CHARGED = EffectStatus(E.FIRED, can_compensate=True)
LEFT_STANDING = EffectStatus(E.FIRED, can_compensate=True, left_standing=True)
COMPENSATING = EffectStatus(E.COMPENSATING, can_compensate=True)


def after(state: EffectState, **more: bool) -> EffectStatus:
    """Something that cannot be taken back."""
    return EffectStatus(state, can_compensate=False, **more)


ROWS: dict[str, tuple[TxnState, list[EffectStatus], list[EffectState], bool]] = {
    "approved and not spent": (T.READY, [after(E.RELEASED)], [], True),
    "waits for people": (T.REVIEW, [after(E.REVIEW)], [], False),
    "fired, and what belongs to it did not": (T.REDEEMED, [CHARGED, after(E.FAILED)], [], True),
    "the same, but that may be missing": (T.SETTLED, [CHARGED, after(E.FAILED, may_fail=True)], [], False),
    "the same, but it cannot be taken back": (T.UNSETTLED, [after(E.FIRED), after(E.UNUSED)], [], False),
    "the same, but a person left it": (T.SETTLED, [LEFT_STANDING, after(E.FAILED)], [], False),
    "not known yet": (T.UNSETTLED, [CHARGED, after(E.UNKNOWN), after(E.FAILED)], [], False),
    "its outcome is awaited": (T.REDEEMED, [CHARGED, after(E.REDEEMED), after(E.FAILED)], [], False),
    "its taking back waits for people": (T.REDEEMED, [COMPENSATING, after(E.FAILED)], [E.REVIEW], False),
    "its taking back was approved": (T.REDEEMED, [COMPENSATING, after(E.FAILED)], [E.RELEASED], True),
    "all of it fired": (T.SETTLED, [CHARGED, after(E.FIRED)], [], False),
    "it was taken back": (T.SETTLED, [EffectStatus(E.COMPENSATED, True), after(E.FAILED)], [], False),
}


@pytest.mark.parametrize(("state", "parts", "undone", "left"), ROWS.values(), ids=ROWS)
def test_what_is_left_to_agents(state: TxnState, parts: Any, undone: list[EffectState], left: bool) -> None:
    snapshot: Any = SimpleNamespace(transaction=SimpleNamespace(state=state.value), parts=lambda: parts)
    snapshot.compensations = [SimpleNamespace(state=one.value) for one in undone]
    assert has_pending_work(snapshot) is left
