"""The invariants of the design, read off the tables and the tokens alone, not off the model."""

from __future__ import annotations

from collections.abc import Mapping

from countersign.contract import EffectState, ReceiptClaims, ReleaseClaims, load
from countersign.contract import digests as names
from tests.model.real import Shop, Tables

E = EffectState
SPENT = {
    E.REDEEMED, E.FIRED, E.FAILED, E.UNKNOWN, E.UNUSED, E.COMPENSATING, E.COMPENSATED, E.COMPENSATION_FAILED,
}  # fmt: skip


def i1_no_fire_without_redemption(tables: Tables, shop: Shop) -> None:
    """No fire without a redemption, no redemption without a release decision; a compensation is no exception."""
    redeemed = {(row.effect_id, row.rev): row for row in tables.redemptions}
    assert shop.fired.keys() <= {effect_id for effect_id, _ in redeemed}
    for row in tables.effects:
        spent = (row.effect_id, row.rev) in redeemed
        assert spent is (E(row.state) in SPENT), (row.effect_id, row.state)
        if spent:
            decision = tables.decisions[redeemed[row.effect_id, row.rev].decision_id]
            assert (decision.effect_id, decision.rev) == (row.effect_id, row.rev)
            assert decision.outcome in {"release", "review"}, decision.outcome
            assert decision.outcome == "release" or row.gates or row.kind == "compensate"


def i2_same_bytes(tables: Tables, releases: list[ReleaseClaims], receipts: list[ReceiptClaims]) -> None:
    """What was voted, released and receipted is the digest of the bytes that are stored."""
    effects = {(row.effect_id, row.rev): row for row in tables.effects}
    for row in tables.effects:
        assert row.args_digest == names.args_digest(args=load(row.args))
    for vote in tables.votes:
        assert vote.effect_digest == effects[vote.effect_id, vote.rev].effect_digest
    for claims in releases:
        effect = effects[claims.detail.effect_id, claims.decision.rev]
        found = (claims.detail.args_digest, claims.detail.effect_digest)
        assert found == (effect.args_digest, effect.effect_digest)
    redeemed = {row.effect_id: effects[row.effect_id, row.rev].effect_digest for row in tables.redemptions}
    for receipt in receipts:
        for one in receipt.effects:
            assert redeemed[one.effect_id] == one.effect_digest


def i14_open_ends_are_tasks(tables: Tables) -> None:
    """When every deadline has passed nothing waits, and what only a person can settle is a task."""
    waiting = [row for row in tables.effects if row.state in {"review", "released", "redeemed"}]
    assert not [(row.effect_id, row.state) for row in waiting]
    tasks = {(row.effect_id, row.kind) for row in tables.tasks if row.state == "open"}
    about = {row.effect_id: row.txn for row in tables.effects}
    with_tasks = {about[effect_id] for effect_id, _ in tasks if effect_id is not None}
    for row in tables.effects:
        if row.state in {"unknown", "compensation_failed"}:
            assert (row.effect_id, row.state) in tasks, (row.effect_id, row.state)
    for txn in tables.transactions:
        assert txn.state not in {"review", "ready"}
        if txn.state in {"redeemed", "unsettled"}:
            assert txn.txn in with_tasks, (txn.txn, txn.state)


def i4_at_redemption(
    tables: Tables, claims: list[ReleaseClaims], now: float, epoch: int, who: Mapping[str, object]
) -> None:
    """Unexpired, right epoch, agent, transaction, audience, and nothing of it stopped, at this moment."""
    for claim in claims:
        key = (claim.txn, claim.decision.rev)
        transaction = next(t for t in tables.transactions if (t.txn, t.rev) == key)
        assert claim.exp > now and claim.epoch == epoch
        assert (claim.sub, claim.aud) == (transaction.agent, transaction.aud)
        assert claim.aud == who["party"] and claim.cnf_jkt == who["jkt"]
        assert claim.txn_digest == transaction.txn_digest
        if claim.kind == "effect":
            assert transaction.valid_until is not None and transaction.valid_until.timestamp() > now
            assert not who["stopped"]
