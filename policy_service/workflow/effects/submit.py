"""Submit: name the effects, look up the facts, decide, and write it all down in one unit of work.

Submitted again under the same run key: an open transaction answers as it is now; one that was spent answers with its
outcome, or 409 ``already_redeemed`` when the list is another; one that ended unspent is decided afresh as a new
revision, except that a person's deny of the same list is answered again. Another list supersedes what was open.

A change that was accepted stands for its call as long as the run key is used: whoever submits the call again gets the
changed arguments, never the staged ones back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, select

from countersign.contract import EffectState, ErrorCode, TxnState
from countersign.contract.wire import SubmitRequest
from policy_service import tracing
from policy_service.domain.policy_request import Facts
from policy_service.errors import ConflictError
from policy_service.identity.agents import Caller
from policy_service.pap.bundle import Bundle
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.repository import Snapshot
from policy_service.storage.core import table
from policy_service.storage.database import Tx
from policy_service.storage.proposals import Edits, accepted_proposals, edits_of
from policy_service.storage.tables import AgentRow, EffectRow, VoteRow
from policy_service.workflow.authorization import require_active_caller
from policy_service.workflow.effects import idempotency
from policy_service.workflow.effects.digests import IdentifiedTransaction, identify_transaction
from policy_service.workflow.effects.emergency_stop import require_not_stopped
from policy_service.workflow.effects.epochs import require_current_epoch
from policy_service.workflow.effects.evaluation import gather_facts, require_current_bundle
from policy_service.workflow.effects.revisions import RevisionRequest, create_revision
from policy_service.workflow.effects.termination import expire_if_unanswered, expire_if_unused
from policy_service.workflow.transitions import (
    TransitionReason,
    agent_actor,
    transition_transaction,
    withdraw_siblings,
)

_SPENT = frozenset({TxnState.REDEEMED, TxnState.SETTLED, TxnState.UNSETTLED})
_OPEN = frozenset({TxnState.REVIEW, TxnState.READY})


@dataclass(frozen=True)
class SubmitResult:
    """The transaction after a submission, and whether this submission made a revision of it."""

    snapshot: Snapshot
    created: bool


@dataclass(frozen=True)
class Submission:
    """Everything the unit of work needs, gathered before it begins."""

    bundle: Bundle
    caller: Caller
    request: SubmitRequest
    named: IdentifiedTransaction
    facts: Mapping[str, Facts]
    key: idempotency.IdempotencyKey
    edits: Edits
    trace: str | None = None  # where this submission is traced, for what comes later to link to

    @property
    def claimed(self) -> dict[str, str]:
        """What the agent asserts, without the members it left out."""
        return {} if self.request.claimed is None else self.request.claimed.model_dump(exclude_none=True)

    @property
    def asked(self) -> RevisionRequest:
        """The list, for a new revision of it."""
        return RevisionRequest(
            bundle=self.bundle,
            named=self.named,
            facts=self.facts,
            run_key=self.request.run_key,
            independent=self.request.independent,
            claimed=self.claimed,
            method=self.caller.method,
            jkt=self.caller.jkt,
            trace=self.trace,
        )


class ArgumentsEditedError(Exception):
    """Other changes stand for these calls than the submission was named with: name it again with these."""

    def __init__(self, edits: Edits) -> None:
        super().__init__("the arguments of a call were changed")
        self.edits = edits


async def prepare_submission(
    ctx: Context,
    bundle: Bundle,
    caller: Caller,
    request: SubmitRequest,
    key: idempotency.IdempotencyKey,
    edits: Edits,
) -> Submission:
    """Name a submission's effects and look up their facts.

    Raises:
        ConflictError: other_epoch: the agent has not told yet what it did before the database was restored.
    """
    require_current_epoch(ctx, request.epoch)
    named = identify_transaction(bundle, caller.agent, request, edits)
    facts = await gather_facts(bundle, named.effects, ctx.clock())
    return Submission(bundle, caller, request, named, facts, key, edits, tracing.current_traceparent())


def submit_in_unit(tx: Tx, ctx: Context, submission: Submission) -> SubmitResult:
    """The unit of work of a submission.

    Raises:
        ConflictError: the transaction was spent with another list (already_redeemed).
        InvalidRequestError: a reused idempotency key.
        ForbiddenError: the agent is frozen or not enrolled.
        UnauthenticatedError: its key was revoked meanwhile.
        EditedError: it makes a new revision, and is not named as that would be.
    """
    require_current_bundle(ctx, submission.bundle)
    agent = require_active_caller(tx, submission.caller)
    require_not_stopped(tx, [effect.tool for effect in submission.named.effects])
    if (known := idempotency.claim_key(tx, submission.key, submission.named.txn)) is not None:
        return SubmitResult(repository.require_transaction(tx.conn, known), created=False)
    head = repository.load(tx.conn, submission.named.txn)
    if head is None:
        cause = TransitionReason(agent_actor(agent.name), "submit")
        return SubmitResult(
            create_revision(tx, ctx, submission.asked, agent, 1, cause, first=True), created=True
        )
    return _submit_again(tx, ctx, submission, agent, head)


def _submit_again(
    tx: Tx, ctx: Context, submission: Submission, agent: AgentRow, head: Snapshot
) -> SubmitResult:
    if not expire_if_unused(tx, head):
        expire_if_unanswered(tx, head)
    same_list = submission.named.calls == _calls(head)
    state = TxnState(head.transaction.state)
    spent = state in _SPENT or any(effect.redeemed_by is not None for effect in head.effects)
    if spent and not same_list:
        raise already_redeemed_error(head, "this run key was spent with another list of calls")
    if same_list and (spent or state in _OPEN):
        return SubmitResult(head, created=False)
    if (denied := _denied_by_person(tx, submission.named)) is not None:
        return SubmitResult(denied, created=False)
    if (edits := edits_of(accepted_proposals(tx.conn, submission.named.txn))) != submission.edits:
        raise ArgumentsEditedError(edits)
    cause = TransitionReason(agent_actor(agent.name), "submit")
    if state in _OPEN:
        supersede(tx, head, cause)
    rev = head.transaction.rev + 1
    return SubmitResult(create_revision(tx, ctx, submission.asked, agent, rev, cause), created=True)


def supersede(tx: Tx, head: Snapshot, cause: TransitionReason) -> None:
    """End the open revision in force: its effects are withdrawn, its votes void, its releases dead."""
    superseded = cause.because("superseded")
    withdraw_siblings(tx, head, superseded)
    transition_transaction(tx, head.transaction, TxnState.ENDED, superseded)


def already_redeemed_error(head: Snapshot, what: str) -> ConflictError:
    """409 with the outcome known so far."""
    return ConflictError(
        f"{what}; nothing more fires under it, and what it did would be done again under another run key",
        code=ErrorCode.ALREADY_REDEEMED,
        txn=head.transaction.txn,
        rev=head.transaction.rev,
        state=head.transaction.state,
        effects=[{"effect_id": e.effect_id, "seq": e.seq, "state": e.state} for e in head.effects],
    )


def _calls(snapshot: Snapshot) -> list[tuple[str, str]]:
    return [(effect.call_key, effect.tool_digest) for effect in snapshot.effects]


def _denied_by_person(tx: Tx, named: IdentifiedTransaction) -> Snapshot | None:
    """The revision at which a person denied this very list: another list in between does not wash that off."""
    for rev in _denied_by_people(tx.conn, named.txn):
        snapshot = repository.require_transaction(tx.conn, named.txn, rev)
        if named.calls == _calls(snapshot):
            return snapshot
    return None


def _denied_by_people(conn: Connection, txn: str) -> list[int]:
    """The revisions a person's deny ended, newest first."""
    effects, votes = table(EffectRow).c, table(VoteRow).c
    query = (
        select(effects.rev)
        .join(table(VoteRow), (votes.effect_id == effects.effect_id) & (votes.rev == effects.rev))
        .where(effects.txn == txn, effects.state == EffectState.DENIED.value)
        .where(votes.verdict == "deny", votes.late.is_(False))
        .distinct()
        .order_by(effects.rev.desc())
    )
    return [rev for (rev,) in conn.execute(query)]
