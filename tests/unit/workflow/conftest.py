"""A database with one transaction of two effects in it."""

from datetime import UTC, datetime

import pytest

from countersign.contract import canonicalize
from policy_service.domain.gates import Gate
from policy_service.identity.agents import enroll
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.database import Database, Tx
from policy_service.storage.tables import DecisionRow, EffectRow, ReviewRow, TransactionRow
from policy_service.workflow.transitions import insert
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
    ids: dict[str, object] = {"effect_id": f"{n}" * 64, "effect_digest": f"{n}" * 64, "call_key": f"{n}" * 64}
    ids |= {"tool_digest": "d" * 64, "resource_key": "b" * 64, "args_digest": "a" * 64}
    ids["decision_id"] = f"dec_{n}"
    about = {"agent": "robot", "tool": "pay", "resource_type": "Account", "resource_id": "acme"}
    asked = {"state": "review", "valid_for_s": 3600, "asked_at": NOW, "changed_at": NOW}
    gates = [Gate("large", frozenset({"finance"})).to_json()]
    row = {"txn": TXN, "rev": 1, "seq": n, "args": canonicalize({"amount": 500}), "gates": gates}
    return EffectRow(**row | ids | about | asked | changes)


@pytest.fixture
def written(store: Database) -> Database:
    """The transaction, in review, with its open reviews."""

    def write(tx: Tx) -> None:
        enroll(tx, "robot")
        tx = lock_transaction(tx, TXN)
        of = {"txn": TXN, "rev": 1, "agent": "robot"}
        sent = {"run_key": "r", "state": "review", "txn_digest": "e" * 64, "aud": "a", "submitted_at": NOW}
        asked = {"tool": "pay", "risk": "low", "state": "open", "opened_at": NOW, "answer_by": NOW}
        decided = {"outcome": "review", "cause": "submit", "bundle": "b", "commit": "c", "decided_at": NOW}
        lists: dict[str, list[str]] = {"policies": [], "gates": ["large"], "reasons": [], "unseen": []}
        insert(tx, TransactionRow(**of | sent))
        for n in (1, 2):
            about = {"effect_id": f"{n}" * 64, "rev": 1}
            insert(tx, effect(n))
            insert(tx, ReviewRow(review_id=f"rev_{n}", **of | about | asked))
            insert(tx, DecisionRow(decision_id=f"dec_{n}", **about | decided | lists))

    store.write_sync(write)
    return store
