"""An insert that yields to what is there says so, on both engines."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from policy_service.storage.core import insert_unless_there, table
from policy_service.storage.database import Database, Tx
from policy_service.storage.tables import MetaRow

META = table(MetaRow)


def put(value: str):  # type: ignore[no-untyped-def]
    def unit(tx: Tx) -> int:
        statement = insert_unless_there(tx.conn, META).values(name="epoch", value=value)
        return int(tx.conn.execute(statement).rowcount)

    return unit


def test_the_first_is_written_and_the_second_yields(store: Database) -> None:
    assert store.write_sync(put("1")) == 1
    assert store.write_sync(put("2")) == 0
    assert store.read_sync(lambda conn: conn.execute(select(META.c.value)).scalar_one()) == "1"


@pytest.mark.anyio
async def test_a_broken_rule_other_than_the_key_is_still_an_error(store: Database) -> None:
    with pytest.raises(Exception, match=r"(?i)null"):
        await store.write(put(None))  # type: ignore[arg-type]
