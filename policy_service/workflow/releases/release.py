"""Release: build and sign the release tokens of a ready transaction, and the claims of receipts.

Tokens are made on request, for the key that asks: an approval belongs to the agent, not to one key. None is made before
every effect of the transaction may be released, and none outlives the validity of the approval.

A unit of work fixes and audits the claims. They are signed after its commit, so no signed token exists for a unit that
was rolled back.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from countersign.contract import (
    DecisionClaims,
    EffectDetail,
    EffectState,
    ErrorCode,
    Mode,
    ReceiptClaims,
    ReceiptEffect,
    ReleaseClaims,
    Resource,
    TxnState,
)
from policy_service.errors import ConflictError
from policy_service.identity.agents import Caller
from policy_service.queries import repository
from policy_service.queries.archived import refuse_missing_to
from policy_service.queries.context import Context
from policy_service.queries.effects import gates_of
from policy_service.queries.repository import Snapshot
from policy_service.queries.vote_eligibility import count_votes
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.database import Tx
from policy_service.storage.tables import AttemptRow, EffectRow, RedemptionRow, VoteRow
from policy_service.workflow.authorization import (
    require_active_caller,
    require_effect_agent,
    require_not_stopped,
    require_redeemer,
)
from policy_service.workflow.effects.outcomes import expire_if_unused
from policy_service.workflow.transitions import TransitionReason, audit_effect

_JTI_BYTES = 16  # 128 random bits: unguessable and unique


@dataclass(frozen=True)
class ReleaseResult:
    """A transaction with the signed releases of its effects, in order."""

    snapshot: Snapshot
    releases: tuple[str, ...]


async def release(ctx: Context, caller: Caller, txn: str, rev: int) -> ReleaseResult:
    """Make the releases of a ready transaction.

    Raises:
        NotFoundError, ForbiddenError: the caller may not redeem it, or is frozen.
        ConflictError: superseded, not_ready; already_redeemed, and archived.
    """
    snapshot, claims = await ctx.db.write(lambda tx: _release(tx, ctx, caller, txn, rev))
    return ReleaseResult(snapshot, sign_releases(ctx, claims))


def sign_releases(ctx: Context, claims: Iterable[ReleaseClaims]) -> tuple[str, ...]:
    """Sign the releases that a committed unit has fixed."""
    return tuple(map(ctx.signer.sign_release, claims))


def _release(
    tx: Tx, ctx: Context, caller: Caller, txn: str, rev: int
) -> tuple[Snapshot, list[ReleaseClaims]]:
    tx = lock_transaction(tx, txn)
    snapshot = repository.load(tx.conn, txn) or refuse_missing_to(tx.conn, caller.agent, txn)
    transaction = snapshot.transaction
    require_redeemer(caller, transaction)
    stopped = require_active_caller(tx, caller).stopped
    if transaction.agent != caller.agent:
        require_effect_agent(tx, transaction.agent)
    require_not_stopped(stopped, [effect.tool for effect in snapshot.effects])
    require_revision(snapshot, rev)
    if expire_if_unused(tx, snapshot):
        return snapshot, []
    until = transaction.valid_until
    if transaction.state != TxnState.READY.value or until is None:
        raise not_ready_error(snapshot, snapshot.effects)
    cause = TransitionReason.by_agent(caller.agent, "release")
    return snapshot, mint(tx, ctx, snapshot, snapshot.effects, caller, until, cause)


def require_revision(snapshot: Snapshot, rev: int) -> None:
    """Require that this revision is in force.

    Raises:
        ConflictError: superseded.
    """
    current = snapshot.transaction.rev
    if current != rev:
        raise ConflictError(
            f"revision {rev} is not in force, revision {current} is; read the transaction again",
            code=ErrorCode.SUPERSEDED,
            rev=current,
        )


def not_ready_error(snapshot: Snapshot, effects: list[EffectRow]) -> ConflictError:
    """409 not_ready, with the effects that may not be released yet."""
    waiting = [e.effect_id for e in effects if e.state != EffectState.RELEASED.value]
    return ConflictError(
        f"the transaction is {snapshot.transaction.state}; releases exist only once every effect may be released",
        code=ErrorCode.NOT_READY,
        state=snapshot.transaction.state,
        waiting=waiting,
    )


# -- claims ------------------------------------------------------------------------------------------------------------


def mint(
    tx: Tx,
    ctx: Context,
    snapshot: Snapshot,
    effects: Sequence[EffectRow],
    caller: Caller,
    until: datetime,
    cause: TransitionReason,
) -> list[ReleaseClaims]:
    """Build releases with new ids for the caller's key, and audit each id."""
    jtis = {effect.effect_id: secrets.token_hex(_JTI_BYTES) for effect in effects}
    minted = build_releases(tx, ctx, snapshot, effects, caller, until, jtis)
    for effect, claims in zip(effects, minted, strict=True):
        body = {"jti": claims.jti, "exp": claims.exp, "cnf": caller.jkt or "none", "aud": caller.agent}
        audit_effect(tx, effect, "release_minted", cause.actor, body)
    return minted


def build_releases(
    tx: Tx,
    ctx: Context,
    snapshot: Snapshot,
    effects: Sequence[EffectRow],
    caller: Caller,
    until: datetime,
    jtis: Mapping[str, str],
) -> list[ReleaseClaims]:
    """Build releases with given ids. To repeat those of a recorded attempt is safe: they are spent."""
    transaction, issued = snapshot.transaction, int(tx.now.timestamp())
    return [
        ReleaseClaims(
            iss=ctx.settings.public_url,
            aud=transaction.aud,
            sub=transaction.agent,
            iat=issued,
            nbf=issued,
            exp=min(issued + ctx.settings.release_ttl_s, int(until.timestamp())),
            jti=jtis[effect.effect_id],
            txn=transaction.txn,
            txn_digest=transaction.txn_digest,
            epoch=ctx.epoch(),
            cnf_jkt=caller.jkt,
            kind="compensate" if effect.kind == "compensate" else "effect",
            compensates=effect.compensates,
            detail=EffectDetail(
                effect_id=effect.effect_id,
                seq=effect.seq,
                tool=effect.tool,
                tool_digest=effect.tool_digest,
                args_digest=effect.args_digest,
                effect_digest=effect.effect_digest,
                resource=Resource(effect.resource_type, effect.resource_id),
                call_key=effect.call_key,
            ),
            decision=_decision_claims(tx, ctx, snapshot, effect),
        )
        for effect in effects
    ]


def _decision_claims(tx: Tx, ctx: Context, snapshot: Snapshot, effect: EffectRow) -> DecisionClaims:
    decision = snapshot.decisions[effect.decision_id]
    mode, votes = _approval(tx, ctx, snapshot, effect)
    return DecisionClaims(
        id=effect.decision_id,
        mode=mode,
        commit=decision.commit,
        bundle=decision.bundle,
        policies=tuple(decision.policies),
        votes=tuple(vote.vote_id for vote in votes),
        rev=effect.rev,
        assurance=_assurance(votes),
    )


def _approval(tx: Tx, ctx: Context, snapshot: Snapshot, effect: EffectRow) -> tuple[Mode, list[VoteRow]]:
    """How people approved an effect, and the votes or signatures that count now."""
    agent = repository.agent_of(tx.conn, effect.agent) if effect.gates else None
    if agent is None:
        return Mode.REVIEW if effect.gates else Mode.AUTO, []
    tally = count_votes(ctx, ctx.active.current, snapshot, effect, agent, gates_of(effect), tx.now)
    votes = [vote for vote in snapshot.votes_on(effect) if vote.vote_id in tally.signed]
    return Mode.REVIEW if tally.opened is None else Mode.BREAK_GLASS, votes


def _assurance(votes: Sequence[VoteRow]) -> Literal["oidc", "dev", "none"]:
    if not votes:
        return "none"
    return "dev" if any(vote.assurance == "dev" for vote in votes) else "oidc"


def receipt_claims(
    ctx: Context,
    snapshot: Snapshot,
    attempt: AttemptRow,
    redemptions: Mapping[str, RedemptionRow],
    effects: Sequence[EffectRow],
    caller: Caller,
    now: datetime,
) -> ReceiptClaims:
    """Build the receipt of an attempt for these effects. It names the caller's key."""
    transaction = snapshot.transaction
    return ReceiptClaims(
        iss=ctx.settings.public_url,
        aud=transaction.aud,
        sub=transaction.agent,
        iat=int(now.timestamp()),
        fire_by=min(int((e.fire_by or attempt.fire_by).timestamp()) for e in effects),
        epoch=ctx.epoch(),
        txn=transaction.txn,
        txn_digest=transaction.txn_digest,
        attempt=attempt.attempt_id,
        kind="compensate" if attempt.kind == "compensate" else "effect",
        cnf_jkt=caller.jkt,
        effects=tuple(
            ReceiptEffect(e.effect_id, e.effect_digest, redemptions[e.effect_id].jti) for e in effects
        ),
    )
