"""The answers to tasks: every kind has some, and each causes only legal transitions."""

from itertools import pairwise, product

from countersign.contract import EffectState, TaskAnswer, TaskKind, can_transition
from policy_service.domain.settlement import ANSWERS, applies_to, transitions_for


def test_every_kind_of_task_has_answers_and_every_answer_is_used() -> None:
    assert set(ANSWERS) == set(TaskKind)
    assert {answer for answers in ANSWERS.values() for answer in answers} == set(TaskAnswer)
    assert all(len(set(answers)) >= 2 for answers in ANSWERS.values())  # one answer would be no choice


def test_an_answer_causes_only_legal_transitions() -> None:
    for kind, state, spent in product(TaskKind, EffectState, (True, False)):
        for answer in ANSWERS[kind] if applies_to(kind, state) else ():
            path = [state, *transitions_for(state, answer, spent=spent)]
            assert all(can_transition(one, other) for one, other in pairwise(path)), (kind, answer, path)


def test_not_fired_is_failed_after_redemption_and_unused_before() -> None:
    unknown = EffectState.UNKNOWN
    assert transitions_for(unknown, TaskAnswer.NOT_FIRED, spent=True) == (EffectState.FAILED,)
    assert transitions_for(unknown, TaskAnswer.NOT_FIRED, spent=False) == (EffectState.UNUSED,)


def test_a_contradiction_applies_in_any_state_and_moves_nothing() -> None:
    for state in EffectState:
        assert applies_to(TaskKind.CONTRADICTION, state)
        assert transitions_for(state, TaskAnswer.REPORT_HOLDS, spent=True) == ()
