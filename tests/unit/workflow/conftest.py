"""A database with one transaction of two effects in it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from countersign.contract import canonicalize
from policy_service.domain.gates import Gate
from policy_service.identity.agents import enroll
from policy_service.storage.alone import alone_with
from policy_service.storage.database import Database, Tx
from policy_service.storage.tables import DecisionRow, EffectRow, ReviewRow, TransactionRow
from policy_service.workflow.moves import insert
from tests.unit.storage.databases import database_url, migrated_file, migrated_url, store

__all__ = ["database_url", "engine", "migrated_file", "migrated_url", "store"]

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
TXN = "0" * 64


@pytest.fixture
def engine() -> str:
    """The one engine of this release."""
    return "sqlite"


def effect(n: int, **changes: object) -> EffectRow:
    """An effect that waits for finance."""
    row = EffectRow(
        effect_id=f"{n}" * 64,
        rev=1,
        txn=TXN,
        seq=n,
        agent="robot",
        tool="pay",
        tool_digest="d" * 64,
        resource_type="Account",
        resource_id="acme",
        resource_key="b" * 64,
        args=canonicalize({"amount": 500}),
        args_digest="a" * 64,
        effect_digest=f"{n}" * 64,
        call_key=f"{n}" * 64,
        state="review",
        decision_id=f"dec_{n}",
        gates=[Gate("large", frozenset({"finance"})).to_json()],
        valid_for_s=3600,
        asked_at=NOW,
        changed_at=NOW,
    )
    for name, value in changes.items():
        setattr(row, name, value)
    return row


@pytest.fixture
def written(store: Database) -> Database:
    """The transaction, in review, with its open reviews."""

    def write(tx: Tx) -> None:
        enroll(tx, "robot")
        tx = alone_with(tx, TXN)
        insert(
            tx,
            TransactionRow(
                txn=TXN, rev=1, agent="robot", run_key="r", state="review", txn_digest="e" * 64, aud="robot",
                submitted_at=NOW,
            ),
        )  # fmt: skip
        for n in (1, 2):
            insert(tx, effect(n))
            insert(
                tx,
                ReviewRow(
                    review_id=f"rev_{n}", effect_id=f"{n}" * 64, rev=1, txn=TXN, agent="robot", tool="pay",
                    risk="low", state="open", opened_at=NOW, answer_by=NOW,
                ),
            )  # fmt: skip
            insert(
                tx,
                DecisionRow(
                    decision_id=f"dec_{n}", effect_id=f"{n}" * 64, rev=1, outcome="review", cause="submit",
                    policies=[], gates=["large"], reasons=[], unseen=[], bundle="b", commit="c", decided_at=NOW,
                ),
            )  # fmt: skip

    store.write_sync(write)
    return store
