"""What a transaction is, given its effects: every reachable combination, against the tables of both."""

from collections.abc import Iterator, Sequence
from itertools import product

import pytest

from countersign.contract import EFFECT_TRANSITIONS, EffectState, TxnState, can_transition
from policy_service.domain.settlement import EffectStatus, needs_manual_settlement, transaction_state

E, T = EffectState, TxnState
Whole, Pair = tuple[EffectState, ...], tuple[bool, ...]


CASES = {
    "one that waits": ((E.REVIEW,), T.REVIEW),
    "one of two waits": ((E.RELEASED, E.REVIEW), T.REVIEW),
    "all may go": ((E.RELEASED, E.RELEASED), T.READY),
    "one was denied, the other taken along": ((E.DENIED, E.WITHDRAWN), T.ENDED),
    "one expired": ((E.EXPIRED, E.WITHDRAWN), T.ENDED),
    "one was revoked": ((E.REVOKED, E.WITHDRAWN), T.ENDED),
    "all spent": ((E.REDEEMED, E.REDEEMED), T.REDEEMED),
    "one told, one not": ((E.FIRED, E.REDEEMED), T.REDEEMED),
    "all fired": ((E.FIRED, E.FIRED), T.SETTLED),
    "none fired": ((E.UNUSED, E.FAILED), T.ENDED),
    "one unknown": ((E.UNKNOWN,), T.UNSETTLED),
    "one unknown, one not told": ((E.UNKNOWN, E.REDEEMED), T.UNSETTLED),
    "one is to be taken back": ((E.FIRED, E.FAILED), T.REDEEMED),
    "one is being taken back": ((E.COMPENSATING, E.FAILED), T.REDEEMED),
    "one was taken back": ((E.COMPENSATED, E.FAILED), T.SETTLED),
    "one could not be taken back": ((E.COMPENSATION_FAILED, E.FAILED), T.UNSETTLED),
    "one was taken back, one stands and may be": ((E.COMPENSATED, E.FIRED), T.REDEEMED),
}


@pytest.mark.parametrize(("states", "expected"), CASES.values(), ids=CASES)
def test_the_state_of_a_transaction_follows_from_its_effects(states: Whole, expected: TxnState) -> None:
    parts = [EffectStatus(state, True) for state in states]
    assert transaction_state(parts) is transaction_state(parts[::-1]) is expected


def lets_fail(state: EffectState) -> EffectStatus:
    return EffectStatus(state, False, may_fail=True)


BESIDE_A_FAILURE = {
    "one that fired and cannot be undone": ([EffectStatus(E.FIRED, False)], T.SETTLED),
    "one that fired and can be": ([EffectStatus(E.FIRED, True)], T.SETTLED),
    "two that fired": ([EffectStatus(E.FIRED, False), EffectStatus(E.FIRED, True)], T.SETTLED),
    "another that did": ([lets_fail(E.FAILED)], T.ENDED),
    "another that did, and one that fired": ([lets_fail(E.FAILED), EffectStatus(E.FIRED, False)], T.SETTLED),
    "one whose permission ran out": ([EffectStatus(E.FIRED, False), lets_fail(E.UNUSED)], T.UNSETTLED),
    "one that had to fire and did not": (
        [EffectStatus(E.FIRED, True), EffectStatus(E.FAILED, True)],
        T.REDEEMED,
    ),
    "the same, and what fired cannot be undone": (
        [EffectStatus(E.FIRED, False), EffectStatus(E.FAILED, True)],
        T.UNSETTLED,
    ),
    "one taken back": ([EffectStatus(E.COMPENSATED, True)], T.SETTLED),
    "one being taken back": ([EffectStatus(E.COMPENSATING, True)], T.REDEEMED),
    "one that could not be": ([EffectStatus(E.COMPENSATION_FAILED, True)], T.UNSETTLED),
    "one nobody knows of": ([EffectStatus(E.UNKNOWN, False)], T.UNSETTLED),
    "one not told yet": ([EffectStatus(E.FIRED, False), EffectStatus(E.REDEEMED, False)], T.REDEEMED),
    "one that failed": ([EffectStatus(E.FAILED, False)], T.ENDED),
    "one that a person left standing": ([EffectStatus(E.FIRED, False, left_standing=True)], T.SETTLED),
}


@pytest.mark.parametrize(("others", "expected"), BESIDE_A_FAILURE.values(), ids=BESIDE_A_FAILURE)
def test_what_may_fail_and_did_says_nothing_about_the_others(
    others: list[EffectStatus], expected: TxnState
) -> None:
    whole = [lets_fail(E.FAILED), *others]
    assert transaction_state(whole) is transaction_state(whole[::-1]) is expected
    assert needs_manual_settlement(whole) is (
        expected is T.UNSETTLED and {one.state for one in others} > {E.FIRED}
    )


def test_what_may_fail_and_did_not_counts_as_any_other() -> None:
    states = (E.FIRED, E.UNKNOWN, E.REDEEMED, E.UNUSED, E.COMPENSATED, E.DENIED)
    for state, other, undo in product(states, E, (True, False)):
        mine, plain = (
            [EffectStatus(state, undo, may_fail=may), EffectStatus(other, undo)] for may in (True, False)
        )
        assert transaction_state(mine) is transaction_state(plain)
        assert needs_manual_settlement(mine) is needs_manual_settlement(plain)


@pytest.mark.parametrize("other", [E.FAILED, E.UNUSED, E.COMPENSATED, E.FIRED, E.REDEEMED])
def test_nobody_knows_how_a_transaction_ended_while_a_compensation_is_unknown(other: EffectState) -> None:
    torn = [EffectStatus(E.COMPENSATING, True, compensation_unknown=True), EffectStatus(other, True)]
    assert transaction_state(torn) is T.UNSETTLED


def test_what_cannot_be_taken_back_stands_beside_what_did_not_fire() -> None:
    for other in (E.FAILED, E.UNUSED, E.COMPENSATED):
        torn = [EffectStatus(E.FIRED, False), EffectStatus(other, True)]
        assert needs_manual_settlement(torn)
        assert transaction_state(torn) is T.UNSETTLED
    for other in (E.FIRED, E.REDEEMED, E.UNKNOWN, E.COMPENSATING):
        assert not needs_manual_settlement([EffectStatus(E.FIRED, False), EffectStatus(other, True)]), (
            "they may still fire"
        )


READ = EffectStatus(E.FIRED, False, reads=True)
BESIDE_A_READ = {
    "nothing": ([], T.SETTLED),
    "one that failed": ([EffectStatus(E.FAILED, False)], T.ENDED),
    "one that was not begun": ([EffectStatus(E.UNUSED, True)], T.ENDED),
    "one to be taken back and one that failed": (
        [EffectStatus(E.FIRED, True), EffectStatus(E.FAILED, True)],
        T.REDEEMED,
    ),
    "one taken back and one that failed": (
        [EffectStatus(E.COMPENSATED, True), EffectStatus(E.FAILED, True)],
        T.SETTLED,
    ),
    "one that stands and one that failed": (
        [EffectStatus(E.FIRED, False), EffectStatus(E.FAILED, True)],
        T.UNSETTLED,
    ),
    "one nobody knows of": ([EffectStatus(E.UNKNOWN, False)], T.UNSETTLED),
    "one not told yet": ([EffectStatus(E.REDEEMED, False)], T.REDEEMED),
    "another read": ([READ], T.SETTLED),
    "another read and one that failed": ([READ, EffectStatus(E.FAILED, False)], T.ENDED),
}


@pytest.mark.parametrize(("others", "expected"), BESIDE_A_READ.values(), ids=BESIDE_A_READ)
def test_a_read_that_fired_leaves_nothing_standing(others: list[EffectStatus], expected: TxnState) -> None:
    assert transaction_state([READ, *others]) is transaction_state([*others, READ]) is expected
    assert needs_manual_settlement([READ, *others]) is needs_manual_settlement(others)


def test_a_transaction_without_effects_does_not_exist() -> None:
    with pytest.raises(ValueError, match="at least one effect"):
        transaction_state([])


# -- every step any effect can take, and what its transaction does ------------------------------------------------

_ENDINGS = {E.DENIED, E.EXPIRED, E.WITHDRAWN, E.REVOKED}
_OPEN = {E.REVIEW, E.RELEASED}


def steps(states: Whole) -> Iterator[Whole]:
    """What one request makes of the effects together: all are spent or none, and one that ends takes the others."""
    if set(states) == {E.RELEASED}:
        yield (E.REDEEMED,) * len(states)
    for place, state in enumerate(states):
        for to in EFFECT_TRANSITIONS[state] - {E.REDEEMED}:
            if state in _OPEN and to is E.UNKNOWN:
                continue  # by `policy-service restored` alone
            after = [*states]
            after[place] = to
            if to in _ENDINGS:
                after = [E.WITHDRAWN if s in _OPEN and i != place else s for i, s in enumerate(after)]
            yield tuple(after)


def followed(state: TxnState, whole: Sequence[EffectStatus]) -> TxnState:
    """The transaction's state after its effects have moved, as the mover keeps it: what is open again after people were
    told of its end (a compensation under way) does not undo that.
    """
    to = transaction_state(whole)
    return state if to is T.REDEEMED and state is not T.READY else to


BOTH_WAYS = list(product([True, False], repeat=2))


@pytest.mark.parametrize("reads", BOTH_WAYS)
@pytest.mark.parametrize("may", BOTH_WAYS)
@pytest.mark.parametrize("undo", BOTH_WAYS)
def test_every_step_of_two_effects_moves_their_transaction_or_not(undo: Pair, may: Pair, reads: Pair) -> None:
    pairs = product(sorted(_OPEN), repeat=2)
    ahead = [(states, T.READY if set(states) == {E.RELEASED} else T.REVIEW) for states in pairs]
    known = set(ahead)
    while ahead:
        states, state = ahead.pop()
        for after in steps(states):
            told = zip(after, undo, may, reads, strict=True)
            whole = [EffectStatus(s, u, may_fail=m, reads=r) for s, u, m, r in told]
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


def test_what_a_person_left_standing_needs_nobody_any_more() -> None:
    left = EffectStatus(E.COMPENSATION_FAILED, True, left_standing=True)
    stays = EffectStatus(E.FIRED, False, left_standing=True)
    for settled in (
        [left, EffectStatus(E.FAILED, True)],
        [stays, EffectStatus(E.UNUSED, True)],
        [left, stays],
        [left],
    ):
        assert transaction_state(settled) is T.SETTLED
        assert not needs_manual_settlement(settled)
    assert transaction_state([left, EffectStatus(E.COMPENSATION_FAILED, True)]) is T.UNSETTLED
    assert (
        transaction_state([stays, EffectStatus(E.FIRED, False), EffectStatus(E.FAILED, True)]) is T.UNSETTLED
    )
    assert transaction_state([left, EffectStatus(E.COMPENSATING, True)]) is T.REDEEMED
    assert transaction_state([left, EffectStatus(E.UNKNOWN, True)]) is T.UNSETTLED
