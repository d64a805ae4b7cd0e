"""The consequences that a task page states for each answer."""

from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from countersign.contract import TaskAnswer
from policy_service.queries.repository import Snapshot
from policy_service.queries.task_context import TaskContext, choices
from policy_service.storage.tables import AgentRow, EffectRow, Row, TaskRow, TransactionRow

R = TypeVar("R", bound=Row)


@dataclass(frozen=True)
class Other:
    """Another effect of the transaction."""

    state: str
    undo: str | None = None
    may_fail: bool = False


def consequences(answer: TaskAnswer, *siblings: Other, undo: str | None = None) -> str:
    """The consequences for an unknown effect with these siblings."""
    asked = _effect("refund", "unknown", undo=undo)
    others = [_effect(f"tool_{n}", one.state, one.undo, one.may_fail) for n, one in enumerate(siblings)]
    snapshot = Snapshot(_row(TransactionRow, txn="t", rev=1), [asked, *others])
    task = _row(TaskRow, kind="unknown", state="open")
    case = TaskContext(task, snapshot, asked, _row(AgentRow, name="agent"))
    (found,) = [choice.follows for choice in choices(case) if choice.answer is answer]
    return found


def _effect(tool: str, state: str, undo: str | None = None, may_fail: bool = False) -> EffectRow:
    named = {"effect_id": tool, "kind": "effect", "tool": tool, "state": state, "redeemed_by": "a"}
    compensation = {"tool": undo, "map": {}} if undo else None
    return _row(EffectRow, **named, compensation=compensation, may_fail=may_fail, settlements=[])


def _row(table: type[R], /, **values: Any) -> R:
    """A row with these values; other required ones are empty."""
    empty = {name: "" for name, field in table.model_fields.items() if field.is_required()}
    return table(**empty | values)


FIRED, NOT_FIRED = TaskAnswer.FIRED, TaskAnswer.NOT_FIRED
WENT_NOT, SETTLED = "The transaction did not complete.", "The transaction is settled."
HAS_FIRED, STANDS, OPEN = Other("fired", "undo_it"), Other("fired"), Other("redeemed")
FAILED = Other("failed", may_fail=True)
TABLE: list[tuple[TaskAnswer, tuple[Other, ...], str]] = [
    (FIRED, (), SETTLED),
    (NOT_FIRED, (), "No effect of its transaction remains."),
    (FIRED, (STANDS,), SETTLED),
    (FIRED, (FAILED,), SETTLED),
    (FIRED, (Other("unused"),), WENT_NOT),
    (NOT_FIRED, (HAS_FIRED,), "undo_it is requested"),
    (NOT_FIRED, (STANDS,), "become a task"),
    (FIRED, (Other("unknown"),), "Another effect"),
    (FIRED, (OPEN,), "not reported yet"),
    (FIRED, (HAS_FIRED, OPEN), "not reported yet"),
    (FIRED, (FAILED, OPEN), "not reported yet"),
]


@pytest.mark.parametrize(("answer", "others", "follows"), TABLE)
def test_consequences_for_the_transaction(
    answer: TaskAnswer, others: tuple[Other, ...], follows: str
) -> None:
    text = consequences(answer, *others, undo="take_back")
    assert follows in text
    torn = "did not complete" in text
    assert torn == (follows in {WENT_NOT, "undo_it is requested", "become a task"})
    assert OPEN not in others or "is requested" not in text, "nothing is undone while others are open"
