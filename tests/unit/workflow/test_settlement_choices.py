"""The consequences that the page of a task lists for each answer."""

from typing import Any, TypeVar

import pytest

from countersign.contract import TaskAnswer
from policy_service.queries.repository import Snapshot
from policy_service.queries.task_context import TaskContext, choices
from policy_service.storage.tables import AgentRow, EffectRow, Row, TaskRow, TransactionRow

R = TypeVar("R", bound=Row)


Sibling = tuple[Any, ...]  # the state, the compensating tool, and whether it may fail


def consequence(answer: TaskAnswer, *siblings: Sibling, undo: str | None = None) -> str:
    """The listed consequence for an unknown effect with these siblings."""
    asked = _effect("refund", "unknown", undo=undo)
    others = [_effect(f"tool_{n}", *one) for n, one in enumerate(siblings)]
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
    """A row with these values; other required columns are empty."""
    empty = {name: "" for name, field in table.model_fields.items() if field.is_required()}
    return table(**empty | values)


FIRED, NOT_FIRED = TaskAnswer.FIRED, TaskAnswer.NOT_FIRED
NOT_DONE, SETTLED = "The transaction did not complete.", "The transaction is settled."
COMPENSABLE, IRREVERSIBLE = ("fired", "undo_it"), ("fired",)
OPEN, FAILED = ("redeemed",), ("failed", None, True)
TABLE: list[tuple[TaskAnswer, tuple[Sibling, ...], str]] = [
    (FIRED, (), SETTLED),
    (NOT_FIRED, (), "No effect of its transaction remains."),
    (FIRED, (IRREVERSIBLE,), SETTLED),
    (FIRED, (FAILED,), SETTLED),
    (FIRED, (("unused",),), NOT_DONE),
    (NOT_FIRED, (COMPENSABLE,), "undo_it is requested"),
    (NOT_FIRED, (IRREVERSIBLE,), "become a task"),
    (FIRED, (("unknown",),), "Another effect"),
    (FIRED, (OPEN,), "not reported yet"),
    (FIRED, (COMPENSABLE, OPEN), "not reported yet"),
    (FIRED, (FAILED, OPEN), "not reported yet"),
]


@pytest.mark.parametrize(("answer", "siblings", "follows"), TABLE)
def test_siblings_have_consequences(answer: TaskAnswer, siblings: tuple[Sibling, ...], follows: str) -> None:
    text = consequence(answer, *siblings, undo="take_back")
    assert follows in text
    incomplete = "did not complete" in text
    assert incomplete == (follows in {NOT_DONE, "undo_it is requested", "become a task"})
    assert OPEN not in siblings or "is requested" not in text, "nothing is undone while others are open"
