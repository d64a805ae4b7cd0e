"""What the page of a task says will follow from an answer, never more than will."""

from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from countersign.contract import TaskAnswer
from policy_service.queries.repository import Snapshot
from policy_service.queries.task_context import TaskContext, choices
from policy_service.storage.tables import AgentRow, EffectRow, Row, TaskRow, TransactionRow

R = TypeVar("R", bound=Row)


@dataclass(frozen=True)
class Beside:
    """A sibling of the effect that is not known."""

    state: str
    undo: str | None = None
    may_fail: bool = False


def told(answer: TaskAnswer, *beside: Beside, undo: str | None = None) -> str:
    """What follows, where an unknown effect stands beside these."""
    asked = _effect("refund", "unknown", undo=undo)
    others = [_effect(f"tool_{n}", one.state, one.undo, one.may_fail) for n, one in enumerate(beside)]
    snapshot = Snapshot(_row(TransactionRow, txn="t", rev=1), [asked, *others])
    task = _row(TaskRow, kind="unknown", state="open")
    case = TaskContext(task, snapshot, asked, _row(AgentRow, name="agent"))
    (found,) = [choice.follows for choice in choices(case) if choice.answer is answer]
    return found


def _effect(tool: str, state: str, undo: str | None = None, may_fail: bool = False) -> EffectRow:
    named = {"effect_id": tool, "kind": "effect", "tool": tool, "state": state, "redeemed_by": "a"}
    compensation = {"tool": undo} if undo else None
    return _row(EffectRow, **named, compensation=compensation, may_fail=may_fail, settlements=[])


def _row(table: type[R], /, **values: Any) -> R:
    """A row that says only this; what else it needs is empty."""
    empty = {name: "" for name, field in table.model_fields.items() if field.is_required()}
    return table(**empty | values)


FIRED, NOT_FIRED = TaskAnswer.FIRED, TaskAnswer.NOT_FIRED
WENT_NOT, SETTLED = "The transaction did not go through.", "The transaction is settled."
HAS_FIRED, STANDS, OPEN = Beside("fired", "undo_it"), Beside("fired"), Beside("redeemed")
FAILED = Beside("failed", may_fail=True)
TABLE: list[tuple[TaskAnswer, tuple[Beside, ...], str]] = [
    (FIRED, (), SETTLED),
    (NOT_FIRED, (), "Nothing of its transaction stands."),
    (FIRED, (STANDS,), SETTLED),
    (FIRED, (FAILED,), SETTLED),
    (FIRED, (Beside("unused"),), WENT_NOT),
    (NOT_FIRED, (HAS_FIRED,), "undo_it is asked for"),
    (NOT_FIRED, (STANDS,), "that becomes a task"),
    (FIRED, (Beside("unknown"),), "Another effect"),
    (FIRED, (OPEN,), "still to be told"),
    (FIRED, (HAS_FIRED, OPEN), "still to be told"),
    (FIRED, (FAILED, OPEN), "still to be told"),
]


@pytest.mark.parametrize(("answer", "beside", "follows"), TABLE)
def test_what_follows_for_all_of_it(answer: TaskAnswer, beside: tuple[Beside, ...], follows: str) -> None:
    text = told(answer, *beside, undo="take_back")
    assert follows in text
    torn = "did not go through" in text
    assert torn == (follows in {WENT_NOT, "undo_it is asked for", "that becomes a task"})
    assert OPEN not in beside or "is asked for" not in text, "nothing is taken back while others are open"
