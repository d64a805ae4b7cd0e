"""Comments: people write about an open review or ask its agent a question, and the agent answers.

Comments affect neither votes nor the deadline. Their text is not in the audit log, which records who wrote, when and
from which channel.

1. The review must exist, and the writer must not be revoked.
2. The review must be open: a comment on a settled, expired or superseded review helps no one (409).
3. Eligible voters may comment and ask. The agent's owner may comment, marked as the requester's side. No one else may.
4. The same text by the same person, while unanswered, is the same comment.
5. The number of comments is limited for each review and each person (429).

An answer is the agent's claim and is shown as one. It is never a fact, a vote or a change of the arguments. Only the
agent of the effect answers, while the review is open. A question is answered once: the same answer again is accepted,
also after the review has settled, and another one is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from countersign.contract import ErrorCode
from policy_service.errors import ConflictError, ForbiddenError, InvalidRequestError, NotFoundError
from policy_service.identity.agents import Caller
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.repository import Snapshot
from policy_service.queries.review_context import (
    ReviewContext,
    closed_review_text,
    read_review_context,
    require_text_length,
)
from policy_service.queries.vote_eligibility import Voter, requesters_side, vote_refusal
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.core import update_rows
from policy_service.storage.database import Tx
from policy_service.storage.tables import CommentRow, ReviewRow
from policy_service.storage.types import new_id
from policy_service.workflow.authorization import require_active_caller, require_active_person
from policy_service.workflow.effects.outcomes import expire_effect
from policy_service.workflow.transitions import (
    TransitionReason,
    insert,
    publish_review_event,
)

MAX_ON_A_REVIEW: Final = 100
"""Every reader of the review, and its agent, reads all of them."""

MAX_OF_A_PERSON: Final = 20
"""One person must not fill a review or keep its agent busy."""


@dataclass(frozen=True)
class CommentDraft:
    """A comment or question to be written."""

    review_id: str
    text: str
    question: bool
    channel: str

    @property
    def kind(self) -> str:
        """The kind as stored."""
        return "question" if self.question else "comment"


async def comment(
    ctx: Context, voter: Voter, remark: CommentDraft, *, recheck: Callable[[Tx], None] = lambda tx: None
) -> None:
    """Write a comment, or ask the agent. ``recheck`` runs in the unit of work, and raises if the writer no longer may.

    Raises:
        NotFoundError: no such review.
        ConflictError: review_closed.
        ForbiddenError: not_eligible.
        InvalidRequestError: an empty or too long text, rate_limited.
    """
    text = require_text(remark.text)
    review = await ctx.db.read(lambda conn: repository.require_review(conn, remark.review_id))
    if not await ctx.db.write(lambda tx: _comment(tx, ctx, review.txn, voter, remark, text, recheck)):
        raise review_expired_error()


def require_text(text: str) -> str:
    """The text without surrounding space.

    Raises:
        InvalidRequestError: it is empty or too long.
    """
    words = text.replace("\r\n", "\n").strip()
    if not words:
        raise InvalidRequestError("the text is empty; write something")
    return require_text_length(words)


def _comment(
    tx: Tx,
    ctx: Context,
    txn: str,
    voter: Voter,
    remark: CommentDraft,
    text: str,
    recheck: Callable[[Tx], None],
) -> bool:
    """Whether it was written. If not, this unit expired the review, and is committed."""
    tx = lock_transaction(tx, txn)
    require_active_person(tx, voter.iss, voter.sub)
    recheck(tx)
    case = read_review_context(tx.conn, remark.review_id)
    if case.review.state == "open" and tx.now >= case.review.answer_by:
        expire_effect(tx, case.snapshot, case.effect)
        return False
    require_open(case)
    own_side = voter.key in requesters_side(case.agent, case.review)
    if remark.question or not own_side:
        bundle = ctx.active.current
        reason = vote_refusal(ctx, bundle, case.agent, case.review, case.gates, voter, tx.now)
        if reason is not None:
            raise ForbiddenError(reason, code=ErrorCode.NOT_ELIGIBLE)
    written = case.snapshot.comments.get(remark.review_id, [])
    mine = [one for one in written if (one.iss, one.sub) == (voter.iss, voter.sub)]
    if any((one.kind, one.text, one.answer) == (remark.kind, text, None) for one in mine):
        return True
    _require_below_limits(written, mine)
    row = CommentRow(
        comment_id=new_id("comment", tx.now),
        review_id=remark.review_id,
        txn=txn,
        kind=remark.kind,
        iss=voter.iss,
        sub=voter.sub,
        name=voter.name,
        assurance=voter.assurance,
        for_requester=own_side,
        text=text,
        channel=remark.channel,
        written_at=tx.now,
    )
    insert(tx, row)
    kind = "question_asked" if remark.question else "comment_written"
    detail = {"comment_id": row.comment_id, "channel": remark.channel, "for_requester": own_side}
    publish_review_event(
        tx, case.review, kind, TransitionReason.by_person(voter.iss, voter.sub, "comment"), **detail
    )
    return True


def require_open(case: ReviewContext) -> None:
    """Require that the review is open.

    Raises:
        ConflictError: review_closed.
    """
    if case.review.state != "open":
        newer = case.snapshot.superseded_by
        why = (
            closed_review_text(case.review.state)
            if newer is None
            else f"revision {newer} superseded this one"
        )
        raise ConflictError(f"{why}, so no comment can be added", code=ErrorCode.REVIEW_CLOSED)


def review_expired_error() -> ConflictError:
    """409 review_closed, after the deadline has passed."""
    return ConflictError(closed_review_text("expired"), code=ErrorCode.REVIEW_CLOSED)


def _require_below_limits(written: Sequence[CommentRow], mine: Sequence[CommentRow]) -> None:
    if len(mine) >= MAX_OF_A_PERSON:
        raise InvalidRequestError(
            f"you have written {MAX_OF_A_PERSON} comments here, the limit for a person; decide, or use a ticket",
            code=ErrorCode.RATE_LIMITED,
        )
    if len(written) >= MAX_ON_A_REVIEW:
        raise InvalidRequestError(
            f"this review holds {MAX_ON_A_REVIEW} comments, the limit for one review; continue in a ticket",
            code=ErrorCode.RATE_LIMITED,
        )


# -- the agent's answer -----------------------------------------------------------------------------------------------


async def answer(ctx: Context, caller: Caller, review_id: str, question_id: str, text: str) -> Snapshot:
    """Answer a question; returns the transaction afterwards.

    Raises:
        NotFoundError: no such review or question, or it is another agent's.
        ConflictError: review_closed, already_answered.
        ForbiddenError: the agent is frozen or not enrolled.
        UnauthenticatedError: its key was revoked meanwhile.
        InvalidRequestError: an empty or too long text.
    """
    words = require_text(text)
    review = await ctx.db.read(lambda conn: repository.require_review(conn, review_id))
    if caller.agent != review.agent:  # the same response as for a review that does not exist
        raise NotFoundError(f"there is no review {review_id!r}")
    unit = partial(_answer, caller=caller, review=review, question_id=question_id, words=words)
    if (answered := await ctx.db.write(unit)) is None:
        raise review_expired_error()
    return answered


def _answer(tx: Tx, *, caller: Caller, review: ReviewRow, question_id: str, words: str) -> Snapshot | None:
    """The transaction; or None if this unit expired the review, and is committed."""
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
            f"question {question_id!r} already has another answer, which is kept",
            code=ErrorCode.ALREADY_ANSWERED,
        )
    update_rows(tx.conn, CommentRow, {"comment_id": question_id}, {"answer": words, "answered_at": tx.now})
    question.answer, question.answered_at = words, tx.now
    cause = TransitionReason.by_agent(caller.agent, "answer")
    publish_review_event(tx, case.review, "question_answered", cause, comment_id=question_id)
    return case.snapshot


def _question(case: ReviewContext, question_id: str) -> CommentRow:
    written = case.snapshot.comments.get(case.review.review_id, [])
    for one in written:
        if one.comment_id == question_id and one.kind == "question":
            return one
    raise NotFoundError(f"review {case.review.review_id!r} has no question {question_id!r}")
