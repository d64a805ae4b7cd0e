"""The tables of design section 7: which moves exist, and that nothing else does."""

from typing import Any

import pytest

from countersign import contract
from countersign.contract import (
    EFFECT_TRANSITIONS,
    TERMINAL,
    EffectState,
    IllegalTransitionError,
    TxnState,
    can_transition,
    require_transition,
)

# design section 7, word for word
EFFECTS = {
    "review": "released denied expired withdrawn revoked unknown",
    "released": "redeemed review denied expired withdrawn revoked unknown",
    "redeemed": "fired failed unknown unused",
    "unknown": "fired failed unused",
    "fired": "compensating",
    "compensating": "compensated compensation_failed",
    "compensation_failed": "compensated",
}
ENDS = "denied expired withdrawn revoked unused failed compensated"


@pytest.mark.parametrize("frm", EffectState)
@pytest.mark.parametrize("to", EffectState)
def test_effect_transitions_are_those_of_the_design(frm: EffectState, to: EffectState) -> None:
    assert can_transition(frm, to) == (to.value in EFFECTS.get(frm.value, "").split())


def test_terminal_states_are_the_ones_that_absorb() -> None:
    assert {state.value for state in TERMINAL} == set(ENDS.split())


@pytest.mark.parametrize("state", [*EffectState, *TxnState])
def test_no_state_moves_to_itself(state: EffectState | TxnState) -> None:
    with pytest.raises(IllegalTransitionError, match="does not move to"):
        require_transition(state, state)


BACK = "ended>review ended>settled review>redeemed redeemed>ready settled>ended unsettled>review".split()


@pytest.mark.parametrize("move", BACK)
def test_a_transaction_never_goes_back_before_its_redemption(move: str) -> None:
    assert not can_transition(*map(TxnState, move.split(">")))


def test_effects_and_transactions_do_not_mix_and_a_legal_move_is_silent() -> None:
    assert not can_transition(EffectState.REVIEW, TxnState.ENDED)
    assert not can_transition(TxnState.REDEEMED, EffectState.UNKNOWN)
    require_transition(EffectState.RELEASED, EffectState.REDEEMED)
    require_transition(TxnState.READY, TxnState.REDEEMED)


MOVES = [(EffectState, EFFECT_TRANSITIONS), (TxnState, contract.TXN_TRANSITIONS)]


@pytest.mark.parametrize(("states", "moves"), MOVES)
def test_every_state_has_a_row_and_can_be_reached(states: Any, moves: Any) -> None:
    assert set(moves) == set().union(*moves.values()) == set(states)
