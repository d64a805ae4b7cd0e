"""Recall: take back into the database a redemption it has forgotten, which one of our own receipts proves.

Whatever it is about becomes `unknown` first, with its attempt and its redemptions, so that nothing redeems it again;
then the outcomes that came along settle it, as any late report does. What the database never saw, or saw only as a
revision that ended, is written as a new revision from the bytes the receipt proves; what decided it is lost, and its
decision says so. What was redeemed once before the restore and once after it is a task, never two redemptions.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import select
from sqlmodel import col

from countersign.contract import (
    ENDED_UNREDEEMED,
    Effect,
    EffectState,
    ReceiptClaims,
    TaskKind,
    TxnState,
    Verdict,
    names,
)
from policy_service.audit.log import append
from policy_service.domain.decision import Decision
from policy_service.domain.policy_request import Facts
from policy_service.errors import ConflictError, ForbiddenError, NotFoundError
from policy_service.identity.agents import Caller
from policy_service.pap.bundle import Bundle
from policy_service.queries import repository
from policy_service.queries.repository import Snapshot
from policy_service.storage.database import Tx
from policy_service.storage.tables import AttemptRow, EffectRow, TransactionRow
from policy_service.workflow.effects.effect_rows import apply_first_decision, new_effect_row, redemption_row
from policy_service.workflow.effects.evaluation import record_decision
from policy_service.workflow.effects.revisions import audit_submitted_effect
from policy_service.workflow.metering import MeterReading, reserve_redeemed
from policy_service.workflow.releases.verify_receipt import ReceiptProof
from policy_service.workflow.revocation.restore import OPEN_STATES, RESTORED_TASK, mark_unknown
from policy_service.workflow.transitions import (
    TransitionReason,
    agent_actor,
    audit_effect,
    insert,
    open_task,
    set_columns,
    sync_transaction_state,
    transition_effect,
    transition_transaction,
    withdraw_siblings,
)

_FORGOTTEN = Decision(outcome=Verdict.RELEASE, bundle="", commit="")  # by what, nobody knows any more


def restore_redemption(tx: Tx, bundle: Bundle, caller: Caller, recalled: ReceiptProof) -> Snapshot:
    """Write down what the receipt proves, in a unit that is alone with its transaction; the transaction afterwards.

    Raises:
        ForbiddenError: the agent it was given for is not enrolled (any more).
        NotFoundError, ConflictError: a compensation of what is not known to have fired; report that first.
    """
    claims = recalled.claims
    cause = TransitionReason(agent_actor(caller.agent), "recalled", {"attempt_id": claims.attempt})
    if repository.agent_of(tx.conn, claims.sub) is None:
        raise ForbiddenError(
            f"the agent {claims.sub!r} is not enrolled any more: policy-service agent enroll {claims.sub}"
        )
    spent = repository.redeemed_effects(tx.conn, [effect.effect_id for effect in recalled.effects])
    if spent:
        return _redeemed_twice(tx, claims, spent, cause)
    snapshot = _standing(tx, claims)
    if claims.kind == "compensate":
        if snapshot is None:
            raise NotFoundError("the transaction it belongs to is not known; report that first")
        effects = [_compensation(tx, bundle, snapshot, recalled, cause)]
    else:
        snapshot = snapshot or _new_revision(tx, bundle, recalled, cause)
        effects = snapshot.effects
    _adopt(tx, snapshot, effects, claims, cause)
    sync_transaction_state(tx, snapshot, cause)
    return snapshot


def _standing(tx: Tx, claims: ReceiptClaims) -> Snapshot | None:
    """The newest revision of the very list, unless it ended unspent: what was spent was then another one."""
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


def _adopt(
    tx: Tx, snapshot: Snapshot, effects: list[EffectRow], claims: ReceiptClaims, cause: TransitionReason
) -> None:
    fire_by = _moment(claims.fire_by)
    attempt = AttemptRow(
        redeemer=claims.aud,
        attempt_id=claims.attempt,
        txn=claims.txn,
        rev=snapshot.transaction.rev,
        kind=claims.kind,
        jkt=claims.cnf_jkt,
        fire_by=fire_by,
        redeemed_at=_moment(claims.iat),
    )
    insert(tx, attempt)
    jtis = {effect.effect_id: effect.jti for effect in claims.effects}
    for effect in effects:
        if effect.state in OPEN_STATES:
            mark_unknown(tx, snapshot, effect, cause)
        jti = jtis.get(effect.effect_id)  # a renewal's receipt names only what it renewed
        insert(tx, redemption_row(effect, attempt, jti))
        set_columns(tx, effect, redeemed_by=attempt.attempt_id, fire_by=fire_by)
        audit_effect(
            tx,
            effect,
            "redemption_recalled",
            cause.actor,
            {**cause.detail, "jti": jti, "epoch": claims.epoch},
        )


def _moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


# -- what the database never saw -------------------------------------------------------------------------------------


def _new_revision(tx: Tx, bundle: Bundle, recalled: ReceiptProof, cause: TransitionReason) -> Snapshot:
    claims, head = recalled.claims, repository.load(tx.conn, recalled.claims.txn)
    if head is not None and head.transaction.state in {TxnState.REVIEW.value, TxnState.READY.value}:
        superseded = cause.because("superseded")  # its run key was spent with another list
        withdraw_siblings(tx, head, superseded)
        transition_transaction(tx, head.transaction, TxnState.ENDED, superseded)
    rev = 1 if head is None else head.head_rev + 1
    transaction = TransactionRow(
        txn=claims.txn,
        rev=rev,
        agent=claims.sub,
        run_key=recalled.run_key,
        independent=recalled.independent,
        method="api_key" if claims.cnf_jkt is None else "key",
        jkt=claims.cnf_jkt,
        state=TxnState.UNSETTLED.value,
        txn_digest=claims.txn_digest,
        aud=claims.aud,
        submitted_at=_moment(claims.iat),
    )
    insert(tx, transaction)
    effects = [effect.effect_id for effect in recalled.effects]
    body = {"txn_digest": claims.txn_digest, "run_key": recalled.run_key, "effects": effects, "aud": claims.aud,
            "to": transaction.state, "why": cause.why}  # fmt: skip
    append(
        tx, "transaction_submitted", actor=cause.actor, txn=claims.txn, rev=rev, agent=claims.sub, body=body
    )
    snapshot = Snapshot(transaction, [], head_rev=rev)
    rows = [new_effect_row(bundle, effect, rev) for effect in recalled.effects]
    reserve_redeemed(tx, bundle, rows, _moment(claims.iat))
    snapshot.effects = [_insert(tx, snapshot, row, cause) for row in rows]
    return snapshot


def _compensation(
    tx: Tx, bundle: Bundle, snapshot: Snapshot, recalled: ReceiptProof, cause: TransitionReason
) -> EffectRow:
    effect = recalled.effects[0]
    known = snapshot.find(effect.effect_id)
    if known is not None:
        return known
    forward = next((one for one in snapshot.effects if _takes_back(effect, one)), None)
    if forward is None or EffectState(forward.state) is not EffectState.FIRED:
        state = "not known" if forward is None else forward.state
        raise ConflictError(f"what {effect.tool} takes back is {state}; report that it fired first")
    row = new_effect_row(bundle, effect, forward.rev, compensates=forward.effect_id)
    reserve_redeemed(tx, bundle, [row], _moment(recalled.claims.iat))
    snapshot.compensations.append(_insert(tx, snapshot, row, cause))
    transition_effect(tx, forward, EffectState.COMPENSATING, cause)
    return row


def _takes_back(effect: Effect, forward: EffectRow) -> bool:
    return effect.call_key == names.compensation_call_key(effect_id=forward.effect_id, tool=effect.tool)


def _insert(tx: Tx, snapshot: Snapshot, effect: EffectRow, cause: TransitionReason) -> EffectRow:
    apply_first_decision(effect, EffectState.UNKNOWN, _FORGOTTEN, tx.now)
    audit_submitted_effect(tx, effect, cause)
    effect.decision_id = record_decision(
        tx, snapshot, effect, _FORGOTTEN, Facts(bundle=""), MeterReading(), cause
    )
    insert(tx, effect)
    where = f"{effect.resource_type} {effect.resource_id}"
    text = f"{effect.tool} for {where} was redeemed before the database was restored"
    open_task(tx, effect, RESTORED_TASK, text, cause)
    return effect


# -- redeemed before and after ---------------------------------------------------------------------------------------


def _redeemed_twice(tx: Tx, claims: ReceiptClaims, spent: set[str], cause: TransitionReason) -> Snapshot:
    snapshot = repository.require_transaction(tx.conn, claims.txn)
    for effect in [*snapshot.effects, *snapshot.compensations]:
        if effect.effect_id in spent:
            body = {**cause.detail, "epoch": claims.epoch, "recorded": effect.redeemed_by}
            audit_effect(tx, effect, "redemption_contradicted", cause.actor, body)
            text = f"{effect.tool} was redeemed before the database was restored, and again after it"
            open_task(tx, effect, TaskKind.CONTRADICTION, text, cause)
    return snapshot
