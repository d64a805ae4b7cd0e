"""Proposals: a reviewer proposes other arguments instead of denying; the agent or its owner accepts or declines them.

Proposing:

1. The review must exist, and the proposal must name its revision and digests. Otherwise the person read something else.
2. Only people who may vote on the review may propose: not the requester's side, nor people who edited it before.
3. The review must be open.
4. A reason is required; the agent and its owner read it.
5. The arguments must pass the checks of a submission, and differ from those in force.
6. It replaces an open proposal of the same person on the same review. The number for each person is limited (429).

A proposal is not a vote, and the review stays open. Accepting:

1. The proposal must exist. The agent itself or its owner accepts or declines it, never the person who proposed it.
2. An accepted proposal returns the transaction as it is. Any other closed proposal is refused (409).
3. The review must be open and in time, and neither the agent nor a tool may be stopped.
4. The proposal is accepted, and its revision ends: its votes and releases are void, its reservations released.
5. The whole list is decided as a new revision, with the same call keys and effect ids.

People who edited arguments in force are stored on the revision (`effects/revisions.py`) and may not vote on it.
Declining leaves the review and its votes as they are. The person who proposed can withdraw the proposal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from countersign.contract import JSON, ErrorCode, digests, load
from policy_service import tracing
from policy_service.domain.policy_request import Facts
from policy_service.errors import ConflictError, ForbiddenError, InvalidRequestError
from policy_service.identity.agents import Caller
from policy_service.identity.people import is_revoked
from policy_service.pap.bundle import Bundle
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.proposal_views import canonical_proposed_args, require_proposal
from policy_service.queries.repository import Snapshot
from policy_service.queries.review_context import ReviewContext, read_review_context
from policy_service.queries.vote_eligibility import Voter, vote_refusal
from policy_service.storage import review_tables
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.database import Tx
from policy_service.storage.review_tables import ACCEPTED, DECLINED, LAPSED, OPEN, ProposalRow, edits_of
from policy_service.storage.tables import AgentRow
from policy_service.storage.types import new_id
from policy_service.workflow.authorization import (
    require_active_caller,
    require_active_person,
    require_effect_agent,
    require_none_stopped,
    require_owning_agent,
)
from policy_service.workflow.effects.digests import IdentifiedTransaction, identify_edited
from policy_service.workflow.effects.evaluation import (
    gather_facts,
    require_current_bundle,
    weakest_auth_method,
    with_stable_bundle,
)
from policy_service.workflow.effects.revisions import RevisionRequest, create_revision, supersede
from policy_service.workflow.reviews.vote import require_same_bytes
from policy_service.workflow.transitions import (
    TransitionReason,
    insert,
    publish_review_event,
    transition_proposal,
)

MAX_OF_A_PERSON: Final = 20
"""On one review, including closed proposals: each adds to its history and needs the agent's attention."""


@dataclass(frozen=True)
class ProposalRequest:
    """The proposed arguments, and the effect they are for."""

    review_id: str
    rev: int
    effect_digest: str
    txn_digest: str
    args: Mapping[str, JSON]  # without secret arguments
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

    async def work(bundle: Bundle) -> ProposalRow:
        txn = (await ctx.db.read(lambda conn: repository.require_review(conn, proposed.review_id))).txn
        return await ctx.db.write(lambda tx: _propose(tx, ctx, bundle, voter, proposed, txn))

    return await with_stable_bundle(ctx, work)


def require_proposable(tx: Tx, ctx: Context, bundle: Bundle, case: ReviewContext, voter: Voter) -> None:
    """Refuse people who may not propose, and effects that can no longer be edited (2, 3)."""
    reason = vote_refusal(ctx, bundle, case.agent, case.review, case.gates, voter, tx.now)
    if reason is not None:
        raise ForbiddenError(reason, code=ErrorCode.NOT_ELIGIBLE)
    if case.review.state != "open" or tx.now >= case.review.answer_by:
        raise ConflictError(
            "nothing was proposed: the review has settled, or its deadline has passed",
            code=ErrorCode.REVIEW_CLOSED,
        )
    if case.effect.kind != "effect":
        raise InvalidRequestError(
            "this is a compensation: its arguments follow from the effect it compensates and cannot be edited"
        )


def _propose(
    tx: Tx, ctx: Context, bundle: Bundle, voter: Voter, proposed: ProposalRequest, txn: str
) -> ProposalRow:
    require_current_bundle(ctx, bundle)
    tx = lock_transaction(tx, txn)
    require_active_person(tx, voter.iss, voter.sub)
    case = read_review_context(tx.conn, proposed.review_id)
    read = (proposed.rev, proposed.effect_digest, proposed.txn_digest)
    require_same_bytes(tx, case, *read, undone="nothing was proposed")
    require_proposable(tx, ctx, bundle, case, voter)
    reason = (proposed.reason or "").strip()
    if not reason:
        raise InvalidRequestError(
            "give a reason: the agent and its owner read it", code=ErrorCode.REASON_REQUIRED
        )
    args = canonical_proposed_args(bundle, case.effect, proposed.args)
    cause = TransitionReason.by_person(voter.iss, voter.sub, "proposed")
    earlier = review_tables.proposals_by(tx.conn, case.review.review_id, voter.iss, voter.sub)
    current = next((one for one in earlier if one.state == OPEN), None)
    if current is not None and (current.args, current.reason) == (args, reason):
        return current
    _require_below_limit(earlier)
    if current is not None:
        transition_proposal(tx, case.review, current, LAPSED, cause.because("replaced"))
    return _record(tx, case, voter, proposed, args, reason, cause)


def _require_below_limit(earlier: Sequence[ProposalRow]) -> None:
    if len(earlier) >= MAX_OF_A_PERSON:
        raise InvalidRequestError(
            f"you have proposed {MAX_OF_A_PERSON} changes here, the limit for one person; decide, or write a comment",
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
        args_digest=digests.args_digest(args=load(args)),
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


# -- accepting ---------------------------------------------------------------------------------------------------------


async def accept(ctx: Context, by: Caller | Voter, proposal_id: str) -> Snapshot:
    """Accept a proposal; returns the transaction in force afterwards.

    Raises:
        NotFoundError: no such proposal, or the caller may not see it.
        ForbiddenError: not_eligible, frozen.
        ConflictError: proposal_closed.
    """

    async def work(bundle: Bundle) -> Snapshot:
        proposal = await ctx.db.read(lambda conn: require_proposal(conn, proposal_id))
        case = await ctx.db.read(lambda conn: read_review_context(conn, proposal.review_id))
        _require_visible_to(by, case)
        named = identify_edited(bundle, case.snapshot, edits_of([proposal]))
        facts = await gather_facts(bundle, named.effects, ctx.clock())
        return await ctx.db.write(lambda tx: _accept(tx, ctx, bundle, by, proposal, named, facts))

    return await with_stable_bundle(ctx, work)


def _require_visible_to(by: Caller | Voter, case: ReviewContext) -> None:
    """Require that the caller may see the proposal: people see all, an agent those about its own transactions.

    Raises:
        NotFoundError, ForbiddenError: as for the transaction.
    """
    if isinstance(by, Caller):
        require_owning_agent(by, case.snapshot.transaction)


def _require_may_answer(
    tx: Tx, by: Caller | Voter, case: ReviewContext, proposal: ProposalRow
) -> TransitionReason:
    """Require the agent itself or its owner, and not the person who proposed.

    Raises:
        ForbiddenError: not_eligible, or the caller may no longer act.
    """
    if isinstance(by, Caller):
        _require_visible_to(by, case)
        require_active_caller(tx, by)
        return TransitionReason.by_agent(by.agent, "submit")
    require_active_person(tx, by.iss, by.sub)
    if by.key != case.agent.owner:
        owner = case.agent.owner or f"no one: {case.agent.name} has no owner"
        raise ForbiddenError(
            f"only {case.agent.name} itself or its owner may accept or decline a proposal; its owner is {owner}",
            code=ErrorCode.NOT_ELIGIBLE,
        )
    if (by.iss, by.sub) == (proposal.iss, proposal.sub):
        raise ForbiddenError(
            "you proposed it yourself; the agent has to accept it", code=ErrorCode.NOT_ELIGIBLE
        )
    return TransitionReason.by_person(by.iss, by.sub, "submit")


def _proposal_closed_error(proposal: ProposalRow) -> ConflictError:
    """409 proposal_closed."""
    return ConflictError(
        f"nothing was changed: the proposal is {proposal.state}",
        code=ErrorCode.PROPOSAL_CLOSED,
        state=proposal.state,
    )


def _accept(
    tx: Tx,
    ctx: Context,
    bundle: Bundle,
    by: Caller | Voter,
    unlocked: ProposalRow,
    named: IdentifiedTransaction,
    facts: Mapping[str, Facts],
) -> Snapshot:
    require_current_bundle(ctx, bundle)
    tx = lock_transaction(tx, unlocked.txn)
    proposal = require_proposal(tx.conn, unlocked.proposal_id)
    case = read_review_context(tx.conn, proposal.review_id)
    cause = _require_may_answer(tx, by, case, proposal)
    if proposal.state == ACCEPTED:
        return repository.require_transaction(tx.conn, proposal.txn)
    agent = _require_applicable(tx, case, proposal)
    rev = case.snapshot.head_rev + 1
    transition_proposal(tx, case.review, proposal, ACCEPTED, cause.because("accepted"), became_rev=rev)
    supersede(tx, case.snapshot, cause)
    row, caller = case.snapshot.transaction, by if isinstance(by, Caller) else None
    request = RevisionRequest(
        bundle=bundle,
        named=named,
        facts=facts,
        run_key=row.run_key,
        independent=row.independent,
        claimed=row.claimed,
        method=weakest_auth_method(case.snapshot, caller),
        jkt=row.jkt if caller is None else caller.jkt,
        trace=tracing.current_traceparent(),
    )
    return create_revision(tx, ctx, request, agent, rev, cause)


def _require_applicable(tx: Tx, case: ReviewContext, proposal: ProposalRow) -> AgentRow:
    """Require that the proposal can take effect. INVARIANT: the revision of an open proposal is the one in force."""
    if proposal.state != OPEN:
        raise _proposal_closed_error(proposal)
    reviews = case.snapshot.reviews.values()
    expired = any(review.state == "open" and tx.now >= review.answer_by for review in reviews)
    if case.snapshot.superseded_by is not None or expired:
        raise ConflictError(
            "nothing was changed: the deadline of the review has passed", code=ErrorCode.PROPOSAL_CLOSED
        )
    if is_revoked(tx.conn, proposal.iss, proposal.sub):
        raise ConflictError(
            f"an operator has revoked {proposal.name}, and with them this proposal",
            code=ErrorCode.PROPOSAL_CLOSED,
        )
    require_none_stopped(tx, [effect.tool for effect in case.snapshot.effects])
    return require_effect_agent(tx, case.agent.name)


# -- declining ---------------------------------------------------------------------------------------------------------


async def decline(ctx: Context, by: Caller | Voter, proposal_id: str, answer: str | None) -> Snapshot:
    """Decline a proposal, with a text for its author; returns the transaction. Declining again changes nothing.

    Raises:
        NotFoundError: no such proposal, or the caller may not see it.
        ForbiddenError: not_eligible.
        ConflictError: proposal_closed: it was accepted, or it lapsed.
    """
    unlocked = await ctx.db.read(lambda conn: require_proposal(conn, proposal_id))
    return await ctx.db.write(lambda tx: _decline(tx, by, unlocked, answer))


def _decline(tx: Tx, by: Caller | Voter, unlocked: ProposalRow, answer: str | None) -> Snapshot:
    tx = lock_transaction(tx, unlocked.txn)
    proposal = require_proposal(tx.conn, unlocked.proposal_id)
    case = read_review_context(tx.conn, proposal.review_id)
    cause = _declining(tx, by, case, proposal)
    if proposal.state == DECLINED:
        return case.snapshot
    if proposal.state != OPEN:
        raise _proposal_closed_error(proposal)
    transition_proposal(tx, case.review, proposal, DECLINED, cause, answer=(answer or "").strip() or None)
    case.snapshot.proposals = [
        row for row in case.snapshot.proposals if row.proposal_id != proposal.proposal_id
    ]
    return case.snapshot


def _declining(tx: Tx, by: Caller | Voter, case: ReviewContext, proposal: ProposalRow) -> TransitionReason:
    _require_visible_to(by, case)
    if isinstance(by, Voter) and (by.iss, by.sub) == (proposal.iss, proposal.sub):
        require_active_person(tx, by.iss, by.sub)
        return TransitionReason.by_person(by.iss, by.sub, "taken_back")
    return _require_may_answer(tx, by, case, proposal).because("declined")
