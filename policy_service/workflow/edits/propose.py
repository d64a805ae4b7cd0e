"""Propose: a reviewer offers other arguments instead of a denial.

Numbered as they run:

1. the review exists, and the proposal names its revision and digests: otherwise the person read something else (409);
2. whoever may vote on it may propose, and nobody else: not the requester's side, nor who changed it before;
3. the review is still open: a settled question has nothing to change;
4. it has a reason: the agent and its owner read it;
5. the arguments pass what a submission of them would pass, and differ from those that stand;
6. an open proposal of the same person on the same review gives way to it; of one person a review takes so many and no
   more (429).

Nothing else moves: proposing is no vote, and the question stays open as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from countersign.contract import JSON, ErrorCode, load, names
from policy_service.errors import ConflictError, ForbiddenError, InvalidRequestError
from policy_service.pap.bundle import Bundle
from policy_service.queries import repository
from policy_service.queries.arg_diff import stale_review
from policy_service.queries.context import Context
from policy_service.queries.proposed_args import canonical_proposed_args
from policy_service.queries.review_context import ReviewContext, read_review_context
from policy_service.queries.voter import Voter, vote_refusal
from policy_service.storage import proposals
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.database import Tx
from policy_service.storage.proposals import LAPSED, OPEN, ProposalRow
from policy_service.storage.types import new_id
from policy_service.workflow.authorization import require_active_person
from policy_service.workflow.effects.evaluation import require_current_bundle, with_stable_bundle
from policy_service.workflow.transitions import (
    TransitionReason,
    insert,
    person_actor,
    publish_review_event,
    transition_proposal,
)

MAX_OF_A_PERSON: Final = 20
"""On one review, whatever became of them: each is a line of its story and a question to the agent's side."""


@dataclass(frozen=True)
class ProposalRequest:
    """What is proposed, and in place of what."""

    review_id: str
    rev: int
    effect_digest: str
    txn_digest: str
    args: Mapping[str, JSON]  # without those that people are not shown
    reason: str | None
    channel: str


async def propose(ctx: Context, voter: Voter, proposed: ProposalRequest) -> ProposalRow:
    """Propose other arguments.

    Raises:
        NotFoundError: no such review.
        ConflictError: stale_review with what changed; review_closed.
        ForbiddenError: not_eligible.
        RequestError: reason_required, rate_limited, or what is wrong with the arguments.
    """

    async def under(bundle: Bundle) -> ProposalRow:
        txn = (await ctx.db.read(lambda conn: repository.require_review(conn, proposed.review_id))).txn
        return await ctx.db.write(lambda tx: _propose(tx, ctx, bundle, voter, proposed, txn))

    return await with_stable_bundle(ctx, under)


def require_proposable(tx: Tx, ctx: Context, bundle: Bundle, case: ReviewContext, voter: Voter) -> None:
    """Refuse who may not propose, and what cannot be changed any more (2, 3)."""
    reason = vote_refusal(ctx, bundle, case.agent, case.review, case.gates, voter, tx.now)
    if reason is not None:
        raise ForbiddenError(reason, code=ErrorCode.NOT_ELIGIBLE)
    if case.review.state != "open" or tx.now >= case.review.answer_by:
        raise ConflictError(
            "nothing was proposed: the question has settled, or its time is over",
            code=ErrorCode.REVIEW_CLOSED,
        )
    if case.effect.kind != "effect":
        raise InvalidRequestError(
            "this takes back what fired before: its arguments follow from that call and cannot be changed"
        )


def _propose(
    tx: Tx, ctx: Context, bundle: Bundle, voter: Voter, proposed: ProposalRequest, txn: str
) -> ProposalRow:
    require_current_bundle(ctx, bundle)
    tx = lock_transaction(tx, txn)
    require_active_person(tx, voter.iss, voter.sub)
    case = read_review_context(tx.conn, proposed.review_id)
    _require_same_bytes(tx, case, proposed)
    require_proposable(tx, ctx, bundle, case, voter)
    reason = (proposed.reason or "").strip()
    if not reason:
        raise InvalidRequestError("say why: the agent and its owner read it", code=ErrorCode.REASON_REQUIRED)
    args = canonical_proposed_args(bundle, case.effect, proposed.args)
    cause = TransitionReason(person_actor(voter.iss, voter.sub), "proposed")
    made = proposals.proposals_by(tx.conn, case.review.review_id, voter.iss, voter.sub)
    mine = next((one for one in made if one.state == OPEN), None)
    if mine is not None and (mine.args, mine.reason) == (args, reason):
        return mine
    _require_room(made)
    if mine is not None:
        transition_proposal(tx, case.review, mine, LAPSED, cause.because("replaced"))
    return _record(tx, case, voter, proposed, args, reason, cause)


def _require_same_bytes(tx: Tx, case: ReviewContext, proposed: ProposalRequest) -> None:
    seen = (proposed.rev, proposed.effect_digest, proposed.txn_digest)
    stands = (case.review.rev, case.effect.effect_digest, case.snapshot.transaction.txn_digest)
    if seen != stands or case.snapshot.superseded_by is not None:
        raise stale_review(tx.conn, case.snapshot, case.effect, proposed.rev, undone="nothing was proposed")


def _require_room(made: Sequence[ProposalRow]) -> None:
    if len(made) >= MAX_OF_A_PERSON:
        raise InvalidRequestError(
            f"you have proposed {MAX_OF_A_PERSON} changes here, the most one person may; decide, or write a comment",
            code=ErrorCode.RATE_LIMITED,
        )


def _record(
    tx: Tx,
    case: ReviewContext,
    voter: Voter,
    proposed: ProposalRequest,
    args: bytes,
    reason: str,
    cause: TransitionReason,
) -> ProposalRow:
    row = ProposalRow(
        proposal_id=new_id("prop", tx.now),
        review_id=case.review.review_id,
        txn=case.effect.txn,
        effect_id=case.effect.effect_id,
        rev=case.effect.rev,
        tool_digest=case.effect.tool_digest,
        iss=voter.iss,
        sub=voter.sub,
        name=voter.name,
        assurance=voter.assurance,
        args=args,
        args_digest=names.args_digest(args=load(args)),
        reason=reason,
        channel=proposed.channel,
        proposed_at=tx.now,
    )
    insert(tx, row)
    detail = {"proposal_id": row.proposal_id, "args_digest": row.args_digest, "channel": row.channel}
    publish_review_event(
        tx, case.review, "proposal_opened", cause, effect_digest=case.effect.effect_digest, **detail
    )
    return row
