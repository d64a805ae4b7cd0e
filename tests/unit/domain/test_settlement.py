"""The state of a transaction, for every reachable combination of effect states."""

from collections.abc import Iterator, Sequence
from itertools import product

import pytest

from countersign.contract import EFFECT_TRANSITIONS, EffectState, TxnState, can_transition
from policy_service.domain.settlement import EffectStatus, needs_manual_settlement, transaction_state

E, T = EffectState, TxnState
Whole, Pair = tuple[EffectState, ...], tuple[bool, ...]


CASES = {
    "one waits": ((E.REVIEW,), T.REVIEW),
    "one of two waits": ((E.RELEASED, E.REVIEW), T.REVIEW),
    "all released": ((E.RELEASED, E.RELEASED), T.READY),
    **{
        f"{one}, the other withdrawn": ((one, E.WITHDRAWN), T.ENDED)
        for one in (E.DENIED, E.EXPIRED, E.REVOKED)
    },
    "all redeemed": ((E.REDEEMED, E.REDEEMED), T.REDEEMED),
    "one reported, one not": ((E.FIRED, E.REDEEMED), T.REDEEMED),
    "all fired": ((E.FIRED, E.FIRED), T.SETTLED),
    "none fired": ((E.UNUSED, E.FAILED), T.ENDED),
    "one unknown": ((E.UNKNOWN,), T.UNSETTLED),
    "one unknown, one not reported": ((E.UNKNOWN, E.REDEEMED), T.UNSETTLED),
    "one to be compensated": ((E.FIRED, E.FAILED), T.REDEEMED),
    "one is compensating": ((E.COMPENSATING, E.FAILED), T.REDEEMED),
    "one compensated": ((E.COMPENSATED, E.FAILED), T.SETTLED),
    "one compensation failed": ((E.COMPENSATION_FAILED, E.FAILED), T.UNSETTLED),
    "one compensated, one fired with a compensation": ((E.COMPENSATED, E.FIRED), T.REDEEMED),
}


@pytest.mark.parametrize(("states", "expected"), CASES.values(), ids=CASES)
def test_the_state_of_a_transaction_follows_from_its_effects(states: Whole, expected: TxnState) -> None:
    parts = [EffectStatus(state, True) for state in states]
    assert transaction_state(parts) is transaction_state(parts[::-1]) is expected


KEPT, UNDOABLE = EffectStatus(E.FIRED, False), EffectStatus(E.FIRED, True)
FAILED = EffectStatus(E.FAILED, True)


def optional(state: EffectState) -> EffectStatus:
    return EffectStatus(state, False, may_fail=True)


OPTIONAL_FAILURE = {
    "one that fired without a compensation": ([KEPT], T.SETTLED),
    "one that fired with a compensation": ([UNDOABLE], T.SETTLED),
    "two that fired": ([KEPT, UNDOABLE], T.SETTLED),
    "another optional failure": ([optional(E.FAILED)], T.ENDED),
    "another optional failure, and one that fired": ([optional(E.FAILED), KEPT], T.SETTLED),
    "an optional one that was not used": ([KEPT, optional(E.UNUSED)], T.UNSETTLED),
    "a required one that failed": ([UNDOABLE, FAILED], T.REDEEMED),
    "a required one that failed, and no compensation": ([KEPT, FAILED], T.UNSETTLED),
    "one compensated": ([EffectStatus(E.COMPENSATED, True)], T.SETTLED),
    "one compensating": ([EffectStatus(E.COMPENSATING, True)], T.REDEEMED),
    "one failed compensation": ([EffectStatus(E.COMPENSATION_FAILED, True)], T.UNSETTLED),
    "an unknown one": ([EffectStatus(E.UNKNOWN, False)], T.UNSETTLED),
    "one not reported yet": ([EffectStatus(E.FIRED, False), EffectStatus(E.REDEEMED, False)], T.REDEEMED),
    "one that failed": ([EffectStatus(E.FAILED, False)], T.ENDED),
    "one that a person kept": ([EffectStatus(E.FIRED, False, left_standing=True)], T.SETTLED),
}


@pytest.mark.parametrize(("others", "expected"), OPTIONAL_FAILURE.values(), ids=OPTIONAL_FAILURE)
def test_an_optional_failure_agrees_with_any_outcome(others: list[EffectStatus], expected: TxnState) -> None:
    whole = [optional(E.FAILED), *others]
    assert transaction_state(whole) is transaction_state(whole[::-1]) is expected
    partly = {one.state for one in others} > {E.FIRED}
    assert needs_manual_settlement(whole) is (expected is T.UNSETTLED and partly)


def test_an_optional_effect_that_did_not_fail_counts_like_any_other() -> None:
    states = (E.FIRED, E.UNKNOWN, E.REDEEMED, E.UNUSED, E.COMPENSATED, E.DENIED)
    for state, other, undo in product(states, E, (True, False)):
        second = EffectStatus(other, undo)
        mine, plain = ([EffectStatus(state, undo, may_fail=may), second] for may in (True, False))
        assert transaction_state(mine) is transaction_state(plain)
        assert needs_manual_settlement(mine) is needs_manual_settlement(plain)


@pytest.mark.parametrize("other", [E.FAILED, E.UNUSED, E.COMPENSATED, E.FIRED, E.REDEEMED])
def test_an_unknown_compensation_leaves_the_transaction_unsettled(other: EffectState) -> None:
    whole = [EffectStatus(E.COMPENSATING, True, compensation_unknown=True), EffectStatus(other, True)]
    assert transaction_state(whole) is T.UNSETTLED


def test_a_fired_effect_without_compensation_needs_a_person_if_another_did_not_fire() -> None:
    for other in (E.FAILED, E.UNUSED, E.COMPENSATED):
        whole = [KEPT, EffectStatus(other, True)]
        assert needs_manual_settlement(whole)
        assert transaction_state(whole) is T.UNSETTLED
    for other in (E.FIRED, E.REDEEMED, E.UNKNOWN, E.COMPENSATING):
        assert not needs_manual_settlement([KEPT, EffectStatus(other, True)]), "they may still fire"


READ = EffectStatus(E.FIRED, False, reads=True)
WITH_A_READ = {
    "nothing": ([], T.SETTLED),
    "one that failed": ([EffectStatus(E.FAILED, False)], T.ENDED),
    "one that was not begun": ([EffectStatus(E.UNUSED, True)], T.ENDED),
    "one to be compensated and one that failed": ([UNDOABLE, FAILED], T.REDEEMED),
    "one compensated and one that failed": ([EffectStatus(E.COMPENSATED, True), FAILED], T.SETTLED),
    "one without compensation and one that failed": ([KEPT, FAILED], T.UNSETTLED),
    "an unknown one": ([EffectStatus(E.UNKNOWN, False)], T.UNSETTLED),
    "one not reported yet": ([EffectStatus(E.REDEEMED, False)], T.REDEEMED),
    "another read": ([READ], T.SETTLED),
    "another read and one that failed": ([READ, EffectStatus(E.FAILED, False)], T.ENDED),
}


@pytest.mark.parametrize(("others", "expected"), WITH_A_READ.values(), ids=WITH_A_READ)
def test_a_read_that_fired_leaves_nothing_to_undo(others: list[EffectStatus], expected: TxnState) -> None:
    assert transaction_state([READ, *others]) is transaction_state([*others, READ]) is expected
    assert needs_manual_settlement([READ, *others]) is needs_manual_settlement(others)


def test_a_transaction_without_effects_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one effect"):
        transaction_state([])


# -- every transition of two effects, and the state of their transaction -----------------------------------------

_OPEN = {E.REVIEW, E.RELEASED}


def steps(states: Whole) -> Iterator[Whole]:
    """The effects after one request: all are redeemed or none, and one that ends withdraws the others."""
    if set(states) == {E.RELEASED}:
        yield (E.REDEEMED,) * len(states)
    for place, state in enumerate(states):
        for to in EFFECT_TRANSITIONS[state] - {E.REDEEMED}:
            if state in _OPEN and to is E.UNKNOWN:
                continue  # only by `policy-service restored`
            after = [*states]
            after[place] = to
            if to in {E.DENIED, E.EXPIRED, E.WITHDRAWN, E.REVOKED}:
                after = [E.WITHDRAWN if s in _OPEN and i != place else s for i, s in enumerate(after)]
            yield tuple(after)


def followed(state: TxnState, whole: Sequence[EffectStatus]) -> TxnState:
    """The transaction's state after a step. A compensation under way does not reopen a finished transaction."""
    to = transaction_state(whole)
    return state if to is T.REDEEMED and state is not T.READY else to


BOTH_WAYS = list(product([True, False], repeat=2))


@pytest.mark.parametrize("reads", BOTH_WAYS)
@pytest.mark.parametrize("may", BOTH_WAYS)
@pytest.mark.parametrize("undo", BOTH_WAYS)
def test_every_step_of_two_effects_is_legal(undo: Pair, may: Pair, reads: Pair) -> None:
    pairs = product(sorted(_OPEN), repeat=2)
    ahead = [(states, T.READY if set(states) == {E.RELEASED} else T.REVIEW) for states in pairs]
    known = set(ahead)
    while ahead:
        states, state = ahead.pop()
        for after in steps(states):
            after_step = zip(after, undo, may, reads, strict=True)
            whole = [EffectStatus(s, u, may_fail=m, reads=r) for s, u, m, r in after_step]
            if any(part.reads and part.state is E.COMPENSATING and not part.can_compensate for part in whole):
                continue  # nothing compensates it
            to = followed(state, whole)
            assert to is state or can_transition(state, to), f"{states} -> {after}: {state} -> {to}"
            if (after, to) not in known:
                known.add((after, to))
                ahead.append((after, to))
    assert {state for _, state in known} == set(TxnState)
    for states, state in known:
        if state in {T.ENDED, T.SETTLED}:
            assert not {E.REVIEW, E.RELEASED, E.REDEEMED} & set(states), states


def test_an_effect_that_a_person_kept_needs_no_further_decision() -> None:
    left = EffectStatus(E.COMPENSATION_FAILED, True, left_standing=True)
    stays = EffectStatus(E.FIRED, False, left_standing=True)
    for settled in ([left, FAILED], [stays, EffectStatus(E.UNUSED, True)], [left, stays], [left]):
        assert transaction_state(settled) is T.SETTLED
        assert not needs_manual_settlement(settled)
    assert transaction_state([left, EffectStatus(E.COMPENSATION_FAILED, True)]) is T.UNSETTLED
    assert transaction_state([stays, KEPT, FAILED]) is T.UNSETTLED
    assert transaction_state([left, EffectStatus(E.COMPENSATING, True)]) is T.REDEEMED
    assert transaction_state([left, EffectStatus(E.UNKNOWN, True)]) is T.UNSETTLED
