"""Accept: the agent, or the person who owns it, takes the arguments a reviewer proposed.

Numbered as they run:

1. the proposal exists, and it is the agent itself or its owner who answers; never whoever made it;
2. one that was accepted is answered with the transaction as it is; any other that is closed is told so (409);
3. the question it was made on is still open and in time, and neither the agent nor the tool is stopped;
4. the proposal is accepted, and the revision it was made on ends: its votes void, its releases dead, what it held of
   the meters given back;
5. the whole list is decided from the start as a new revision, under the same call keys and effect ids.

Whoever changed arguments that are now in force is named on the revision (``effects/revisions.py``) and votes on none of
it.
"""

from __future__ import annotations

from collections.abc import Mapping

from countersign.contract import ErrorCode
from policy_service import tracing
from policy_service.domain.policy_request import Facts
from policy_service.errors import ConflictError, ForbiddenError
from policy_service.identity.agents import Caller
from policy_service.identity.people import is_revoked
from policy_service.pap.bundle import Bundle
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.proposal_views import require_proposal
from policy_service.queries.repository import Snapshot
from policy_service.queries.review_context import ReviewContext, read_review_context
from policy_service.queries.voter import Voter
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.database import Tx
from policy_service.storage.proposals import ACCEPTED, OPEN, ProposalRow, edits_of
from policy_service.storage.tables import AgentRow
from policy_service.workflow.authorization import (
    require_active_caller,
    require_active_person,
    require_effect_agent,
    require_owning_agent,
)
from policy_service.workflow.effects.digests import IdentifiedTransaction, identify_edited
from policy_service.workflow.effects.emergency_stop import require_not_stopped
from policy_service.workflow.effects.evaluation import (
    gather_facts,
    require_current_bundle,
    weakest_auth_method,
    with_stable_bundle,
)
from policy_service.workflow.effects.revisions import RevisionRequest, create_revision
from policy_service.workflow.effects.submit import supersede
from policy_service.workflow.transitions import (
    TransitionReason,
    agent_actor,
    person_actor,
    transition_proposal,
)


async def accept(ctx: Context, by: Caller | Voter, proposal_id: str) -> Snapshot:
    """Accept a proposal; the transaction in force afterwards.

    Raises:
        NotFoundError: no such proposal, or a stranger asks.
        ForbiddenError: not_eligible, frozen.
        ConflictError: proposal_closed.
    """

    async def under(bundle: Bundle) -> Snapshot:
        proposal = await ctx.db.read(lambda conn: require_proposal(conn, proposal_id))
        case = await ctx.db.read(lambda conn: read_review_context(conn, proposal.review_id))
        require_visible_to(by, case)
        named = identify_edited(bundle, case.snapshot, edits_of([proposal]))
        facts = await gather_facts(bundle, named.effects, ctx.clock())
        return await ctx.db.write(lambda tx: _accept(tx, ctx, bundle, by, proposal, named, facts))

    return await with_stable_bundle(ctx, under)


def require_visible_to(by: Caller | Voter, case: ReviewContext) -> None:
    """People see every proposal; an agent those about what it submitted, and no other.

    Raises:
        NotFoundError, ForbiddenError: as for the transaction.
    """
    if isinstance(by, Caller):
        require_owning_agent(by, case.snapshot.transaction)


def require_may_answer(
    tx: Tx, by: Caller | Voter, case: ReviewContext, proposal: ProposalRow
) -> TransitionReason:
    """The agent itself, or the person who owns it; never whoever proposed.

    Raises:
        ForbiddenError: not_eligible, or it may not act any more.
    """
    if isinstance(by, Caller):
        require_visible_to(by, case)
        require_active_caller(tx, by)
        return TransitionReason(agent_actor(by.agent), "submit")
    require_active_person(tx, by.iss, by.sub)
    if by.key != case.agent.owner:
        owner = case.agent.owner or f"nobody: {case.agent.name} has no owner"
        raise ForbiddenError(
            f"only {case.agent.name} itself or its owner takes a change of what it asked for; that is {owner}",
            code=ErrorCode.NOT_ELIGIBLE,
        )
    if (by.iss, by.sub) == (proposal.iss, proposal.sub):
        raise ForbiddenError(
            "you proposed it yourself; the agent has to accept it", code=ErrorCode.NOT_ELIGIBLE
        )
    return TransitionReason(person_actor(by.iss, by.sub), "submit")


def proposal_closed_error(proposal: ProposalRow) -> ConflictError:
    """409: it was answered already, or its question is no more."""
    return ConflictError(
        f"nothing was changed: the proposal is {proposal.state} by now",
        code=ErrorCode.PROPOSAL_CLOSED,
        state=proposal.state,
    )


def _accept(
    tx: Tx,
    ctx: Context,
    bundle: Bundle,
    by: Caller | Voter,
    seen: ProposalRow,
    named: IdentifiedTransaction,
    facts: Mapping[str, Facts],
) -> Snapshot:
    require_current_bundle(ctx, bundle)
    tx = lock_transaction(tx, seen.txn)
    proposal = require_proposal(tx.conn, seen.proposal_id)
    case = read_review_context(tx.conn, proposal.review_id)
    cause = require_may_answer(tx, by, case, proposal)
    if proposal.state == ACCEPTED:
        return repository.require_transaction(tx.conn, proposal.txn)
    agent = _require_going_on(tx, case, proposal)
    rev = case.snapshot.head_rev + 1
    transition_proposal(tx, case.review, proposal, ACCEPTED, cause.because("accepted"), became_rev=rev)
    supersede(tx, case.snapshot, cause)
    return create_revision(tx, ctx, _asked(bundle, by, case.snapshot, named, facts), agent, rev, cause)


def _require_going_on(tx: Tx, case: ReviewContext, proposal: ProposalRow) -> AgentRow:
    """Whatever the proposal was made on still stands. INVARIANT: an open proposal's revision is the one in force."""
    over = any(
        review.state == "open" and tx.now >= review.answer_by for review in case.snapshot.reviews.values()
    )
    if proposal.state != OPEN or case.snapshot.superseded_by is not None or over:
        raise proposal_closed_error(proposal) if proposal.state != OPEN else _too_late()
    if is_revoked(tx.conn, proposal.iss, proposal.sub):
        raise ConflictError(
            f"{proposal.name} was taken out of this deployment's decisions, and so is what they proposed",
            code=ErrorCode.PROPOSAL_CLOSED,
        )
    require_not_stopped(tx, [effect.tool for effect in case.snapshot.effects])
    return require_effect_agent(tx, case.agent.name, "effect")


def _too_late() -> ConflictError:
    return ConflictError(
        "nothing was changed: the time to answer the question is over", code=ErrorCode.PROPOSAL_CLOSED
    )


def _asked(
    bundle: Bundle,
    by: Caller | Voter,
    head: Snapshot,
    named: IdentifiedTransaction,
    facts: Mapping[str, Facts],
) -> RevisionRequest:
    """The same list, asked for by the same agent, which proved itself as weakly as ever."""
    row, caller = head.transaction, by if isinstance(by, Caller) else None
    return RevisionRequest(
        bundle=bundle,
        named=named,
        facts=facts,
        run_key=row.run_key,
        independent=row.independent,
        claimed=row.claimed,
        method=weakest_auth_method(head, caller),
        jkt=row.jkt if caller is None else caller.jkt,
        trace=tracing.current_traceparent(),
    )
