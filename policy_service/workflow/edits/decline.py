"""Decline: the agent or its owner does not want the arguments a reviewer proposed, or the reviewer takes them back.

The question stays open as it was: nobody's vote is touched.
"""

from __future__ import annotations

from policy_service.identity.agents import Caller
from policy_service.queries.context import Context
from policy_service.queries.proposal_views import require_proposal
from policy_service.queries.repository import Snapshot
from policy_service.queries.review_context import ReviewContext, read_review_context
from policy_service.queries.voter import Voter
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.database import Tx
from policy_service.storage.proposals import DECLINED, OPEN, ProposalRow
from policy_service.workflow.authorization import require_active_person
from policy_service.workflow.edits.accept import proposal_closed_error, require_may_answer, require_visible_to
from policy_service.workflow.transitions import TransitionReason, person_actor, transition_proposal


async def decline(ctx: Context, by: Caller | Voter, proposal_id: str, answer: str | None) -> Snapshot:
    """Decline a proposal, with words for whoever made it; declining it again changes nothing. The transaction.

    Raises:
        NotFoundError: no such proposal, or a stranger asks.
        ForbiddenError: not_eligible.
        ConflictError: proposal_closed: it was accepted, or it lapsed.
    """
    seen = await ctx.db.read(lambda conn: require_proposal(conn, proposal_id))
    return await ctx.db.write(lambda tx: _decline(tx, by, seen, answer))


def _decline(tx: Tx, by: Caller | Voter, seen: ProposalRow, answer: str | None) -> Snapshot:
    tx = lock_transaction(tx, seen.txn)
    proposal = require_proposal(tx.conn, seen.proposal_id)
    case = read_review_context(tx.conn, proposal.review_id)
    cause = _declining(tx, by, case, proposal)
    if proposal.state == DECLINED:
        return case.snapshot
    if proposal.state != OPEN:
        raise proposal_closed_error(proposal)
    transition_proposal(tx, case.review, proposal, DECLINED, cause, answer=(answer or "").strip() or None)
    case.snapshot.proposals = [
        row for row in case.snapshot.proposals if row.proposal_id != proposal.proposal_id
    ]
    return case.snapshot


def _declining(tx: Tx, by: Caller | Voter, case: ReviewContext, proposal: ProposalRow) -> TransitionReason:
    require_visible_to(by, case)
    if isinstance(by, Voter) and (by.iss, by.sub) == (proposal.iss, proposal.sub):
        require_active_person(tx, by.iss, by.sub)
        return TransitionReason(person_actor(by.iss, by.sub), "taken_back")
    return require_may_answer(tx, by, case, proposal).because("declined")
