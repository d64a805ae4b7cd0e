"""In what a case does not hold, and whether what it got instead is stricter than what its author expects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from policy_service.domain.decision import Decision
from policy_service.pap.cases.case import Case, PeopleCase
from policy_service.pap.cases.running import Answered

STRICTNESS: Final = {"release": 0, "review": 1, "deny": 2}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a case does not hold; ``stricter`` when the answer is a stricter one."""

    words: str
    stricter: bool = False


def failure_of(answered: Answered) -> Failure:
    """What is wrong with an answer that is not the expected one."""
    words, case, answer = "; ".join(answered.differences), answered.case, answered.answer
    if isinstance(case, Case) and isinstance(answer, Decision):
        stricter = STRICTNESS[answer.outcome.value] > STRICTNESS[case.expected.outcome]
        return Failure(words, stricter)
    return Failure(words, isinstance(case, PeopleCase) and case.allowed)
