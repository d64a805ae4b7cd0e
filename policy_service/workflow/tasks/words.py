"""What a person reads beside each answer: what it says, and what it will cause.

What follows is not promised from memory: the transaction is weighed as it would be after the answer, by the rules that
will weigh it then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from countersign.contract import EffectState, TaskAnswer, TaskKind, TxnState
from policy_service.domain.settlement import (
    ANSWERS,
    Part,
    did_not_go_through,
    moves_of,
    stands_for_good,
    state_of_transaction,
)
from policy_service.storage.tables import EffectRow
from policy_service.workflow.tasks.cases import TaskCase

_UNKNOWN = frozenset({TaskKind.UNKNOWN, TaskKind.RESTORED})


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer, in words."""

    answer: TaskAnswer
    text: str
    follows: str


def choices(case: TaskCase) -> tuple[Choice, ...]:
    """The answers this task takes; none once it is settled."""
    if case.task.state != "open":
        return ()
    return tuple(
        Choice(answer, answer_text(case, answer), _follows(case, answer)) for answer in ANSWERS[case.kind]
    )


def answer_text(case: TaskCase, answer: TaskAnswer) -> str:
    """An answer as a sentence a person could say."""
    if case.effect.kind == "compensate" and answer in {TaskAnswer.FIRED, TaskAnswer.NOT_FIRED}:
        return "It was taken back" if answer is TaskAnswer.FIRED else "It was not taken back"
    return _TEXTS[answer]


_TEXTS = {
    TaskAnswer.FIRED: "It fired",
    TaskAnswer.NOT_FIRED: "It did not happen",
    TaskAnswer.COMPENSATED: "It was taken back by hand",
    TaskAnswer.LEFT_STANDING: "It stays as it is",
    TaskAnswer.RECORD_HOLDS: "The record is right",
    TaskAnswer.REPORT_HOLDS: "The later report is right",
    TaskAnswer.WITHDRAWN: "Withdraw it",
    TaskAnswer.LEFT_WAITING: "Leave it waiting",
    TaskAnswer.JUSTIFIED: "Opening it was justified",
    TaskAnswer.NOT_JUSTIFIED: "Opening it was not justified",
}


def _follows(case: TaskCase, answer: TaskAnswer) -> str:
    if case.kind in _UNKNOWN:
        return (
            _of_compensation(case, answer) if case.effect.kind == "compensate" else _of_unknown(case, answer)
        )
    tool, others = case.effect.tool, len(case.snapshot.effects) - 1
    beside = (
        f" and the {others} beside it are"
        if others > 1
        else " and the one beside it are"
        if others
        else " is"
    )
    return {
        TaskAnswer.COMPENSATED: f"{tool} is recorded as taken back. Nothing is called.",
        TaskAnswer.LEFT_STANDING: f"{tool} is recorded as standing. Nothing takes it back any more.",
        TaskAnswer.RECORD_HOLDS: f"Nothing moves: {tool} stays recorded as {case.effect.state}.",
        TaskAnswer.REPORT_HOLDS: f"Nothing moves: what is recorded as {case.effect.state} stays so, with your word "
        "beside it. What that leaves to be done is done by hand.",
        TaskAnswer.WITHDRAWN: f"It{beside} withdrawn. Nothing fires, and the agent is told.",
        TaskAnswer.LEFT_WAITING: "It goes on waiting, and expires unfired when its time is up. Enough people in these "
        "groups before that, and it goes on by itself.",
        TaskAnswer.JUSTIFIED: f"Nothing moves: {tool} stays recorded as {case.effect.state}, with your word beside it.",
        TaskAnswer.NOT_JUSTIFIED: f"Nothing moves: {tool} stays recorded as {case.effect.state}, with your word "
        "beside it. To stop what has not fired yet, press Stop at the top; what fired is taken back by hand.",
    }[answer]


def _of_compensation(case: TaskCase, answer: TaskAnswer) -> str:
    if answer is TaskAnswer.FIRED:
        return f"{case.forward.tool} is recorded as taken back."
    return f"{case.forward.tool} stands: its compensation failed, and that becomes a task of its own."


def _of_unknown(case: TaskCase, answer: TaskAnswer) -> str:
    to = moves_of(case.state, answer, spent=case.effect.redeemed_by is not None)[-1]
    after = [
        replace(part, state=to) if effect is case.effect else part
        for effect, part in zip(case.snapshot.effects, case.snapshot.parts(), strict=True)
    ]
    recorded = (
        "It is recorded as fired."
        if to is EffectState.FIRED
        else f"It is recorded as {to.value}; nothing fired."
    )
    return f"{recorded} {_of_transaction(case.snapshot.effects, after)}"


def _of_transaction(effects: Sequence[EffectRow], after: Sequence[Part]) -> str:
    state = state_of_transaction(after)
    if any(part.state is EffectState.UNKNOWN for part in after):
        return "Another effect of its transaction is not known yet: nothing is taken back before that is settled."
    if state is TxnState.SETTLED:
        return "The transaction is settled."
    if state is TxnState.ENDED:
        return "Nothing of its transaction stands."
    if not did_not_go_through(after):
        return "What became of the others of its transaction is still to be told."
    due = [
        (effect.tool, str(effect.compensation["tool"]))
        for effect, part in zip(effects, after, strict=True)
        if part.state is EffectState.FIRED and effect.compensation is not None
    ]
    told = [
        f"{undo} is asked for, to take {tool} back, by a release of its own." for tool, undo in reversed(due)
    ]
    if stands_for_good(after):
        told.append("What fired and has no compensation stands: that becomes a task.")
    return " ".join(["The transaction did not go through.", *told])
