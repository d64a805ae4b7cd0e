"""Answer: an agent says something to a question about one of its reviews.

What it says is its claim: shown as such, never a fact, a vote or a change of the bytes. Rules: only the agent whose
effect it is, while the review is open; a question is answered once, the same answer again is the same answer (also
when the review has settled since), another one is refused.
"""

from __future__ import annotations

from functools import partial

from countersign.contract import ErrorCode
from policy_service.errors import ConflictError, NotFoundError
from policy_service.identity.agents import Caller
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.repository import Snapshot
from policy_service.queries.review_context import ReviewContext, read_review_context
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.core import update_rows
from policy_service.storage.database import Tx
from policy_service.storage.tables import CommentRow, ReviewRow
from policy_service.workflow.authorization import require_active_caller
from policy_service.workflow.effects.termination import expire_effect
from policy_service.workflow.reviews.comment import require_open, require_text, review_expired_error
from policy_service.workflow.transitions import TransitionReason, agent_actor, publish_review_event


async def answer(ctx: Context, caller: Caller, review_id: str, question_id: str, text: str) -> Snapshot:
    """Answer a question; the transaction as it is then.

    Raises:
        NotFoundError: no such review or question, or another agent's.
        ConflictError: review_closed, already_answered.
        ForbiddenError: the agent is frozen or not enrolled.
        UnauthenticatedError: its key was revoked meanwhile.
        InvalidRequestError: no words, or too many.
    """
    words = require_text(text)
    review = await ctx.db.read(lambda conn: repository.require_review(conn, review_id))
    if caller.agent != review.agent:  # a stranger hears what it would of a review that does not exist
        raise NotFoundError(f"there is no review {review_id!r}")
    unit = partial(_answer, caller=caller, review=review, question_id=question_id, words=words)
    if (answered := await ctx.db.write(unit)) is None:
        raise review_expired_error()
    return answered


def _answer(tx: Tx, *, caller: Caller, review: ReviewRow, question_id: str, words: str) -> Snapshot | None:
    """None: the review has expired in this unit, which stands."""
    tx = lock_transaction(tx, review.txn)
    require_active_caller(tx, caller)
    case = read_review_context(tx.conn, review.review_id)
    question = _question(case, question_id)
    if question.answer == words:
        return case.snapshot
    if case.review.state == "open" and tx.now >= case.review.answer_by:
        expire_effect(tx, case.snapshot, case.effect)
        return None
    require_open(case)
    if question.answer is not None:
        raise ConflictError(
            f"question {question_id!r} was answered already, and otherwise; the first answer stands",
            code=ErrorCode.ALREADY_ANSWERED,
        )
    update_rows(tx.conn, CommentRow, {"comment_id": question_id}, {"answer": words, "answered_at": tx.now})
    question.answer, question.answered_at = words, tx.now
    cause = TransitionReason(agent_actor(caller.agent), "answer")
    publish_review_event(tx, case.review, "question_answered", cause, comment_id=question_id)
    return case.snapshot


def _question(case: ReviewContext, question_id: str) -> CommentRow:
    written = case.snapshot.comments.get(case.review.review_id, [])
    for one in written:
        if one.comment_id == question_id and one.kind == "question":
            return one
    raise NotFoundError(f"review {case.review.review_id!r} has no question {question_id!r}")
