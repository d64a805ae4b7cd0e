"""The table of answers: every kind has some, and each leads only where the contract's table does."""

from itertools import pairwise, product

from countersign.contract import EffectState, TaskAnswer, TaskKind, can_transition
from policy_service.domain.settlement import ANSWERS, applies_to, transitions_for


def test_every_kind_of_task_can_be_answered_and_every_answer_is_somebodys() -> None:
    assert set(ANSWERS) == set(TaskKind)
    assert {answer for answers in ANSWERS.values() for answer in answers} == set(TaskAnswer)
    assert all(len(set(answers)) >= 2 for answers in ANSWERS.values())  # a choice of one is none


def test_an_answer_moves_an_effect_only_where_the_contract_leads() -> None:
    for kind, state, spent in product(TaskKind, EffectState, (True, False)):
        for answer in ANSWERS[kind] if applies_to(kind, state) else ():
            way = [state, *transitions_for(state, answer, spent=spent)]
            assert all(can_transition(one, other) for one, other in pairwise(way)), (
                kind,
                answer,
                state,
                spent,
            )


def test_what_was_spent_has_failed_and_what_never_was_is_unused() -> None:
    unknown = EffectState.UNKNOWN
    assert transitions_for(unknown, TaskAnswer.NOT_FIRED, spent=True) == (EffectState.FAILED,)
    assert transitions_for(unknown, TaskAnswer.NOT_FIRED, spent=False) == (EffectState.UNUSED,)


def test_a_contradiction_is_about_an_effect_wherever_it_stands_and_moves_nothing() -> None:
    for state in EffectState:
        assert applies_to(TaskKind.CONTRADICTION, state)
        assert transitions_for(state, TaskAnswer.REPORT_HOLDS, spent=True) == ()
