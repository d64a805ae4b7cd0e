"""Restore a redemption that the database lost with a restore, from a receipt that this service signed before.

The caller sends the receipt and the effects it was for. Every digest is computed here; the receipt's `txn_digest` (for
a compensation, its effect digest) proves them. `fire_by` is not checked: nothing fires on this receipt any more.

The effects become `unknown` first, with their attempt and redemptions, so that nothing redeems them again. The reported
outcomes then settle them like any late report. A list that the database never saw, or saw only in a revision that
ended, is stored as a new revision; its decision is marked as lost. Effects that were redeemed before the restore and
again after it become tasks, never two redemptions.

An archived transaction in which nothing was redeemed returns to the database with the new revision. If it has spent
effects, the receipt is a row of the audit log: there are no effects left that a task could be about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog
from sqlalchemy import select
from sqlmodel import col

from countersign.contract import (
    ENDED_UNREDEEMED,
    TYP_RECEIPT,
    Compensation,
    ContractError,
    Effect,
    EffectState,
    ErrorCode,
    ReceiptClaims,
    TaskKind,
    TxnState,
    Verdict,
    canonicalize,
    digests,
    open_token,
)
from countersign.contract.wire import Recall, RecalledEffect, ReportedOutcome
from policy_service.audit.log import append
from policy_service.domain.policy_request import Decision, Facts
from policy_service.errors import ConflictError, ForbiddenError, InvalidRequestError, NotFoundError
from policy_service.identity.agents import Caller
from policy_service.pap.bundle import Bundle
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.repository import Snapshot
from policy_service.storage.archive_tables import archived_transaction, return_transaction, spent_effects
from policy_service.storage.database import Tx
from policy_service.storage.tables import AttemptRow, EffectRow, TransactionRow
from policy_service.workflow.effects.digests import apply_first_decision, new_effect_row, redemption_row
from policy_service.workflow.effects.evaluation import record_decision
from policy_service.workflow.effects.outcomes import sync_transaction_state
from policy_service.workflow.effects.revisions import audit_submitted_effect, supersede
from policy_service.workflow.metering import MeterReading, reserve_redeemed
from policy_service.workflow.revocation.restore import OPEN_STATES, RESTORED_TASK, mark_unknown
from policy_service.workflow.transitions import (
    TransitionReason,
    agent_actor,
    audit_effect,
    insert,
    open_task,
    set_columns,
    transition_effect,
)

log = structlog.get_logger(__name__)

_LOST = Decision(outcome=Verdict.RELEASE, bundle="", commit="")  # the original decision is unknown


@dataclass(frozen=True, slots=True)
class ReceiptProof:
    """A redemption of an earlier epoch, proven by this service's own signature."""

    claims: ReceiptClaims
    effects: tuple[Effect, ...]
    run_key: str
    independent: bool


# -- verifying the receipt ---------------------------------------------------------------------------------------------


def verify_receipt(ctx: Context, caller: Caller, attempt_id: str, sent: Recall) -> ReceiptProof:
    """Verify a receipt from before a restore, and that it is for the effects sent with it.

    Raises:
        InvalidRequestError: bad_token: not signed by a published key, or for other effects.
        ForbiddenError: not_redeemer: issued to another party.
        NotFoundError: unknown_attempt: the receipt is of this epoch, of which nothing is lost.
    """
    try:
        opened = open_token(sent.receipt, typ=TYP_RECEIPT, key_for=ctx.signer.keys.get)
        claims = ReceiptClaims.from_claims(opened.claims)
    except ContractError as error:
        raise _bad_receipt("is not signed by a key this service publishes") from error
    if claims.iss != ctx.settings.public_url or claims.attempt != attempt_id:
        raise _bad_receipt("is of another deployment or another attempt")
    if claims.aud != caller.agent:
        raise ForbiddenError("this receipt was issued to another party", code=ErrorCode.NOT_REDEEMER)
    if claims.epoch >= ctx.epoch():
        raise NotFoundError(
            f"there is no attempt {attempt_id!r}, and nothing of this epoch was lost",
            code=ErrorCode.UNKNOWN_ATTEMPT,
        )
    effects = tuple(_effect(claims, one) for one in sent.effects)
    is_list = claims.kind == "effect"
    if not (_proves_list(claims, sent, effects) if is_list else _proves_compensation(claims, effects)):
        raise _bad_receipt("was not issued for these effects")
    return ReceiptProof(claims, effects, sent.run_key, sent.independent)


def _effect(claims: ReceiptClaims, sent: RecalledEffect) -> Effect:
    undo = sent.compensation
    try:
        return Effect(
            agent=claims.sub,
            txn=claims.txn,
            effect_id=digests.effect_id(txn=claims.txn, call_key=sent.call_key),
            seq=sent.seq,
            tool=sent.tool,
            tool_digest=sent.tool_digest,
            resource=sent.resource,
            args_bytes=canonicalize(sent.args),
            call_key=sent.call_key,
            compensation=None if undo is None else Compensation(undo.tool, undo.tool_digest, undo.map),
        )
    except ContractError as error:
        raise _bad_receipt(f"was not issued for {sent.tool!r} with these args ({error})") from error


def _proves_list(claims: ReceiptClaims, sent: Recall, effects: tuple[Effect, ...]) -> bool:
    if sent.independent:
        txn = digests.independent_txn_id(agent=claims.sub, run_key=sent.run_key, call_key=effects[0].call_key)
    else:
        txn = digests.txn_id(agent=claims.sub, run_key=sent.run_key)
    digest = digests.txn_digest(effect_digests=[effect.digest for effect in effects])
    return (txn, digest) == (claims.txn, claims.txn_digest)


def _proves_compensation(claims: ReceiptClaims, effects: tuple[Effect, ...]) -> bool:
    return [effect.digest for effect in effects] == [effect.effect_digest for effect in claims.effects]


def _bad_receipt(what: str) -> InvalidRequestError:
    return InvalidRequestError(f"the receipt {what}", code=ErrorCode.BAD_TOKEN)


# -- a transaction with spent effects in the archive -------------------------------------------------------------------


def record_archived_contradiction(
    tx: Tx, proof: ReceiptProof, outcomes: Sequence[ReportedOutcome]
) -> ConflictError | None:
    """Record a redemption that contradicts the archive, and return the refusal to raise once the unit is committed.

    None if nothing of the transaction is spent in the archive. The caller has found that the attempt is not archived.
    """
    claims = proof.claims
    archived = archived_transaction(tx.conn, claims.txn)
    if archived is None or not spent_effects(tx.conn, claims.txn):
        return None
    body = {
        "attempt_id": claims.attempt,
        "epoch": claims.epoch,
        "effects": [effect.effect_id for effect in proof.effects],
        "outcomes": {one.effect_id: one.outcome.value for one in outcomes},
        "file": archived.file,
    }
    about: dict[str, Any] = {"txn": claims.txn, "rev": archived.rev, "agent": archived.agent}
    append(tx, "redemption_contradicted", actor=agent_actor(claims.aud), body=body, **about)
    log.error("archived_redemption_contradicted", txn=claims.txn, attempt_id=claims.attempt)
    return ConflictError(
        f"the transaction was redeemed under another attempt too, and archived (file {archived.file}); the attempt "
        f"{claims.attempt!r} and its outcomes are recorded in the audit log",
        code=ErrorCode.ALREADY_REPORTED,
    )


# -- restoring the redemption ------------------------------------------------------------------------------------------


def restore_redemption(tx: Tx, bundle: Bundle, caller: Caller, proof: ReceiptProof) -> Snapshot:
    """Store what the receipt proves, in a unit that holds its transaction's lock; returns the transaction afterwards.

    Raises:
        ForbiddenError: the agent of the receipt is no longer enrolled.
        NotFoundError, ConflictError: a compensation of an effect that is not known to have fired; report that first.
    """
    claims = proof.claims
    cause = TransitionReason.by_agent(caller.agent, "recalled", {"attempt_id": claims.attempt})
    if repository.agent_of(tx.conn, claims.sub) is None:
        raise ForbiddenError(
            f"the agent {claims.sub!r} is no longer enrolled: policy-service agent enroll {claims.sub}"
        )
    redeemed = repository.redeemed_effects(tx.conn, [effect.effect_id for effect in proof.effects])
    if redeemed:
        return _redeemed_twice(tx, claims, redeemed, cause)
    snapshot = _matching_revision(tx, claims)
    if claims.kind == "compensate":
        if snapshot is None:
            raise NotFoundError("the transaction of this compensation is not known; report that first")
        effects = [_compensation(tx, bundle, snapshot, proof, cause)]
    else:
        snapshot = snapshot or _new_revision(tx, bundle, proof, cause)
        effects = snapshot.effects
    _store_attempt(tx, snapshot, effects, claims, cause)
    sync_transaction_state(tx, snapshot, cause)
    return snapshot


def _matching_revision(tx: Tx, claims: ReceiptClaims) -> Snapshot | None:
    """The newest revision with this list, unless it ended unredeemed; then another, lost revision was redeemed."""
    same_list = (
        select(col(TransactionRow.rev))
        .where(col(TransactionRow.txn) == claims.txn, col(TransactionRow.txn_digest) == claims.txn_digest)
        .order_by(col(TransactionRow.rev).desc())
    )
    rev = tx.conn.execute(same_list).scalars().first()
    snapshot = None if rev is None else repository.require_transaction(tx.conn, claims.txn, rev)
    if snapshot is None or any(effect.state in ENDED_UNREDEEMED for effect in snapshot.effects):
        return None
    return snapshot


def _store_attempt(
    tx: Tx, snapshot: Snapshot, effects: list[EffectRow], claims: ReceiptClaims, cause: TransitionReason
) -> None:
    fire_by = _time(claims.fire_by)
    attempt = AttemptRow(
        redeemer=claims.aud,
        attempt_id=claims.attempt,
        txn=claims.txn,
        rev=snapshot.transaction.rev,
        kind=claims.kind,
        jkt=claims.cnf_jkt,
        fire_by=fire_by,
        redeemed_at=_time(claims.iat),
    )
    insert(tx, attempt)
    jtis = {effect.effect_id: effect.jti for effect in claims.effects}
    for effect in effects:
        if effect.state in OPEN_STATES:
            mark_unknown(tx, snapshot, effect, cause)
        jti = jtis.get(effect.effect_id)  # the receipt of a renewal names only what it renewed
        insert(tx, redemption_row(effect, attempt, jti))
        set_columns(tx, effect, redeemed_by=attempt.attempt_id, fire_by=fire_by)
        body = {**cause.detail, "jti": jti, "epoch": claims.epoch}
        audit_effect(tx, effect, "redemption_recalled", cause.actor, body)


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _redeemed_twice(tx: Tx, claims: ReceiptClaims, redeemed: set[str], cause: TransitionReason) -> Snapshot:
    snapshot = repository.require_transaction(tx.conn, claims.txn)
    for effect in [*snapshot.effects, *snapshot.compensations]:
        if effect.effect_id in redeemed:
            body = {**cause.detail, "epoch": claims.epoch, "recorded": effect.redeemed_by}
            audit_effect(tx, effect, "redemption_contradicted", cause.actor, body)
            text = f"{effect.tool} was redeemed before the database was restored, and again after it"
            open_task(tx, effect, TaskKind.CONTRADICTION, text, cause)
    return snapshot


# -- storing effects that the database lost ----------------------------------------------------------------------------


def _new_revision(tx: Tx, bundle: Bundle, proof: ReceiptProof, cause: TransitionReason) -> Snapshot:
    claims, head = proof.claims, repository.load(tx.conn, proof.claims.txn)
    if head is not None and head.transaction.state in {TxnState.REVIEW.value, TxnState.READY.value}:
        supersede(tx, head, cause)
    archived = return_transaction(tx.conn, claims.txn)
    rev = 1 + (head.head_rev if head is not None else archived.rev if archived is not None else 0)
    transaction = TransactionRow(
        txn=claims.txn,
        rev=rev,
        agent=claims.sub,
        run_key=proof.run_key,
        independent=proof.independent,
        method="api_key" if claims.cnf_jkt is None else "key",
        jkt=claims.cnf_jkt,
        state=TxnState.UNSETTLED.value,
        txn_digest=claims.txn_digest,
        aud=claims.aud,
        submitted_at=_time(claims.iat),
    )
    insert(tx, transaction)
    named: dict[str, Any] = {"txn": claims.txn, "rev": rev, "agent": claims.sub}
    body: dict[str, Any] = {
        "txn_digest": claims.txn_digest,
        "run_key": proof.run_key,
        "effects": [effect.effect_id for effect in proof.effects],
        "aud": claims.aud,
        "to": transaction.state,
        "why": cause.why,
    }
    if archived is not None:
        body["archived"] = {"rev": archived.rev, "file": archived.file, "digest": archived.digest}
    append(tx, "transaction_submitted", actor=cause.actor, body=body, **named)
    snapshot = Snapshot(transaction, [], head_rev=rev)
    rows = [new_effect_row(bundle, effect, rev) for effect in proof.effects]
    reserve_redeemed(tx, bundle, rows, _time(claims.iat))
    snapshot.effects = [_store_effect(tx, snapshot, row, cause) for row in rows]
    return snapshot


def _compensation(
    tx: Tx, bundle: Bundle, snapshot: Snapshot, proof: ReceiptProof, cause: TransitionReason
) -> EffectRow:
    effect = proof.effects[0]
    known = snapshot.find(effect.effect_id)
    if known is not None:
        return known
    forward = next((one for one in snapshot.effects if _compensates(effect, one)), None)
    if forward is None or EffectState(forward.state) is not EffectState.FIRED:
        state = "not known" if forward is None else forward.state
        raise ConflictError(
            f"the effect that {effect.tool} compensates is {state}; report that it fired first"
        )
    row = new_effect_row(bundle, effect, forward.rev, compensates=forward.effect_id)
    reserve_redeemed(tx, bundle, [row], _time(proof.claims.iat))
    snapshot.compensations.append(_store_effect(tx, snapshot, row, cause))
    transition_effect(tx, forward, EffectState.COMPENSATING, cause)
    return row


def _compensates(effect: Effect, forward: EffectRow) -> bool:
    return effect.call_key == digests.compensation_call_key(effect_id=forward.effect_id, tool=effect.tool)


def _store_effect(tx: Tx, snapshot: Snapshot, effect: EffectRow, cause: TransitionReason) -> EffectRow:
    apply_first_decision(effect, EffectState.UNKNOWN, _LOST, tx.now)
    audit_submitted_effect(tx, effect, cause)
    effect.decision_id = record_decision(tx, snapshot, effect, _LOST, Facts(bundle=""), MeterReading(), cause)
    insert(tx, effect)
    where = f"{effect.resource_type} {effect.resource_id}"
    text = f"{effect.tool} for {where} was redeemed before the database was restored"
    open_task(tx, effect, RESTORED_TASK, text, cause)
    return effect
