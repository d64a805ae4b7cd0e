"""Claims of release tokens and receipts, from the rows that stand.

Nothing is signed inside a unit of work: the unit fixes what will be signed and logs it; the signature follows the
commit.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from countersign.contract import (
    DecisionClaims,
    EffectDetail,
    Mode,
    ReceiptClaims,
    ReceiptEffect,
    ReleaseClaims,
    Resource,
)
from policy_service.identity.agents import Caller
from policy_service.queries.context import Context
from policy_service.queries.effects import gates_of
from policy_service.queries.repository import Snapshot, agent_of
from policy_service.queries.vote_eligibility import count_votes
from policy_service.storage.database import Tx
from policy_service.storage.tables import AttemptRow, EffectRow, RedemptionRow, VoteRow
from policy_service.workflow.transitions import TransitionReason, audit_effect

_JTI_BYTES = 16  # 128 bits: never guessed, never met twice


@dataclass(frozen=True)
class UnsignedRelease:
    """A release as it will be signed."""

    effect_id: str
    claims: ReleaseClaims


def mint(
    tx: Tx,
    ctx: Context,
    snapshot: Snapshot,
    effects: Sequence[EffectRow],
    caller: Caller,
    until: datetime,
    cause: TransitionReason,
) -> list[UnsignedRelease]:
    """Fix the releases of these effects for the key that asks, and log each by its jti."""
    jtis = {effect.effect_id: secrets.token_hex(_JTI_BYTES) for effect in effects}
    minted = build_releases(tx, ctx, snapshot, effects, caller, until, jtis)
    for effect, one in zip(effects, minted, strict=True):
        body = {
            "jti": one.claims.jti,
            "exp": one.claims.exp,
            "cnf": caller.jkt or "none",
            "aud": caller.agent,
        }
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
) -> list[UnsignedRelease]:
    """Releases with these ids. Those of a recorded attempt are spent: telling them again permits nothing new."""
    return [
        UnsignedRelease(
            effect.effect_id,
            _claims(
                ctx,
                snapshot,
                effect,
                caller,
                tx.now,
                until,
                jtis[effect.effect_id],
                _people(tx, ctx, snapshot, effect),
            ),
        )
        for effect in effects
    ]


@dataclass(frozen=True)
class _People:
    """How people let an effect go, and by which votes."""

    mode: Mode
    votes: Sequence[VoteRow] = ()


def _people(tx: Tx, ctx: Context, snapshot: Snapshot, effect: EffectRow) -> _People:
    """The votes that count now: approvals, or the signatures that stand in for them."""
    agent = agent_of(tx.conn, effect.agent) if effect.gates else None
    if agent is None:
        return _People(Mode.REVIEW if effect.gates else Mode.AUTO)
    tally = count_votes(ctx, ctx.active.current, snapshot, effect, agent, gates_of(effect), tx.now)
    votes = [vote for vote in snapshot.votes_on(effect) if vote.vote_id in tally.signed]
    return _People(Mode.REVIEW if tally.opened is None else Mode.BREAK_GLASS, votes)


def _claims(
    ctx: Context,
    snapshot: Snapshot,
    effect: EffectRow,
    caller: Caller,
    now: datetime,
    until: datetime,
    jti: str,
    people: _People,
) -> ReleaseClaims:
    transaction = snapshot.transaction
    issued = int(now.timestamp())
    return ReleaseClaims(
        iss=ctx.settings.iss,
        aud=transaction.aud,
        sub=transaction.agent,
        iat=issued,
        nbf=issued,
        exp=min(issued + ctx.settings.release_ttl_s, int(until.timestamp())),
        jti=jti,
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
        decision=_decision(snapshot, effect, people),
    )


def _decision(snapshot: Snapshot, effect: EffectRow, people: _People) -> DecisionClaims:
    decision = snapshot.decisions[effect.decision_id]
    return DecisionClaims(
        id=effect.decision_id,
        mode=people.mode,
        commit=decision.commit,
        bundle=decision.bundle,
        policies=tuple(decision.policies),
        votes=tuple(vote.vote_id for vote in people.votes),
        rev=effect.rev,
        assurance=_assurance(people.votes),
    )


def _assurance(approvals: Sequence[VoteRow]) -> Literal["oidc", "dev", "none"]:
    if not approvals:
        return "none"
    return "dev" if any(vote.assurance == "dev" for vote in approvals) else "oidc"


def receipt_claims(
    ctx: Context,
    snapshot: Snapshot,
    attempt: AttemptRow,
    redemptions: Mapping[str, RedemptionRow],
    effects: Sequence[EffectRow],
    caller: Caller,
    now: datetime,
) -> ReceiptClaims:
    """The receipt of an attempt as it stands; it names the key that asks for it."""
    transaction = snapshot.transaction
    return ReceiptClaims(
        iss=ctx.settings.iss,
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
