"""Redeem: spend the releases of a whole transaction at once, or none of them.

Steps, in order:

1. A known attempt gets its receipt again before any token is checked: for the same party, with any of its keys.
2. Every token must be ours, unexpired, for this party, this key and this epoch; together they must be the whole list.
3. Facts are gathered. The remaining steps run in one unit of work.
4. The bundle must be the active one of all replicas, the revision in force, the releases still valid, and each token's
   decision the newest of its effect.
5. The policy is evaluated again. If it denies or requires a review now, nothing is redeemed and no attempt is stored.
6. The attempt, one redemption for each effect (unique over all revisions), the transitions and their audit rows are
   committed together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from countersign.contract import (
    TYP_RELEASE,
    ContractError,
    EffectState,
    ErrorCode,
    ReceiptClaims,
    ReleaseClaims,
    open_token,
)
from policy_service.domain.policy_request import Facts
from policy_service.errors import ConflictError, ForbiddenError, InvalidRequestError
from policy_service.identity.agents import Caller
from policy_service.pap.bundle import Bundle
from policy_service.queries import repository
from policy_service.queries.archived import refuse_missing, refuse_missing_attempt
from policy_service.queries.context import Context
from policy_service.queries.effects import manifest_for
from policy_service.queries.repository import Snapshot
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.core import find
from policy_service.storage.database import Tx
from policy_service.storage.tables import AttemptRow, EffectRow
from policy_service.workflow.authorization import (
    require_active_caller,
    require_active_commit,
    require_effect_agent,
    require_not_stopped,
    require_redeemer,
)
from policy_service.workflow.effects.apply_evaluation import apply_evaluation
from policy_service.workflow.effects.digests import redemption_row
from policy_service.workflow.effects.evaluation import (
    gather_facts,
    reevaluate_each,
    require_current_bundle,
    with_stable_bundle,
)
from policy_service.workflow.effects.outcomes import expire_if_unused, sync_transaction_state
from policy_service.workflow.releases.release import not_ready_error, receipt_claims, require_revision
from policy_service.workflow.transitions import TransitionReason, insert, transition_effect

Redemption = tuple[Snapshot, ReceiptClaims | None]
"""What a unit of work leaves: the transaction, and the receipt to sign, or None if nothing was redeemed."""


@dataclass(frozen=True)
class RedeemResult:
    """A signed receipt; or None, and the transaction as the policy has changed it."""

    snapshot: Snapshot
    attempt_id: str
    receipt: str | None

    @property
    def redeemed(self) -> bool:
        """Whether the effects are redeemed under this attempt."""
        return self.receipt is not None


async def redeem(ctx: Context, caller: Caller, tokens: Sequence[str], attempt_id: str) -> RedeemResult:
    """Redeem releases under an attempt that the caller has journaled.

    Raises:
        InvalidRequestError: bad_token, expired_token.
        ForbiddenError: not_redeemer, or the agent is frozen.
        ConflictError: already_redeemed, superseded, not_ready.
    """

    async def work(bundle: Bundle) -> RedeemResult:
        known = await ctx.db.read(lambda conn: repository.attempt_of(conn, caller.agent, attempt_id))
        # A repeat of a known attempt gets the same receipt, also after its tokens expired: the effects may have fired.
        claims = [] if known is not None else _verify_releases(ctx, caller, tokens)
        facts = {} if known is not None else await _facts(ctx, bundle, claims)
        redemption = await ctx.db.write(
            lambda tx: _redeem(tx, ctx, bundle, caller, claims, attempt_id, facts)
        )
        return sign_receipt(ctx, redemption, attempt_id)

    return await with_stable_bundle(ctx, work)


def sign_receipt(ctx: Context, redemption: Redemption, attempt_id: str) -> RedeemResult:
    """Sign the receipt that a committed unit has fixed."""
    snapshot, claims = redemption
    return RedeemResult(snapshot, attempt_id, None if claims is None else ctx.signer.sign_receipt(claims))


async def _facts(ctx: Context, bundle: Bundle, claims: Sequence[ReleaseClaims]) -> dict[str, Facts]:
    """The facts of the effects to redeem, and no others: each can cost a query to another system."""
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
) -> Redemption:
    require_current_bundle(ctx, bundle)
    if claims:
        # Before the first read: two redemptions of one transaction run one after the other, on both engines.
        tx = lock_transaction(tx, claims[0].txn)
    attempt = repository.attempt_of(tx.conn, caller.agent, attempt_id)
    if attempt is not None:
        snapshot = repository.require_transaction(tx.conn, attempt.txn, attempt.rev)
        return snapshot, receipt_for_attempt(tx, ctx, snapshot, attempt, caller)
    if not claims:
        raise _bad_token("send the release tokens of the whole transaction")
    require_active_commit(tx, ctx, bundle)
    snapshot = repository.load(tx.conn, claims[0].txn) or refuse_missing(tx.conn, claims[0].txn)
    transaction = snapshot.transaction
    require_redeemer(caller, transaction)
    # Read inside the unit, not from the authenticated request: a stop since then must win.
    redeemer, stopped = require_active_caller(tx, caller, claims[0].kind)
    for claim in claims:
        # ``exp`` was set by this same clock, which all replicas share, so there is no leeway.
        if int(tx.now.timestamp()) >= claim.exp:
            raise InvalidRequestError(
                "this release has expired; ask for a new one", code=ErrorCode.EXPIRED_TOKEN
            )
        require_revision(snapshot, claim.decision.rev)
    effects = _effects_of(snapshot, claims)
    require_not_stopped(stopped, [effect.tool for effect in effects])
    # For a clear answer only. What prevents a second redemption is the unique key below.
    if repository.redeemed_effects(tx.conn, [effect.effect_id for effect in effects]):
        raise already_redeemed_error(snapshot, "these effects were redeemed under another attempt")
    if expire_if_unused(tx, snapshot):
        return snapshot, None
    _require_newest_decisions(snapshot, effects, claims)
    own = caller.agent == transaction.agent
    agent = redeemer if own else require_effect_agent(tx, transaction.agent, effects[0].kind)
    cause = TransitionReason.by_agent(caller.agent, "redeem")
    # The last moment to change an answer: a policy or fact that changed since the release still denies here.
    answers = reevaluate_each(tx, ctx, bundle, agent, snapshot, effects, facts, cause, caller)
    for effect, answer in answers:
        apply_evaluation(tx, bundle, snapshot, effect, answer, cause)
        if not answer.releases:
            # The new decision is kept, so this unit commits; all effects of the transaction stay unredeemed.
            return repository.require_transaction(tx.conn, transaction.txn), None
    if expire_if_unused(
        tx, snapshot
    ):  # an evaluation can shorten the validity below the time that has passed
        return repository.require_transaction(tx.conn, transaction.txn), None
    jtis = {claim.detail.effect_id: claim.jti for claim in claims}
    return snapshot, redeem_effects(tx, ctx, bundle, snapshot, effects, caller, attempt_id, jtis)


def require_attempt(conn: Connection, caller: Caller, attempt_id: str) -> AttemptRow:
    """The caller's attempt of this id. The transaction of an attempt never changes.

    Raises:
        NotFoundError: unknown_attempt.
        ConflictError: already_reported: its transaction is archived.
    """
    attempt = repository.attempt_of(conn, caller.agent, attempt_id)
    if attempt is None:
        refuse_missing_attempt(conn, caller.agent, attempt_id)
    return attempt


def receipt_for_attempt(
    tx: Tx, ctx: Context, snapshot: Snapshot, attempt: AttemptRow, caller: Caller
) -> ReceiptClaims:
    """The receipt of a stored attempt, for the caller's key."""
    redemptions = repository.redemptions_of(tx.conn, attempt)
    effects = [e for e in [*snapshot.effects, *snapshot.compensations] if e.effect_id in redemptions]
    return receipt_claims(ctx, snapshot, attempt, redemptions, effects, caller, tx.now)


def already_redeemed_error(head: Snapshot, what: str) -> ConflictError:
    """409 already_redeemed, with the outcome known so far."""
    return ConflictError(
        f"{what}; nothing more fires under it. Another run key would repeat what it did",
        code=ErrorCode.ALREADY_REDEEMED,
        txn=head.transaction.txn,
        rev=head.transaction.rev,
        state=head.transaction.state,
        effects=[{"effect_id": e.effect_id, "seq": e.seq, "state": e.state} for e in head.effects],
    )


# -- checks of the tokens ----------------------------------------------------------------------------------------------


def _verify_releases(ctx: Context, caller: Caller, tokens: Sequence[str]) -> list[ReleaseClaims]:
    """The claims of releases that this caller may redeem, all of one transaction.

    Raises:
        InvalidRequestError: bad_token.
        ForbiddenError: not_redeemer: they are for another party or key.
    """
    claims = [_verify_release(ctx, caller, token) for token in tokens]
    if len({(claim.txn, claim.kind) for claim in claims}) != 1:
        raise _bad_token("the releases are not of one transaction; ask for releases again")
    return claims


def _verify_release(ctx: Context, caller: Caller, token: str) -> ReleaseClaims:
    """We signed it ourselves, and still check every claim: a leaked token must be useless to another party."""
    try:
        opened = open_token(token, typ=TYP_RELEASE, key_for=ctx.signer.keys.get)
        claims = ReleaseClaims.from_claims(opened.claims)
    except ContractError as error:
        raise _bad_token("not a release of this service; ask for releases again") from error
    if claims.iss != ctx.settings.public_url or claims.epoch != ctx.epoch():
        raise _bad_token("this release is of another deployment or an earlier epoch; ask for releases again")
    # `caller.jkt` is the key that signed this request, not a value from the body.
    if claims.aud != caller.agent or claims.cnf_jkt != caller.jkt:
        raise ForbiddenError(
            "this release is bound to another party or key; ask for one with the key that redeems",
            code=ErrorCode.NOT_REDEEMER,
        )
    return claims


def _bad_token(text: str) -> InvalidRequestError:
    return InvalidRequestError(text, code=ErrorCode.BAD_TOKEN)


def _effects_of(snapshot: Snapshot, claims: Sequence[ReleaseClaims]) -> list[EffectRow]:
    """The effects that the tokens are for: the whole list in order, or one compensation."""
    named = [claim.detail.effect_id for claim in claims]
    if claims[0].kind == "compensate":
        found = [effect for effect in snapshot.compensations if [effect.effect_id] == named]
        if not found:
            raise _bad_token("redeem one compensation at a time")
        return found
    # All or none: people approved the list, and the transaction is committed by one redemption.
    if named != [effect.effect_id for effect in snapshot.effects]:
        raise _bad_token("redeem the whole transaction: one release for each of its effects, in order")
    return snapshot.effects


def _require_newest_decisions(
    snapshot: Snapshot, effects: list[EffectRow], claims: Sequence[ReleaseClaims]
) -> None:
    if not effects or any(effect.state != EffectState.RELEASED.value for effect in effects):
        raise not_ready_error(snapshot, effects)
    for effect, claim in zip(effects, claims, strict=True):
        current = (effect.rev, effect.decision_id, effect.effect_digest, snapshot.transaction.txn_digest)
        if (claim.decision.rev, claim.decision.id, claim.detail.effect_digest, claim.txn_digest) != current:
            raise ConflictError(
                "this release was made under an older decision; ask for releases again",
                code=ErrorCode.SUPERSEDED,
                rev=effect.rev,
            )


# -- storing the redemption --------------------------------------------------------------------------------------------


def redeem_effects(
    tx: Tx,
    ctx: Context,
    bundle: Bundle,
    snapshot: Snapshot,
    effects: Sequence[EffectRow],
    caller: Caller,
    attempt_id: str,
    jtis: Mapping[str, str],
) -> ReceiptClaims:
    """Store the attempt and redeem every effect under it. The caller has done all other checks.

    Raises:
        ConflictError: another unit redeemed one of them first, or a token was used already.
    """
    require_active_commit(tx, ctx, bundle)
    cause = TransitionReason.by_agent(caller.agent, "redeem", {"attempt_id": attempt_id})
    attempt = AttemptRow(
        attempt_id=attempt_id,
        txn=snapshot.transaction.txn,
        rev=snapshot.transaction.rev,
        kind=effects[0].kind,
        redeemer=caller.agent,
        jkt=caller.jkt,
        fire_by=tx.now + timedelta(seconds=ctx.settings.fire_window_s),
        redeemed_at=tx.now,
    )
    insert(tx, attempt)
    redemptions = {}
    for effect in effects:
        jti = jtis[effect.effect_id]
        redemptions[effect.effect_id] = row = redemption_row(effect, attempt, jti)
        # The primary key is the effect: the database refuses a second redemption even if a check above failed to.
        try:
            insert(tx, row)
        except IntegrityError as error:
            raise already_redeemed_error(snapshot, "this effect was redeemed already") from error
        reason = TransitionReason(cause.actor, cause.why, {**cause.detail, "jti": jti})
        times = {"fire_by": attempt.fire_by, "unknown_at": outcome_deadline(ctx, bundle, effect, attempt)}
        transition_effect(tx, effect, EffectState.REDEEMED, reason, redeemed_by=attempt_id, **times)
    if attempt.kind == "effect":
        sync_transaction_state(tx, snapshot, cause)
    return receipt_claims(ctx, snapshot, attempt, redemptions, effects, caller, tx.now)


def outcome_deadline(ctx: Context, bundle: Bundle, effect: EffectRow, attempt: AttemptRow) -> datetime:
    """When an unreported effect becomes unknown: ``fire_by`` plus the timeout of its manifest."""
    manifest = manifest_for(bundle, effect.tool, effect.tool_digest)
    timeout = ctx.settings.outcome_grace_s if manifest is None else manifest.timeout_seconds
    return attempt.fire_by + timedelta(seconds=timeout)
