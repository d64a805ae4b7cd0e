"""Export one review as a file that can be verified on its own; docs/reference/review-export.md describes the format.

    {"format", "content", "seal", "jwk"}

The seal is this service's JWS over the digest of the content, so no member can be changed. Passkey assertions in it
are proofs independent of the seal. Arguments with secrets are left out; their digest represents them. An export
stores nothing.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, select
from sqlmodel import col

from countersign.contract import canonicalize
from countersign.contract.digests import labelled_digest
from countersign.contract.keys import encode_base64url
from policy_service.domain.quorum import BallotVote, BreakGlassSignature
from policy_service.identity.origin import relying_party_id
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.review_context import ReviewContext, read_review_context
from policy_service.queries.vote_eligibility import (
    count_votes,
    evaluated_signatures,
    person_key,
    requesters_side,
    valid_ballots,
)
from policy_service.storage.core import find, find_one, rows_of, table
from policy_service.storage.system_tables import AssertionRow, ViewRow
from policy_service.storage.tables import (
    AttemptRow,
    DecisionRow,
    EffectRow,
    RedemptionRow,
    TransactionRow,
    VoteRow,
)
from policy_service.storage.types import parse_stored_json, time_text
from policy_service.tokens.signer import TYP_EXPORT

FORMAT: Final = "countersign.review-export/1"
EXPORT_LABEL: Final = b"countersign/review-export/v1\n"


async def export(ctx: Context, review_id: str) -> dict[str, Any] | None:
    """The file, or None if there is no such review."""
    now = ctx.clock()
    content = await ctx.db.read(lambda conn: _content(conn, ctx, review_id, now))
    return None if content is None else seal_content(ctx, content, now)


def seal_content(ctx: Context, content: dict[str, Any], now: datetime) -> dict[str, Any]:
    """The content, sealed by this service."""
    claims = {
        "iss": ctx.settings.public_url,
        "sub": content["review"]["review_id"],
        "iat": int(now.timestamp()),
        "digest": content_digest(content),
    }
    seal, key = ctx.signer.seal(claims, typ=TYP_EXPORT)
    return {"format": FORMAT, "content": content, "seal": seal, "jwk": key.jwk()}


def content_digest(content: dict[str, Any]) -> str:
    """The digest that the seal signs."""
    return labelled_digest(EXPORT_LABEL, canonicalize(content))


def _content(conn: Connection, ctx: Context, review_id: str, now: datetime) -> dict[str, Any] | None:
    if repository.review_by_id(conn, review_id) is None:
        return None
    case = read_review_context(conn, review_id)
    review, effect, transaction = case.review, case.effect, case.snapshot.transaction
    votes = case.snapshot.votes_on(effect)
    proofs = _proofs(conn, [vote.vote_id for vote in votes])
    return {
        "deployment": {
            "iss": ctx.settings.public_url,
            "rp_id": relying_party_id(ctx.settings.public_url),
            "origin": ctx.settings.public_url,
            "exported_at": time_text(now),
        },
        "review": {
            "review_id": review.review_id,
            "rev": review.rev,
            "state": review.state,
            "risk": review.risk,
            "opened_at": time_text(review.opened_at),
            "answer_by": time_text(review.answer_by),
            "settled_at": _time(review.settled_at),
            "escalated": sorted(review.escalated),
            "break_glass_at": _time(review.break_glass_at),
        },
        "effect": _effect(effect),
        "transaction": _transaction(transaction, case),
        "requesters": sorted(requesters_side(case.agent, review)),
        "gates": [gate.to_json() for gate in case.gates],
        "votes": _votes(ctx, case, votes, proofs, now),
        "views": _views(conn, votes, proofs),
        "decisions": [_decision(row) for row in _decisions(conn, effect)],
        "redemption": _redemption(conn, effect),
    }


def _effect(effect: EffectRow) -> dict[str, Any]:
    return {
        "kind": effect.kind,
        "agent": effect.agent,
        "txn": effect.txn,
        "effect_id": effect.effect_id,
        "seq": effect.seq,
        "tool": effect.tool,
        "tool_digest": effect.tool_digest,
        "resource": {"type": effect.resource_type, "id": effect.resource_id},
        "call_key": effect.call_key,
        "compensation": effect.compensation,
        "args": None if effect.secret else effect.args.decode(),
        "args_digest": effect.args_digest,
        "effect_digest": effect.effect_digest,
        "state": effect.state,
    }


def _transaction(transaction: TransactionRow, case: ReviewContext) -> dict[str, Any]:
    return {
        "txn_digest": transaction.txn_digest,
        "state": transaction.state,
        "effects": [effect.effect_digest for effect in case.snapshot.effects],
    }


def _votes(
    ctx: Context, case: ReviewContext, votes: list[VoteRow], proofs: dict[str, AssertionRow], now: datetime
) -> list[dict[str, Any]]:
    bundle = ctx.active.current
    about = (ctx, bundle, case.snapshot, case.effect, case.agent)
    valid = {one.vote_id: one for one in valid_ballots(*about, now)}
    signed = {one.vote_id: one for one in evaluated_signatures(*about, case.gates, now)}
    counted = count_votes(*about, case.gates, now)
    return [
        _vote(vote, valid.get(vote.vote_id), signed.get(vote.vote_id))
        | {
            "counted": counted.counts(vote.vote_id),
            "assertion": _assertion(proofs[vote.vote_id]) if vote.vote_id in proofs else None,
        }
        for vote in votes
    ]


def _vote(vote: VoteRow, valid: BallotVote | None, signed: BreakGlassSignature | None) -> dict[str, Any]:
    return {
        "vote_id": vote.vote_id,
        "person": person_key(vote.iss, vote.sub),
        "name": vote.name,
        "verdict": vote.verdict,
        "reason": vote.reason,
        "rev": vote.rev,
        "effect_digest": vote.effect_digest,
        "txn_digest": vote.txn_digest,
        "view_digest": vote.view_digest,
        "assurance": vote.assurance,
        "step_up": vote.step_up,
        "channel": vote.channel,
        "cast_at": time_text(vote.cast_at),
        "late": vote.late,
        "revoked": vote.revoked_at is not None,
        "groups": sorted(vote.groups if valid is None else valid.groups),
        "permitted": signed.may if signed is not None else valid is not None and valid.permitted,
        "alone": signed is not None and signed.alone,
    }


def _assertion(proof: AssertionRow) -> dict[str, Any]:
    return {
        "passkey_id": proof.passkey_id,
        "credential_id": proof.credential_id,
        "public_key": encode_base64url(proof.public_key),
        "authenticator_data": encode_base64url(proof.authenticator_data),
        "client_data": encode_base64url(proof.client_data),
        "signature": encode_base64url(proof.signature),
        "signed": dict(proof.signed),
        "made_at": time_text(proof.made_at),
    }


def _views(conn: Connection, votes: list[VoteRow], proofs: dict[str, AssertionRow]) -> dict[str, Any]:
    named = {vote.view_digest for vote in votes} | {proof.signed["view_digest"] for proof in proofs.values()}
    wanted = [digest for digest in named if digest is not None]
    query = select(*table(ViewRow).columns).where(col(ViewRow.view_digest).in_(wanted))
    return {row.view_digest: parse_stored_json(row.material) for row in rows_of(ViewRow, conn.execute(query))}


def _proofs(conn: Connection, vote_ids: list[str]) -> dict[str, AssertionRow]:
    query = select(*table(AssertionRow).columns).where(col(AssertionRow.vote_id).in_(vote_ids))
    return {row.vote_id: row for row in rows_of(AssertionRow, conn.execute(query))}


def _decisions(conn: Connection, effect: EffectRow) -> list[DecisionRow]:
    found = find(conn, DecisionRow, effect_id=effect.effect_id, rev=effect.rev)
    return sorted(found, key=lambda row: row.decision_id)


def _decision(row: DecisionRow) -> dict[str, Any]:
    return {
        "decision_id": row.decision_id,
        "outcome": row.outcome,
        "cause": row.cause,
        "policies": list(row.policies),
        "gates": list(row.gates),
        "bundle": row.bundle,
        "commit": row.commit,
        "decided_at": time_text(row.decided_at),
    }


def _redemption(conn: Connection, effect: EffectRow) -> dict[str, Any] | None:
    """The id of the redeemed release, and the attempt that the receipt names."""
    row = find_one(conn, RedemptionRow, effect_id=effect.effect_id, rev=effect.rev)
    if row is None:
        return None
    attempt = find_one(conn, AttemptRow, redeemer=row.redeemer, attempt_id=row.attempt_id)
    return {
        "redeemer": row.redeemer,
        "attempt_id": row.attempt_id,
        "jti": row.jti,
        "decision_id": row.decision_id,
        "redeemed_at": time_text(row.redeemed_at),
        "fire_by": None if attempt is None else time_text(attempt.fire_by),
    }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else time_text(moment)
