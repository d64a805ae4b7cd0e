"""Rows as plain values, and the statements that carry them, on both engines."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import bindparam, select, update

from policy_service.storage.core import (
    change,
    find,
    find_one,
    insert_row,
    insert_unless_taken,
    insert_unless_there,
    table,
    write,
)
from policy_service.storage.database import Database, Tx
from policy_service.storage.migrations import migrate
from policy_service.storage.plumbing import MetaRow
from policy_service.storage.tables import AgentRow
from tests.house.repository import ROOT

META = table(MetaRow)
NOW = datetime(2026, 11, 21, 22, 0, 0, 123456, tzinfo=UTC)


def agent(name: str, **columns: Any) -> AgentRow:
    return AgentRow(name=name, enrolled_at=NOW, **columns)


# -------------------------------------------------------------------------------------------------- rows


def test_a_row_has_its_defaults_and_shares_none_of_them() -> None:
    one, other = agent("one"), agent("other")
    assert (one.owner, one.roles, one.frozen_at) == (None, [], None)
    one.roles.append("support")
    assert other.roles == []


@pytest.mark.parametrize("columns", [{"name": "no time"}, {"name": "a", "enrolled_at": NOW, "nmae": "b"}])
def test_a_row_is_made_of_all_its_columns_and_no_other(columns: dict[str, Any]) -> None:
    odd = "nmae" if "nmae" in columns else "enrolled_at"
    with pytest.raises(TypeError, match=f"AgentRow is made of its columns: {odd}$"):
        AgentRow(**columns)


def test_changing_a_row_changes_memory_only(store: Database) -> None:
    row = agent("one")
    store.write_sync(lambda tx: insert_row(tx.conn, row))
    row.owner = "iss|sub"
    assert row.owner == "iss|sub"
    found = store.read_sync(lambda conn: find_one(conn, AgentRow, name="one"))
    assert found is not None and found.owner is None


# -------------------------------------------------------------------------------------------- statements


def test_what_is_inserted_is_found_as_it_was(store: Database) -> None:
    rows = [agent("one", roles=["a", "b"], owner="iss|sub"), agent("two", owner="iss|sub"), agent("three")]
    for row in rows:
        store.write_sync(lambda tx, row=row: insert_row(tx.conn, row))
    found = store.read_sync(lambda conn: find(conn, AgentRow, owner="iss|sub"))
    assert {row.name: (row.roles, row.enrolled_at) for row in found} == {
        "one": (["a", "b"], NOW),
        "two": ([], NOW),
    }
    assert store.read_sync(lambda conn: find_one(conn, AgentRow, name="four")) is None


def test_a_statement_sent_without_one_of_its_values_is_an_error_and_no_null(store: Database) -> None:
    ended = update(META).where(META.c.name == bindparam("asked")).values(value=bindparam("said"))

    def end(tx: Tx, **values: str) -> int:
        return write(tx.conn, ended, values)

    with pytest.raises(KeyError, match="said"):
        store.write_sync(lambda tx: end(tx, asked="epoch"))
    assert store.write_sync(lambda tx: end(tx, asked="nobody", said="x")) == 0


def test_a_change_reaches_the_rows_that_are_as_they_were_and_says_how_many(store: Database) -> None:
    store.write_sync(lambda tx: insert_row(tx.conn, agent("one")))

    def thaw(was: datetime | None) -> int:
        where = {"name": "one", "frozen_at": was}
        return store.write_sync(
            lambda tx: change(tx.conn, AgentRow, where, {"frozen_at": None, "owner": "x"})
        )

    store.write_sync(lambda tx: change(tx.conn, AgentRow, {"name": "one"}, {"frozen_at": NOW}))
    assert thaw(NOW) == 1
    assert thaw(NOW) == 0  # somebody was first
    found = store.read_sync(lambda conn: find_one(conn, AgentRow, name="one"))
    assert found is not None and (found.owner, found.frozen_at) == ("x", None)


def test_a_row_is_inserted_unless_its_key_is_taken(store: Database) -> None:
    unit = lambda owner: lambda tx: insert_unless_taken(tx.conn, agent("one", owner=owner))  # noqa: E731
    assert store.write_sync(unit("first")) is True
    assert store.write_sync(unit("second")) is False
    found = store.read_sync(lambda conn: find_one(conn, AgentRow, name="one"))
    assert found is not None and found.owner == "first"


def test_a_process_that_never_made_a_row_reads_them(sqlite_url: str) -> None:
    """As `policy-service people` does: it begins with a query."""
    migrate(sqlite_url)
    with Database.open(sqlite_url) as db:
        db.write_sync(lambda tx: insert_row(tx.conn, agent("one")))
    reads = (
        "import sys; from policy_service.storage.core import find; "
        "from policy_service.storage.database import Database; from policy_service.storage.tables import AgentRow; "
        "db = Database.open(sys.argv[1]); print(db.read_sync(lambda conn: find(conn, AgentRow)[0].name)); db.close()"
    )
    done = subprocess.run([sys.executable, "-c", reads, sqlite_url], cwd=ROOT,
                          env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert (done.stdout, done.stderr) == ("one\n", "")


# ------------------------------------------------------------------------------- an insert that yields


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
