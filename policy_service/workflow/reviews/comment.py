"""Comment: somebody's words about an open review, for the others who decide it, or a question for its agent.

Numbered as they run:

1. the review exists, and its writer was not taken out of the decisions meanwhile;
2. it is open: on one that is settled, over or replaced nobody is helped by words (409);
3. whoever may vote on it may write and ask; the agent's owner may write, and it says so beside the words; nobody else;
4. the same words of the same person again, while they stand unanswered, are the same comment;
5. a review holds so many comments and no more, of one person fewer still (429).

A comment decides nothing and stops no clock. Its words stay out of the log, which tells who wrote, when and whence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from countersign.contract import ErrorCode
from policy_service.errors import ConflictError, ForbiddenError, InvalidRequestError
from policy_service.pap.bundle import Bundle
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.messages import closed_review_text, require_text_length
from policy_service.queries.review_context import ReviewContext, read_review_context
from policy_service.queries.vote_eligibility import requesters_side
from policy_service.queries.voter import Voter, vote_refusal
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.database import Tx
from policy_service.storage.tables import CommentRow
from policy_service.storage.types import new_id
from policy_service.workflow.authorization import require_active_person
from policy_service.workflow.effects.termination import expire_effect
from policy_service.workflow.transitions import TransitionReason, insert, person_actor, publish_review_event

MAX_ON_A_REVIEW: Final = 100
"""Everybody who opens the review reads all of them, and so does its agent."""

MAX_OF_A_PERSON: Final = 20
"""So that no one person fills a review, or keeps its agent busy."""


@dataclass(frozen=True)
class CommentDraft:
    """What is written, where, and whether the agent is asked to answer it."""

    review_id: str
    text: str
    question: bool
    channel: str

    @property
    def kind(self) -> str:
        """As it is stored."""
        return "question" if self.question else "comment"


async def comment(
    ctx: Context, voter: Voter, remark: CommentDraft, *, still: Callable[[Tx], None] = lambda tx: None
) -> None:
    """Write a comment, or ask the agent. ``still`` refuses in the unit that writes it: whoever wrote may not by then.

    Raises:
        NotFoundError: no such review.
        ConflictError: review_closed.
        ForbiddenError: not_eligible.
        InvalidRequestError: no words, too many of them, too_large, rate_limited.
    """
    text = require_text(remark.text)
    review = await ctx.db.read(lambda conn: repository.require_review(conn, remark.review_id))
    if not await ctx.db.write(lambda tx: _comment(tx, ctx, review.txn, voter, remark, text, still)):
        raise review_expired_error()


def require_text(text: str) -> str:
    """The words without the space around them.

    Raises:
        InvalidRequestError: there are none, or too many.
    """
    words = text.replace("\r\n", "\n").strip()
    if not words:
        raise InvalidRequestError("write something: these are no words")
    return require_text_length(words)


def _comment(
    tx: Tx,
    ctx: Context,
    txn: str,
    voter: Voter,
    remark: CommentDraft,
    text: str,
    still: Callable[[Tx], None],
) -> bool:
    """Whether it was written; otherwise the review has expired in this unit, which stands."""
    tx = lock_transaction(tx, txn)
    require_active_person(tx, voter.iss, voter.sub)
    still(tx)
    case = read_review_context(tx.conn, remark.review_id)
    if case.review.state == "open" and tx.now >= case.review.answer_by:
        expire_effect(tx, case.snapshot, case.effect)
        return False
    require_open(case)
    own_side = voter.key in requesters_side(case.agent, case.review)
    _require_may_write(tx, ctx, ctx.active.current, case, voter, remark, own_side=own_side)
    written = case.snapshot.comments.get(remark.review_id, [])
    mine = [one for one in written if (one.iss, one.sub) == (voter.iss, voter.sub)]
    if any((one.kind, one.text, one.answer) == (remark.kind, text, None) for one in mine):
        return True
    _require_room(written, mine)
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
    told = "question_asked" if remark.question else "comment_written"
    detail = {"comment_id": row.comment_id, "channel": remark.channel, "for_requester": own_side}
    publish_review_event(
        tx, case.review, told, TransitionReason(person_actor(voter.iss, voter.sub), "comment"), **detail
    )
    return True


def require_open(case: ReviewContext) -> None:
    """Refuse words on what nobody decides any more.

    Raises:
        ConflictError: review_closed.
    """
    if case.review.state != "open":
        newer = case.snapshot.superseded_by
        why = (
            closed_review_text(case.review.state)
            if newer is None
            else f"this was replaced by revision {newer}"
        )
        raise ConflictError(f"{why}: nothing is added to it", code=ErrorCode.REVIEW_CLOSED)


def review_expired_error() -> ConflictError:
    """The refusal where the time to answer ran out meanwhile."""
    return ConflictError("the time to answer this review is over", code=ErrorCode.REVIEW_CLOSED)


def _require_may_write(
    tx: Tx,
    ctx: Context,
    bundle: Bundle,
    case: ReviewContext,
    voter: Voter,
    remark: CommentDraft,
    *,
    own_side: bool,
) -> None:
    if own_side and not remark.question:
        return
    reason = vote_refusal(ctx, bundle, case.agent, case.review, case.gates, voter, tx.now)
    if reason is not None:
        raise ForbiddenError(reason, code=ErrorCode.NOT_ELIGIBLE)


def _require_room(written: Sequence[CommentRow], mine: Sequence[CommentRow]) -> None:
    if len(mine) >= MAX_OF_A_PERSON:
        raise InvalidRequestError(
            f"you have written {MAX_OF_A_PERSON} comments here, the most one person may; decide, or go on in a ticket",
            code=ErrorCode.RATE_LIMITED,
        )
    if len(written) >= MAX_ON_A_REVIEW:
        raise InvalidRequestError(
            f"this review holds {MAX_ON_A_REVIEW} comments, the most it can; go on in a ticket",
            code=ErrorCode.RATE_LIMITED,
        )
