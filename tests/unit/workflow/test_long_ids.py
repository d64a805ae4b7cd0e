"""A resource id may be longer than a PostgreSQL index entry."""

import secrets

import pytest

from countersign.contract import EffectState
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.database import Database, Tx
from policy_service.workflow.transitions import insert
from tests.unit.storage.databases import BOTH, migrated_template, postgres_server
from tests.unit.workflow.conftest import TXN, effect

__all__ = ["migrated_template", "postgres_server"]


@pytest.mark.parametrize("engine", BOTH)
def test_an_effect_of_a_long_resource_is_stored_in_each_state(store: Database) -> None:
    def write(tx: Tx) -> None:
        for n, state in enumerate(EffectState):
            row = effect(n, state=state.value, resource_id=secrets.token_hex(8_000), effect_id=f"{n:064}")
            insert(lock_transaction(tx, TXN), row)

    store.write_sync(write)
