"""Sample tasks, as the workflow would fill them, made of the sample reviews' bytes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from countersign.contract import TaskAnswer
from policy_service.queries.review_models import EventLine, Sibling, VoteLine
from policy_service.queries.task_context import Choice
from policy_service.queries.tasks import TaskReadModel
from tests.fakes import reviews

NOT_FIRED = "It is recorded as failed; nothing fired. No effect of its transaction remains."
FIRED = (
    "It is recorded as fired. The transaction did not complete. take_back is requested to undo refund_payment, "
    "with its own release."
)


def unknown(task_id: str = "task_01KAHV7Q2D", **changes: Any) -> TaskReadModel:
    """A refund whose provider stopped answering."""
    review = changes.pop("of", reviews.refund())
    opened = reviews.NOW - timedelta(minutes=35)
    mine = {
        "task_id": task_id,
        "kind": "unknown",
        "of_compensation": False,
        "text": f"we do not know whether {review.tool} fired for Payment pay_8Kq2LxV7nR",
        "opened_at": opened,
        "settled_at": None,
        "effect_state": "unknown",
        "call_key": reviews.hexed("call" + task_id),
        "seq": 2,
        "siblings": (Sibling(1, reviews.said("Write a note on ticket ", reviews.value("48811")), "fired"),),
        "takes_back": (),
        "votes": (VoteLine("Ingrid Vik", "approve", "", opened - timedelta(minutes=3), True, "oidc"),),
        "attempt_id": "Xk2rP0vQw8sT1uZ9",
        "fire_by": opened - timedelta(minutes=1),
        "error": "ToolTimeoutError: no answer within 30 s",
        "idempotent": False,
        "probe": None,
        "compensation_tool": "take_back",
        "settlements": (),
        "settlement": None,
        "choices": (
            Choice(TaskAnswer.FIRED, "It fired", FIRED, ("/refund_id",)),
            Choice(TaskAnswer.NOT_FIRED, "It did not happen", NOT_FIRED),
        ),
        "timeline": (
            EventLine(opened - timedelta(minutes=4), "effect_submitted", "Submitted", review.agent),
            EventLine(opened - timedelta(minutes=2), "effect_redeemed", "Release redeemed", review.agent),
            EventLine(opened, "effect_unknown", "We do not know whether this fired", "service"),
        ),
        "state": "open",
        "why_not": None,
    }
    return TaskReadModel(**reviews.shared(review, TaskReadModel) | mine | changes)
