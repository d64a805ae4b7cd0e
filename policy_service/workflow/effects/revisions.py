"""A new revision: a list decided from the start, and written down with everything that opens with it.

Made by a submission, and by a change of arguments that was accepted. Whoever changed arguments that are now in force is
named on the revision and votes on none of its effects.

How much an agent may have people asked at once: people's attention is what an agent in a loop uses up first.

Counted in the database, in the unit of work that would ask, by one such unit of an agent at a time: so it is exact on
any number of replicas. Questions that new policies ask again count, and are never refused: they are not the agent's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import func, literal_column, select
from sqlmodel import col

from countersign.contract import EffectState, ErrorCode, TxnState, Verdict
from policy_service.audit.log import append
from policy_service.domain.decision import Decision
from policy_service.domain.policy_request import Facts
from policy_service.errors import QuotaError
from policy_service.pap.bundle import Bundle
from policy_service.queries.context import Context
from policy_service.queries.effects import gates_of
from policy_service.queries.repository import Snapshot
from policy_service.settings import Settings
from policy_service.storage import proposals
from policy_service.storage.advisory_locks import lock_review_quota
from policy_service.storage.core import table
from policy_service.storage.database import Tx
from policy_service.storage.tables import AgentRow, EffectRow, ReviewRow, TransactionRow
from policy_service.workflow.effects.apply_evaluation import release_window
from policy_service.workflow.effects.digests import IdentifiedTransaction
from policy_service.workflow.effects.effect_rows import apply_first_decision, new_effect_row
from policy_service.workflow.effects.evaluation import evaluate_new_effect, record_decision
from policy_service.workflow.effects.open_review import open_review
from policy_service.workflow.metering import MeterReading, lock_meters
from policy_service.workflow.transitions import (
    TransitionReason,
    audit_effect,
    insert,
    sync_transaction_state,
    withdraw_siblings,
)

_RETRY_S = 60  # people answer in minutes, if not in hours
# The state is written out, for a partial index serves no parameter.
_OPEN = select(func.count()).select_from(table(ReviewRow)).where(literal_column("reviews.state = 'open'"))


def require_review_quota(tx: Tx, settings: Settings, agent: str) -> None:
    """Refuse what has just been asked when it is more than the agent may have open; the whole unit is then undone.

    Raises:
        QuotaError: too_many_open.
    """
    most = settings.open_reviews_per_agent
    lock_review_quota(tx, agent)
    asked = tx.conn.execute(_OPEN.where(col(ReviewRow.agent) == agent)).scalar_one()
    if asked <= most:
        return
    raise QuotaError(
        f"{agent!r} may have {most} questions before people at once, and this would make it {asked}; nothing of it was "
        "taken. Withdraw some, or wait until people have answered",
        code=ErrorCode.TOO_MANY_OPEN,
        setting="open_reviews_per_agent",
        limit=most,
        retry_after_seconds=_RETRY_S,
    )


_FIRST_STATE = {
    Verdict.RELEASE: EffectState.RELEASED,
    Verdict.REVIEW: EffectState.REVIEW,
    Verdict.DENY: EffectState.DENIED,
}


@dataclass(frozen=True)
class RevisionRequest:
    """A named list with its facts, and who asks for it how."""

    bundle: Bundle
    named: IdentifiedTransaction
    facts: Mapping[str, Facts]
    run_key: str
    independent: bool
    claimed: Mapping[str, str]
    method: str
    jkt: str | None
    trace: str | None = None  # where it was asked for is traced, for what comes later to link to


def create_revision(
    tx: Tx,
    ctx: Context,
    asked: RevisionRequest,
    agent: AgentRow,
    rev: int,
    cause: TransitionReason,
    *,
    first: bool = False,
) -> Snapshot:
    """Decide every effect and write the revision down; ``first``: there is no other, so nothing was ever changed."""
    effects = [new_effect_row(asked.bundle, effect, rev) for effect in asked.named.effects]
    lock_meters(tx, asked.bundle, effects)
    answers = [_decide(tx, ctx, asked, agent, effect) for effect in effects]
    decisions = [decision for decision, _ in answers]
    snapshot = Snapshot(_transaction_row(tx, asked, agent, rev, decisions), effects, head_rev=rev)
    if not first:
        snapshot.proposals = proposals.active_proposals(tx.conn, snapshot.transaction.txn)
        snapshot.transaction.edited_by = _editors(snapshot)
    for effect, decision in zip(effects, decisions, strict=True):
        apply_first_decision(effect, _FIRST_STATE[decision.outcome], decision, tx.now)
    if snapshot.transaction.state == TxnState.READY.value:
        snapshot.transaction.ready_at, snapshot.transaction.valid_until = release_window(snapshot, tx.now)
    insert(tx, snapshot.transaction)
    _log_submission(tx, snapshot, cause, asked.trace)
    for effect, (decision, sight) in zip(effects, answers, strict=True):
        audit_submitted_effect(
            tx, effect, cause, edits=[edit.proposal_id for edit in snapshot.edits_of(effect)]
        )
        facts = asked.facts[effect.effect_id]
        effect.decision_id = record_decision(tx, snapshot, effect, decision, facts, sight, cause)
        insert(tx, effect)
        if decision.outcome is Verdict.REVIEW:
            open_review(tx, asked.bundle, snapshot, effect, gates_of(effect), cause)
    _end_if_denied(tx, snapshot, cause)
    if snapshot.transaction.state == TxnState.REVIEW.value:
        require_review_quota(tx, ctx.settings, agent.name)
    return snapshot


def _editors(snapshot: Snapshot) -> list[str]:
    """Whoever changed the arguments of a call of this list: also of one whose change another one changed again."""
    edits = [edit for effect in snapshot.effects for edit in snapshot.edits_of(effect)]
    return sorted({f"{edit.iss}|{edit.sub}" for edit in edits})


def _transaction_row(
    tx: Tx, asked: RevisionRequest, agent: AgentRow, rev: int, decisions: list[Decision]
) -> TransactionRow:
    at_once = all(decision.outcome is Verdict.RELEASE for decision in decisions)
    return TransactionRow(
        txn=asked.named.txn,
        rev=rev,
        agent=agent.name,
        run_key=asked.run_key,
        independent=asked.independent,
        method=asked.method,
        jkt=asked.jkt,
        # a denied list starts in review too and is ended, with its siblings, later in this unit
        state=(TxnState.READY if at_once else TxnState.REVIEW).value,
        txn_digest=asked.named.txn_digest,
        aud=asked.named.aud,
        claimed=dict(asked.claimed),
        submitted_at=tx.now,
    )


def _decide(
    tx: Tx, ctx: Context, asked: RevisionRequest, agent: AgentRow, effect: EffectRow
) -> tuple[Decision, MeterReading]:
    return evaluate_new_effect(
        tx,
        ctx,
        asked.bundle,
        agent,
        effect,
        asked.facts[effect.effect_id],
        txn_size=len(asked.named.effects),
        claimed=asked.claimed,
        method=asked.method,
    )


def _end_if_denied(tx: Tx, snapshot: Snapshot, cause: TransitionReason) -> None:
    if any(effect.state == EffectState.DENIED.value for effect in snapshot.effects):
        withdraw_siblings(tx, snapshot, cause.because("sibling"))
        sync_transaction_state(tx, snapshot, cause.because("denied"))


def _log_submission(tx: Tx, snapshot: Snapshot, cause: TransitionReason, trace: str | None) -> None:
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


def audit_submitted_effect(
    tx: Tx, effect: EffectRow, cause: TransitionReason, *, edits: Sequence[str] = ()
) -> None:
    """The first line of an effect in the log: what it is, the state it starts in, and which proposals made its args."""
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
