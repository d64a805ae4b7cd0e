"""Revisions: decide a list of effects from the start, and store it with its decisions and reviews.

Submissions create revisions, and so do accepted proposals. People who edited arguments in force are stored on the
revision and may vote on none of its effects.

A quota limits how many reviews an agent may have open, because people's attention is the scarcest resource. It is
counted in the unit of work that opens the reviews, under a lock for the agent, so it is exact on any number of
replicas. Reviews that a new bundle reopens count, but are never refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, literal_column, select
from sqlmodel import col

from countersign.contract import EffectState, ErrorCode, TxnState, Verdict
from policy_service.audit.log import append
from policy_service.domain.policy_request import Facts
from policy_service.errors import QuotaError
from policy_service.pap.bundle import Bundle
from policy_service.queries.context import Context
from policy_service.queries.effects import gates_of
from policy_service.queries.repository import Snapshot, active_proposals
from policy_service.settings import Settings
from policy_service.storage.advisory_locks import lock_review_quota
from policy_service.storage.core import table
from policy_service.storage.database import Tx
from policy_service.storage.tables import AgentRow, EffectRow, ReviewRow, TransactionRow
from policy_service.workflow.effects.apply_evaluation import release_window
from policy_service.workflow.effects.digests import (
    IdentifiedTransaction,
    apply_first_decision,
    new_effect_row,
)
from policy_service.workflow.effects.evaluation import evaluate_new_effect, record_decision
from policy_service.workflow.effects.open_reviews import open_review
from policy_service.workflow.effects.outcomes import sync_transaction_state
from policy_service.workflow.metering import lock_meters
from policy_service.workflow.transitions import (
    TransitionReason,
    audit_effect,
    insert_at_end,
    transition_transaction,
    withdraw_siblings,
)

_RETRY_S = 60  # people answer in minutes at best
# The state is a literal, because a partial index does not apply to a parameter.
_OPEN = select(func.count()).select_from(table(ReviewRow)).where(literal_column("reviews.state = 'open'"))
_FIRST_STATE = {
    Verdict.RELEASE: EffectState.RELEASED,
    Verdict.REVIEW: EffectState.REVIEW,
    Verdict.DENY: EffectState.DENIED,
}


@dataclass(frozen=True)
class RevisionRequest:
    """An identified list with its facts, and how its agent submitted it."""

    bundle: Bundle
    named: IdentifiedTransaction
    facts: Mapping[str, Facts]
    run_key: str
    independent: bool
    claimed: Mapping[str, str]
    method: str
    jkt: str | None
    trace: str | None = None  # the trace of the request, which later traces link to


def create_revision(
    tx: Tx,
    ctx: Context,
    request: RevisionRequest,
    agent: AgentRow,
    rev: int,
    cause: TransitionReason,
    *,
    first: bool = False,
) -> Snapshot:
    """Decide every effect and store the revision. ``first``: no earlier revision exists, so there are no edits.

    Raises:
        QuotaError: too_many_open.
    """
    effects = [new_effect_row(request.bundle, effect, rev) for effect in request.named.effects]
    lock_meters(tx, request.bundle, effects)
    about = {"txn_size": len(effects), "claimed": request.claimed, "method": request.method}
    answers = [
        evaluate_new_effect(tx, ctx, request.bundle, agent, effect, request.facts[effect.effect_id], **about)
        for effect in effects
    ]
    at_once = all(decision.outcome is Verdict.RELEASE for decision, _ in answers)
    snapshot = Snapshot(_transaction_row(tx, request, agent, rev, at_once=at_once), effects, head_rev=rev)
    transaction = snapshot.transaction
    if not first:
        snapshot.proposals = active_proposals(tx.conn, transaction.txn)
        transaction.edited_by = _editors(snapshot)
    for effect, (decision, _) in zip(effects, answers, strict=True):
        apply_first_decision(effect, _FIRST_STATE[decision.outcome], decision, tx.now)
    if at_once:
        transaction.ready_at, transaction.valid_until = release_window(snapshot, tx.now)
    insert_at_end(tx, transaction)
    _audit_submission(tx, snapshot, cause, request.trace)
    for effect, (decision, reading) in zip(effects, answers, strict=True):
        edits = [edit.proposal_id for edit in snapshot.edits_of(effect)]
        audit_submitted_effect(tx, effect, cause, edits=edits)
        facts = request.facts[effect.effect_id]
        effect.decision_id = record_decision(tx, snapshot, effect, decision, facts, reading, cause)
        insert_at_end(tx, effect)
        if decision.outcome is Verdict.REVIEW:
            open_review(tx, request.bundle, snapshot, effect, gates_of(effect), cause)
    if any(effect.state == EffectState.DENIED.value for effect in effects):
        withdraw_siblings(tx, snapshot, cause.because("sibling"))
        sync_transaction_state(tx, snapshot, cause.because("denied"))
    if transaction.state == TxnState.REVIEW.value:
        require_review_quota(tx, ctx.settings, agent.name)
    return snapshot


def supersede(tx: Tx, head: Snapshot, cause: TransitionReason) -> None:
    """End the open revision in force: withdraw its effects, which voids its votes and releases."""
    superseded = cause.because("superseded")
    withdraw_siblings(tx, head, superseded)
    transition_transaction(tx, head.transaction, TxnState.ENDED, superseded)


def require_review_quota(tx: Tx, settings: Settings, agent: str) -> None:
    """Refuse the reviews this unit has opened, and so the whole unit, if the agent has too many open.

    Raises:
        QuotaError: too_many_open.
    """
    most = settings.open_reviews_per_agent
    lock_review_quota(tx, agent)
    count = tx.conn.execute(_OPEN.where(col(ReviewRow.agent) == agent)).scalar_one()
    if count <= most:
        return
    raise QuotaError(
        f"{agent!r} may have {most} open reviews, and this would make it {count}; nothing was stored. Withdraw some, "
        "or wait until people have answered",
        code=ErrorCode.TOO_MANY_OPEN,
        setting="open_reviews_per_agent",
        limit=most,
        retry_after_seconds=_RETRY_S,
    )


def _editors(snapshot: Snapshot) -> list[str]:
    """Everyone who edited arguments of a call in this list, also if a later edit replaced theirs."""
    edits = [edit for effect in snapshot.effects for edit in snapshot.edits_of(effect)]
    return sorted({f"{edit.iss}|{edit.sub}" for edit in edits})


def _transaction_row(
    tx: Tx, request: RevisionRequest, agent: AgentRow, rev: int, *, at_once: bool
) -> TransactionRow:
    return TransactionRow(
        txn=request.named.txn,
        rev=rev,
        agent=agent.name,
        run_key=request.run_key,
        independent=request.independent,
        method=request.method,
        jkt=request.jkt,
        # a denied list starts in review as well; this unit ends it later, with its siblings
        state=(TxnState.READY if at_once else TxnState.REVIEW).value,
        txn_digest=request.named.txn_digest,
        aud=request.named.aud,
        claimed=dict(request.claimed),
        submitted_at=tx.now,
    )


def _audit_submission(tx: Tx, snapshot: Snapshot, cause: TransitionReason, trace: str | None) -> None:
    transaction = snapshot.transaction
    named: dict[str, Any] = {"txn": transaction.txn, "rev": transaction.rev, "agent": transaction.agent}
    body = {
        "txn_digest": transaction.txn_digest,
        "run_key": transaction.run_key,
        "effects": [effect.effect_id for effect in snapshot.effects],
        "aud": transaction.aud,
        "to": transaction.state,
        **({} if trace is None else {"trace": trace}),
    }
    append(tx, "transaction_submitted", actor=cause.actor, body=body, **named)


def audit_submitted_effect(
    tx: Tx, effect: EffectRow, cause: TransitionReason, *, edits: Sequence[str] = ()
) -> None:
    """Append the first audit row of an effect, with its first state and the proposals that edited its arguments."""
    body = {
        "to": effect.state,
        "tool": effect.tool,
        "tool_digest": effect.tool_digest,
        "args_digest": effect.args_digest,
        "effect_digest": effect.effect_digest,
        "kind": effect.kind,
        **({"edits": list(edits)} if edits else {}),
    }
    audit_effect(tx, effect, "effect_submitted", cause.actor, body)
