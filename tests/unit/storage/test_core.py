"""Rows as plain values, and their statements, on both engines."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import bindparam, update

from policy_service.storage import core
from policy_service.storage.database import Database
from policy_service.storage.system_tables import MetaRow
from policy_service.storage.tables import AgentRow
from tests.conventions.repository import ROOT
from tests.unit.storage.databases import column

META = core.table(MetaRow)
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
def test_a_row_requires_exactly_its_columns(columns: dict[str, Any]) -> None:
    odd = "nmae" if "nmae" in columns else "enrolled_at"
    with pytest.raises(TypeError, match=f"AgentRow is made of its columns: {odd}$"):
        AgentRow(**columns)


def one(db: Database, name: str = "one") -> Any:
    return db.read_sync(lambda conn: core.find_one(conn, AgentRow, name=name))


def test_what_is_inserted_is_found_as_it_was(store: Database) -> None:
    rows = [agent("one", roles=["a", "b"], owner="iss|sub"), agent("two", owner="iss|sub"), agent("three")]
    for row in rows:
        store.write_sync(lambda tx, row=row: core.insert_row(tx.conn, row))
        row.owner = "changed in memory only"
    found = store.read_sync(lambda conn: core.find(conn, AgentRow, owner="iss|sub"))
    times = {row.name: (row.roles, row.enrolled_at) for row in found}
    assert times == {"one": (["a", "b"], NOW), "two": ([], NOW)}
    assert one(store, "four") is None


# -------------------------------------------------------------------------------------------- statements


def test_a_missing_value_is_an_error_not_null(store: Database) -> None:
    ended = update(META).where(META.c.name == bindparam("asked")).values(value=bindparam("said"))
    with pytest.raises(KeyError, match="said"):
        store.write_sync(lambda tx: core.execute_write(tx.conn, ended, {"asked": "epoch"}))
    values = {"asked": "unknown", "said": "x"}
    assert store.write_sync(lambda tx: core.execute_write(tx.conn, ended, values)) == 0


def test_an_update_returns_the_number_of_matching_rows(store: Database) -> None:
    store.write_sync(lambda tx: core.insert_row(tx.conn, agent("one")))
    store.write_sync(lambda tx: core.update_rows(tx.conn, AgentRow, {"name": "one"}, {"frozen_at": NOW}))
    was, thawed = {"name": "one", "frozen_at": NOW}, {"frozen_at": None, "owner": "x"}
    for reached in (1, 0):  # somebody was first
        assert store.write_sync(lambda tx: core.update_rows(tx.conn, AgentRow, was, thawed)) == reached
    assert (one(store).owner, one(store).frozen_at) == ("x", None)


def test_a_row_is_inserted_unless_its_key_is_taken(store: Database) -> None:
    for owner, inserted in (("first", True), ("second", False)):
        row = agent("one", owner=owner)
        assert store.write_sync(lambda tx, row=row: core.insert_row_or_ignore(tx.conn, row)) is inserted
    assert one(store).owner == "first"


@pytest.mark.parametrize("engine", ["sqlite"])
def test_a_process_that_never_created_a_row_reads_them(store: Database, migrated_url: str) -> None:
    """As `policy-service people` does: it begins with a query."""
    store.write_sync(lambda tx: core.insert_row(tx.conn, agent("one")))
    reads = (
        "import sys; from policy_service.storage.core import find; "
        "from policy_service.storage.database import Database; from policy_service.storage.tables import AgentRow; "
        "db = Database.open(sys.argv[1]); print(db.read_sync(lambda conn: find(conn, AgentRow)[0].name)); db.close()"
    )
    done = subprocess.run([sys.executable, "-c", reads, migrated_url], cwd=ROOT,
                          env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert (done.stdout, done.stderr) == ("one\n", "")


def test_the_first_is_written_and_the_second_yields(store: Database) -> None:
    def put(value: str | None) -> bool:
        row = MetaRow(name="epoch", value=value)
        return store.write_sync(lambda tx: core.insert_row_or_ignore(tx.conn, row))

    with pytest.raises(Exception, match=r"(?i)null"):  # another rule than the key's
        put(None)
    assert (put("1"), put("2")) == (True, False)
    assert column(store, "SELECT value FROM meta") == ["1"]
