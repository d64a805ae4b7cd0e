"""Submit: name the effects, look up the facts, decide, and write it all down in one unit of work.

Submitted again under the same run key: an open transaction answers as it is now; one that was spent answers with its
outcome, or 409 ``already_redeemed`` when the list is another; one that ended unspent is decided afresh as a new
revision, except that a person's deny of the same list is answered again. Another list supersedes what was open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from countersign.contract import EffectState, ErrorCode, TxnState, Verdict
from countersign.contract.wire import SubmitRequest
from policy_service import tracing
from policy_service.audit.log import append
from policy_service.domain.decision import Decision
from policy_service.domain.question import Facts
from policy_service.errors import ConflictError
from policy_service.identity.callers import Caller
from policy_service.pap.bundle import Bundle
from policy_service.storage.database import Tx
from policy_service.storage.tables import AgentRow, EffectRow, TransactionRow
from policy_service.workflow import idempotency, records
from policy_service.workflow.asked import require_room
from policy_service.workflow.asking import ask_first, gates_of, gather_facts, record, require_current
from policy_service.workflow.context import Context
from policy_service.workflow.effect_rows import decided, undecided
from policy_service.workflow.endings import expire_if_over, expire_if_unanswered
from policy_service.workflow.epochs import require_told
from policy_service.workflow.metering import Sight, be_alone
from policy_service.workflow.moves import (
    Cause,
    agent_actor,
    close_open_siblings,
    follow_effects,
    insert,
    log_about,
    move_transaction,
)
from policy_service.workflow.naming import NamedTransaction, name_transaction
from policy_service.workflow.opening import open_review
from policy_service.workflow.parties import require_acting
from policy_service.workflow.ready import ready_times
from policy_service.workflow.records import Snapshot
from policy_service.workflow.stops import require_going

_FIRST_STATE = {
    Verdict.RELEASE: EffectState.RELEASED,
    Verdict.REVIEW: EffectState.REVIEW,
    Verdict.DENY: EffectState.DENIED,
}
_SPENT = frozenset({TxnState.REDEEMED, TxnState.SETTLED, TxnState.UNSETTLED})
_OPEN = frozenset({TxnState.REVIEW, TxnState.READY})


@dataclass(frozen=True)
class Submitted:
    """The transaction after a submission, and whether this submission made a revision of it."""

    snapshot: Snapshot
    created: bool


@dataclass(frozen=True)
class Submission:
    """Everything the unit of work needs, gathered before it begins."""

    bundle: Bundle
    caller: Caller
    request: SubmitRequest
    named: NamedTransaction
    facts: Mapping[str, Facts]
    key: idempotency.Key
    trace: str | None = None  # where this submission is traced, for what comes later to link to

    @property
    def claimed(self) -> dict[str, str]:
        """What the agent asserts, without the members it left out."""
        return {} if self.request.claimed is None else self.request.claimed.model_dump(exclude_none=True)


async def prepare(
    ctx: Context, bundle: Bundle, caller: Caller, request: SubmitRequest, key: idempotency.Key
) -> Submission:
    """Name a submission's effects and look up their facts.

    Raises:
        ConflictError: other_epoch: the agent has not told yet what it did before the database was restored.
    """
    require_told(ctx, request.epoch)
    named = name_transaction(bundle, caller.agent, request)
    facts = await gather_facts(bundle, named.effects, ctx.clock())
    return Submission(bundle, caller, request, named, facts, key, tracing.here())


def submit_in(tx: Tx, ctx: Context, submission: Submission) -> Submitted:
    """The unit of work of a submission.

    Raises:
        ConflictError: the transaction was spent with another list (already_redeemed).
        InvalidRequestError: a reused idempotency key.
        ForbiddenError: the agent is frozen or not enrolled.
        UnauthenticatedError: its key was revoked meanwhile.
    """
    require_current(ctx, submission.bundle)
    agent = require_acting(tx, submission.caller)
    require_going(tx, [effect.tool for effect in submission.named.effects])
    if (known := idempotency.settle(tx, submission.key, submission.named.txn)) is not None:
        return Submitted(records.require(tx.conn, known), created=False)
    head = records.load(tx.conn, submission.named.txn)
    if head is None:
        return Submitted(_new_revision(tx, ctx, submission, agent, 1), created=True)
    return _submit_again(tx, ctx, submission, agent, head)


def _submit_again(tx: Tx, ctx: Context, submission: Submission, agent: AgentRow, head: Snapshot) -> Submitted:
    if not expire_if_over(tx, head):
        expire_if_unanswered(tx, head)
    same_list = submission.named.calls == _calls(head)
    state = TxnState(head.transaction.state)
    spent = state in _SPENT or any(effect.redeemed_by is not None for effect in head.effects)
    if spent and not same_list:
        raise already_redeemed(head, "this run key was spent with another list of calls")
    if same_list and (spent or state in _OPEN):
        return Submitted(head, created=False)
    if (denied := _denied_by_person(tx, submission.named)) is not None:
        return Submitted(denied, created=False)
    if state in _OPEN:
        cause = Cause(agent_actor(agent.name), "superseded")
        close_open_siblings(tx, head, cause)
        move_transaction(tx, head.transaction, TxnState.ENDED, cause)
    return Submitted(_new_revision(tx, ctx, submission, agent, head.transaction.rev + 1), created=True)


def already_redeemed(head: Snapshot, what: str) -> ConflictError:
    """409 with the outcome known so far."""
    return ConflictError(
        f"{what}; nothing more fires under it, take another run key to act again",
        code=ErrorCode.ALREADY_REDEEMED,
        txn=head.transaction.txn,
        rev=head.transaction.rev,
        state=head.transaction.state,
        effects=[{"effect_id": e.effect_id, "seq": e.seq, "state": e.state} for e in head.effects],
    )


def _calls(snapshot: Snapshot) -> list[tuple[str, str]]:
    return [(effect.call_key, effect.tool_digest) for effect in snapshot.effects]


def _denied_by_person(tx: Tx, named: NamedTransaction) -> Snapshot | None:
    """The revision at which a person denied this very list: another list in between does not wash that off."""
    for rev in records.revisions_denied_by_people(tx.conn, named.txn):
        snapshot = records.require(tx.conn, named.txn, rev)
        if named.calls == _calls(snapshot):
            return snapshot
    return None


# -- a new revision --------------------------------------------------------------------------------------------------


def _new_revision(tx: Tx, ctx: Context, submission: Submission, agent: AgentRow, rev: int) -> Snapshot:
    cause = Cause(agent_actor(agent.name), "submit")
    effects = [undecided(submission.bundle, effect, rev) for effect in submission.named.effects]
    be_alone(tx, submission.bundle, effects)
    answers = [_decide(tx, ctx, submission, agent, effect) for effect in effects]
    decisions = [decision for decision, _ in answers]
    snapshot = Snapshot(_transaction_row(tx, submission, rev, decisions), effects, head_rev=rev)
    for effect, decision in zip(effects, decisions, strict=True):
        decided(effect, _FIRST_STATE[decision.outcome], decision, tx.now)
    if snapshot.transaction.state == TxnState.READY.value:
        snapshot.transaction.ready_at, snapshot.transaction.valid_until = ready_times(snapshot, tx.now)
    insert(tx, snapshot.transaction)
    _log_submission(tx, snapshot, cause, submission.trace)
    for effect, (decision, sight) in zip(effects, answers, strict=True):
        log_effect(tx, effect, cause)
        facts = submission.facts[effect.effect_id]
        effect.decision_id = record(tx, snapshot, effect, decision, facts, sight, cause)
        insert(tx, effect)
        if decision.outcome is Verdict.REVIEW:
            open_review(tx, submission.bundle, snapshot, effect, gates_of(effect), cause)
    _end_if_denied(tx, snapshot, cause)
    if snapshot.transaction.state == TxnState.REVIEW.value:
        require_room(tx, ctx.settings, agent.name)
    return snapshot


def _transaction_row(tx: Tx, submission: Submission, rev: int, decisions: list[Decision]) -> TransactionRow:
    at_once = all(decision.outcome is Verdict.RELEASE for decision in decisions)
    return TransactionRow(
        txn=submission.named.txn,
        rev=rev,
        agent=submission.caller.agent,
        run_key=submission.request.run_key,
        independent=submission.request.independent,
        method=submission.caller.method,
        jkt=submission.caller.jkt,
        # a denied list starts in review too and is ended, with its siblings, later in this unit
        state=(TxnState.READY if at_once else TxnState.REVIEW).value,
        txn_digest=submission.named.txn_digest,
        aud=submission.named.aud,
        claimed=submission.claimed,
        submitted_at=tx.now,
    )


def _decide(
    tx: Tx, ctx: Context, submission: Submission, agent: AgentRow, effect: EffectRow
) -> tuple[Decision, Sight]:
    return ask_first(
        tx,
        ctx,
        submission.bundle,
        agent,
        effect,
        submission.facts[effect.effect_id],
        txn_size=len(submission.named.effects),
        claimed=submission.claimed,
        method=submission.caller.method,
    )


def _end_if_denied(tx: Tx, snapshot: Snapshot, cause: Cause) -> None:
    if any(effect.state == EffectState.DENIED.value for effect in snapshot.effects):
        close_open_siblings(tx, snapshot, cause.because("sibling"))
        follow_effects(tx, snapshot, cause.because("denied"))


def _log_submission(tx: Tx, snapshot: Snapshot, cause: Cause, trace: str | None) -> None:
    transaction = snapshot.transaction
    append(
        tx,
        "transaction_submitted",
        actor=cause.actor,
        txn=transaction.txn,
        rev=transaction.rev,
        agent=transaction.agent,
        body={
            "txn_digest": transaction.txn_digest,
            "run_key": transaction.run_key,
            "effects": [effect.effect_id for effect in snapshot.effects],
            "aud": transaction.aud,
            "to": transaction.state,
            **({} if trace is None else {"trace": trace}),
        },
    )


def log_effect(tx: Tx, effect: EffectRow, cause: Cause) -> None:
    """The first line of an effect in the log: what it is, and the state it starts in."""
    body = {
        "to": effect.state,
        "tool": effect.tool,
        "tool_digest": effect.tool_digest,
        "args_digest": effect.args_digest,
        "effect_digest": effect.effect_digest,
        "kind": effect.kind,
    }
    log_about(tx, effect, "effect_submitted", cause.actor, body)
