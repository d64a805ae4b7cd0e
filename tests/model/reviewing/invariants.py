"""I-4, I-5 and I-6 of reviews, read off the tables, the laws and the tokens alone, whatever the model thinks."""

from __future__ import annotations

import re
from typing import Any

from countersign.contract import EffectState, ReleaseClaims
from tests.fakes.payments import person
from tests.model.gates import OWNER, merged, met, stored_gates
from tests.model.invariants import Seen
from tests.model.reviewing.laws import Laws
from tests.model.reviewing.real import Everything

E = EffectState
GONE = {"denied", "expired", "withdrawn", "revoked"}


def i4_at_redemption(found: Everything, claims: list[ReleaseClaims], now: float, laws: Laws) -> None:
    """Unexpired, of the revision in force, the laws do not deny, and every gate they ask for was counted."""
    for claim in claims:
        mine = [t for t in found.tables.transactions if t.txn == claim.txn]
        head = max(mine, key=lambda row: row.rev)
        assert claim.decision.rev == head.rev and claim.txn_digest == head.txn_digest
        assert claim.exp > now and head.valid_until is not None and head.valid_until.timestamp() > now
        effect = next(
            e for e in found.tables.effects if (e.effect_id, e.rev) == (claim.detail.effect_id, head.rev)
        )
        assert claim.detail.effect_digest == effect.effect_digest
        fired = laws.gates_of(effect.tool, amount_in(effect.args))
        assert fired is not None
        stored = {(gate.name, gate.groups, gate.quorum) for gate in stored_gates(effect)}
        assert {(gate.name, gate.groups, gate.quorum) for gate in fired} <= stored


def amount_in(args: bytes) -> int:
    """The one number in the arguments of a call here."""
    return int(re.sub(rb"\D", b"", args))


def i5_reviewed_by_people(found: Everything, before: Seen, laws: Laws) -> None:
    """What has just been released or redeemed after a review was let go by people who may, on this revision."""
    reviews = {(row.effect_id, row.rev): row for row in found.tables.reviews}
    edited = {(row.txn, row.rev): set(row.edited_by) for row in found.tables.transactions}
    for row in found.tables.effects:
        key, state = (row.effect_id, row.rev), E(row.state)
        moved = before.get(key) is not state and state in {E.RELEASED, E.REDEEMED}
        if not moved or not row.gates:
            continue
        cast = [v for v in found.tables.votes if v.review_id == reviews[key].review_id and not v.late]
        assert all((v.effect_digest, v.rev) == (row.effect_digest, row.rev) for v in cast)
        assert not [v for v in cast if v.verdict == "deny" and v.revoked_at is None]
        side = edited[row.txn, row.rev] | {person(OWNER)} | _proposers(found, row)
        able = {v.sub: v.verdict for v in cast if v.revoked_at is None and person(v.sub) not in side}
        _require_let_go(found, row, reviews[key], {(v.sub, v.verdict) for v in cast if v.sub in able}, laws)


def _proposers(found: Everything, effect: Any) -> set[str]:
    """Whoever made the arguments of anything in this revision."""
    mine = {e.effect_id for e in found.tables.effects if (e.txn, e.rev) == (effect.txn, effect.rev)}
    return {
        person(p.sub)
        for p in found.proposals
        if p.effect_id in mine and p.state == "accepted" and p.became_rev <= effect.rev
    }


def _require_let_go(
    found: Everything, effect: Any, review: Any, said: set[tuple[str, str]], laws: Laws
) -> None:
    approving = {name for name, verdict in said if verdict == "approve" and name not in laws.barred}
    people = {name: laws.groups_of(name) for name in sorted(approving)}
    if met(merged(stored_gates(effect), set(review.escalated)), people):
        return
    signed = {n for n, v in said if v == "break_glass" and (laws.opens(n) or laws.opens_alone(n))}
    assert review.break_glass_at is not None, "its gates are not met, and nobody opened it"
    assert len(signed) > 1 or any(map(laws.opens_alone, signed)), signed
    assert effect.valid_for_s <= 900
    if len(signed) == 1:
        tasks = {(t.effect_id, t.kind) for t in found.tables.tasks}
        assert (effect.effect_id, "break_glass_review") in tasks, "opened alone, and nobody reviews that"


def i6_what_settled_stays(before: dict[str, str], now: dict[str, str]) -> None:
    """A question is opened again only after people agreed; one that was answered no, or lapsed, is not."""
    assert before.keys() <= now.keys()
    moved = {key: (was, now[key]) for key, was in before.items() if now[key] != was}
    assert not [key for key, (was, _) in moved.items() if was in GONE], moved
    assert not [key for key, (was, to) in moved.items() if was == "met" and to != "open"], moved
