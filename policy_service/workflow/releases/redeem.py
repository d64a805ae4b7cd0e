"""Redeem: spend the releases of a whole transaction, or none of them.

Numbered as they run:

1. a known attempt answers at once, before tokens are looked at: same party, same receipt, whichever of its keys asks;
2. every token is ours, unexpired, for this party and this key, of this epoch, and together they are the whole list;
3. facts are gathered, then, in one unit of work:
4. the bundle is the one in force for all replicas; the revision is in force, its releases may still be used, every
   token's decision is the one that stands;
5. the policy is asked again; if it denies or asks people now, nothing is redeemed and no attempt recorded;
6. the attempt, one redemption per effect (over all revisions), the moves and their audit rows commit together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy.exc import IntegrityError

from countersign.contract import EffectState, ErrorCode, ReceiptClaims, ReleaseClaims
from policy_service.domain.policy_request import Facts
from policy_service.errors import ConflictError, InvalidRequestError
from policy_service.identity.agents import Caller
from policy_service.pap.bundle import Bundle
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.effects import manifest_for
from policy_service.queries.repository import Snapshot
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.core import find
from policy_service.storage.database import Tx
from policy_service.storage.tables import AgentRow, AttemptRow, EffectRow, RedemptionRow
from policy_service.workflow.active_commit import require_active_commit
from policy_service.workflow.authorization import (
    require_active_caller,
    require_effect_agent,
    require_redeemer,
)
from policy_service.workflow.effects.apply_evaluation import apply_evaluation
from policy_service.workflow.effects.effect_rows import redemption_row
from policy_service.workflow.effects.emergency_stop import require_not_stopped
from policy_service.workflow.effects.evaluation import (
    gather_facts,
    reevaluate,
    require_current_bundle,
    with_stable_bundle,
)
from policy_service.workflow.effects.submit import already_redeemed_error
from policy_service.workflow.effects.termination import expire_if_unused
from policy_service.workflow.metering import lock_missing_meters
from policy_service.workflow.releases.mint import receipt_claims
from policy_service.workflow.releases.release import not_ready_error, require_revision
from policy_service.workflow.releases.verify_release import require_unexpired, verify_releases
from policy_service.workflow.transitions import (
    TransitionReason,
    agent_actor,
    insert,
    sync_transaction_state,
    transition_effect,
)


@dataclass(frozen=True)
class RedeemResult:
    """What came of a redemption: a receipt, or the transaction as the policy has left it."""

    snapshot: Snapshot
    attempt_id: str
    receipt: str | None

    @property
    def redeemed(self) -> bool:
        """Whether the effects are spent under this attempt."""
        return self.receipt is not None


@dataclass(frozen=True)
class UnsignedReceipt:
    """The receipt of an attempt as a unit of work has fixed it, or None when nothing was redeemed."""

    snapshot: Snapshot
    receipt: ReceiptClaims | None


async def redeem(ctx: Context, caller: Caller, tokens: Sequence[str], attempt_id: str) -> RedeemResult:
    """Spend releases under an attempt the caller has journaled.

    Raises:
        InvalidRequestError: bad_token, expired_token.
        ForbiddenError: not_redeemer, or the agent is frozen.
        ConflictError: already_redeemed, superseded, not_ready.
    """

    async def under(bundle: Bundle) -> RedeemResult:
        known = await ctx.db.read(lambda conn: repository.attempt_of(conn, caller.agent, attempt_id))
        claims = [] if known is not None else verify_releases(ctx, caller, tokens)
        facts = {} if known is not None else await _facts(ctx, bundle, claims)
        spent = await ctx.db.write(lambda tx: _redeem(tx, ctx, bundle, caller, claims, attempt_id, facts))
        return sign_receipt(ctx, spent, attempt_id)

    return await with_stable_bundle(ctx, under)


def sign_receipt(ctx: Context, spent: UnsignedReceipt, attempt_id: str) -> RedeemResult:
    """Sign the receipt a committed unit has fixed."""
    receipt = None if spent.receipt is None else ctx.signer.sign_receipt(spent.receipt)
    return RedeemResult(spent.snapshot, attempt_id, receipt)


async def _facts(ctx: Context, bundle: Bundle, claims: Sequence[ReleaseClaims]) -> dict[str, Facts]:
    """Facts of the effects that are to be spent, and of no other: each may cost a question to somebody's database."""
    first, named = claims[0], {claim.detail.effect_id for claim in claims}
    effects = await ctx.db.read(lambda conn: find(conn, EffectRow, txn=first.txn, rev=first.decision.rev))
    return await gather_facts(bundle, [e for e in effects if e.effect_id in named], ctx.clock())


def _redeem(
    tx: Tx,
    ctx: Context,
    bundle: Bundle,
    caller: Caller,
    claims: Sequence[ReleaseClaims],
    attempt_id: str,
    facts: Mapping[str, Facts],
) -> UnsignedReceipt:
    require_current_bundle(ctx, bundle)
    if claims:
        tx = lock_transaction(tx, claims[0].txn)
    attempt = repository.attempt_of(tx.conn, caller.agent, attempt_id)
    if attempt is not None:
        snapshot = repository.require_transaction(tx.conn, attempt.txn, attempt.rev)
        return UnsignedReceipt(snapshot, receipt_for_attempt(tx, ctx, snapshot, attempt, caller))
    if not claims:
        raise InvalidRequestError(
            "send the release tokens of the whole transaction", code=ErrorCode.BAD_TOKEN
        )
    require_active_commit(tx, ctx, bundle)
    snapshot = repository.require_transaction(tx.conn, claims[0].txn)
    require_redeemer(caller, snapshot.transaction)
    redeemer = require_active_caller(tx, caller, claims[0].kind)
    for claim in claims:
        require_unexpired(claim, tx.now)
        require_revision(snapshot, claim.decision.rev)
    effects = _effects_of(snapshot, claims)
    require_not_stopped(tx, [effect.tool for effect in effects])
    _require_unspent(tx, snapshot, effects)
    if expire_if_unused(tx, snapshot):
        return UnsignedReceipt(snapshot, None)
    _require_standing(snapshot, effects, claims)
    its_own = caller.agent == snapshot.transaction.agent
    agent = redeemer if its_own else require_effect_agent(tx, snapshot.transaction.agent, effects[0].kind)
    if not is_still_released(tx, ctx, bundle, snapshot, agent, effects, facts, caller):
        return UnsignedReceipt(repository.require_transaction(tx.conn, snapshot.transaction.txn), None)
    return redeem_effects(
        tx, ctx, bundle, snapshot, effects, caller, attempt_id, {c.detail.effect_id: c.jti for c in claims}
    )


def receipt_for_attempt(
    tx: Tx, ctx: Context, snapshot: Snapshot, attempt: AttemptRow, caller: Caller
) -> ReceiptClaims:
    """The receipt of a recorded attempt, for the key that asks now."""
    redemptions = repository.redemptions_of(tx.conn, attempt)
    effects = [e for e in [*snapshot.effects, *snapshot.compensations] if e.effect_id in redemptions]
    return receipt_claims(ctx, snapshot, attempt, redemptions, effects, caller, tx.now)


def _effects_of(snapshot: Snapshot, claims: Sequence[ReleaseClaims]) -> list[EffectRow]:
    """The effects the tokens are for: the whole list in order, or one compensation."""
    named = [claim.detail.effect_id for claim in claims]
    if claims[0].kind == "compensate":
        return [_compensation(snapshot, named)]
    if named != [effect.effect_id for effect in snapshot.effects]:
        raise InvalidRequestError(
            "redeem the whole transaction: one release for each of its effects, in order",
            code=ErrorCode.BAD_TOKEN,
        )
    return snapshot.effects


def _compensation(snapshot: Snapshot, named: Sequence[str]) -> EffectRow:
    found = [effect for effect in snapshot.compensations if [effect.effect_id] == named]
    if not found:
        raise InvalidRequestError("redeem one compensation at a time", code=ErrorCode.BAD_TOKEN)
    return found[0]


def _require_unspent(tx: Tx, snapshot: Snapshot, effects: Sequence[EffectRow]) -> None:
    spent = repository.redeemed_effects(tx.conn, [effect.effect_id for effect in effects])
    if spent:
        raise already_redeemed_error(snapshot, "these effects were redeemed under another attempt")


def _require_standing(snapshot: Snapshot, effects: list[EffectRow], claims: Sequence[ReleaseClaims]) -> None:
    if not effects or any(effect.state != EffectState.RELEASED.value for effect in effects):
        raise not_ready_error(snapshot, effects)
    for effect, claim in zip(effects, claims, strict=True):
        stands = (effect.rev, effect.decision_id, effect.effect_digest, snapshot.transaction.txn_digest)
        if (claim.decision.rev, claim.decision.id, claim.detail.effect_digest, claim.txn_digest) != stands:
            raise ConflictError(
                "a newer decision stands than the one this release was minted under; ask for releases again",
                code=ErrorCode.SUPERSEDED,
                rev=effect.rev,
            )


def is_still_released(
    tx: Tx,
    ctx: Context,
    bundle: Bundle,
    snapshot: Snapshot,
    agent: AgentRow,
    effects: Sequence[EffectRow],
    facts: Mapping[str, Facts],
    caller: Caller,
) -> bool:
    """Ask the policy once more about each effect; what it denies or asks people about is moved accordingly."""
    cause = TransitionReason(agent_actor(caller.agent), "redeem")
    lock_missing_meters(tx, bundle, effects)
    for effect in effects:
        answer = reevaluate(
            tx, ctx, bundle, agent, snapshot, effect, facts[effect.effect_id], cause, caller=caller
        )
        apply_evaluation(tx, bundle, snapshot, effect, answer, cause)
        if not answer.releases:
            return False
    # a valid_for may have become shorter than the time that has passed
    return not expire_if_unused(tx, snapshot)


def redeem_effects(
    tx: Tx,
    ctx: Context,
    bundle: Bundle,
    snapshot: Snapshot,
    effects: Sequence[EffectRow],
    caller: Caller,
    attempt_id: str,
    jtis: Mapping[str, str],
) -> UnsignedReceipt:
    """Record the attempt and spend every effect under it. The caller has checked everything else.

    Raises:
        ConflictError: somebody else spent one of them first, or a token was used already.
    """
    require_active_commit(tx, ctx, bundle)
    cause = TransitionReason(agent_actor(caller.agent), "redeem", {"attempt_id": attempt_id})
    fire_by = tx.now + timedelta(seconds=ctx.settings.fire_window_s)
    attempt = AttemptRow(
        attempt_id=attempt_id,
        txn=snapshot.transaction.txn,
        rev=snapshot.transaction.rev,
        kind=effects[0].kind,
        redeemer=caller.agent,
        jkt=caller.jkt,
        fire_by=fire_by,
        redeemed_at=tx.now,
    )
    insert(tx, attempt)
    redemptions = {
        effect.effect_id: _spend_one(
            tx, ctx, bundle, snapshot, effect, attempt, jtis[effect.effect_id], cause
        )
        for effect in effects
    }
    if attempt.kind == "effect":
        sync_transaction_state(tx, snapshot, cause)
    return UnsignedReceipt(
        snapshot, receipt_claims(ctx, snapshot, attempt, redemptions, effects, caller, tx.now)
    )


def _spend_one(
    tx: Tx,
    ctx: Context,
    bundle: Bundle,
    snapshot: Snapshot,
    effect: EffectRow,
    attempt: AttemptRow,
    jti: str,
    cause: TransitionReason,
) -> RedemptionRow:
    redemption = redemption_row(effect, attempt, jti)
    try:
        insert(tx, redemption)
    except IntegrityError as error:
        raise already_redeemed_error(snapshot, "this effect was redeemed already") from error
    transition_effect(
        tx,
        effect,
        EffectState.REDEEMED,
        TransitionReason(cause.actor, cause.why, {**cause.detail, "jti": jti}),
        redeemed_by=attempt.attempt_id,
        fire_by=attempt.fire_by,
        unknown_at=outcome_deadline(ctx, bundle, effect, attempt),
    )
    return redemption


def outcome_deadline(ctx: Context, bundle: Bundle, effect: EffectRow, attempt: AttemptRow) -> datetime:
    """When an unreported effect becomes unknown: ``fire_by`` and the manifest's timeout."""
    manifest = manifest_for(bundle, effect.tool, effect.tool_digest)
    timeout = ctx.settings.outcome_grace_s if manifest is None else manifest.timeout_seconds
    return attempt.fire_by + timedelta(seconds=timeout)
