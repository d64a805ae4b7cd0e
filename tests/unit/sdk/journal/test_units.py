"""What the journal's commits cost and keep: which wait for the disk, and that a unit is all or nothing."""

import sqlite3
from contextlib import suppress
from typing import ClassVar

import pytest

from countersign import JournalError, MisuseError, llm_call
from countersign.journal import Journal
from countersign.journal.database import Database
from countersign.journal.sqlite import SQLiteConnection
from tests.fakes.desk import Desk
from tests.fakes.llm_answers import OPENAI_CHAT
from tests.fakes.running import run
from tests.unit.sdk.journals import POSTGRES


@pytest.fixture
def database(place):
    opened = Journal(place).database
    yield opened
    opened.close()


def write(database: Database, name: str, *, durable: bool = False) -> None:
    with database.unit(durable=durable) as unit:
        unit.execute("INSERT INTO meta (name, value) VALUES (?, 'x')", (name,))


def names(database: Database) -> list[str]:
    return [row["name"] for row in database.rows("SELECT name FROM meta ORDER BY name")]


def commits(database: Database) -> list[str]:
    """What is written down, from here on, of every commit: whether it waits for the disk."""
    found: list[str] = []
    level = [""]

    def trace(statement: str) -> None:
        if statement.startswith("PRAGMA synchronous="):
            level[0] = statement.partition("=")[2]
        elif statement == "COMMIT":
            found.append(level[0])

    with database.unit(durable=True) as unit:
        unit.set_trace_callback(trace)
        level[0] = "FULL"
    found.clear()
    return found


@pytest.mark.parametrize("engine", ["sqlite", POSTGRES])
def test_a_unit_inside_a_unit_is_part_of_it_also_where_it_raises(database: Database) -> None:
    with pytest.raises(RuntimeError), database.unit(durable=False):
        write(database, "a")
        raise RuntimeError
    assert names(database) == []
    with database.unit(durable=False):
        write(database, "a")
        write(database, "b")
    assert names(database) == ["a", "b"]


@pytest.mark.parametrize("engine", ["sqlite", POSTGRES])
def test_a_failed_part_rolls_back_the_whole_unit_even_if_caught(database: Database) -> None:
    with pytest.raises(JournalError, match="a part"), database.unit(durable=False) as unit:
        write(database, "a")
        with suppress(RuntimeError), database.unit(durable=False):
            write(database, "b")
            raise RuntimeError
        unit.execute("INSERT INTO meta (name, value) VALUES ('c', 'x')")
    assert names(database) == []
    write(database, "d")
    assert names(database) == ["d"]


@pytest.mark.parametrize("engine", ["sqlite", POSTGRES])
def test_a_durable_part_needs_a_durable_whole(database: Database) -> None:
    with pytest.raises(MisuseError, match="durable"), database.unit(durable=False):
        write(database, "a", durable=True)
    with database.unit(durable=True):
        write(database, "b", durable=True)
        write(database, "c")
    assert names(database) == ["b", "c"]


def test_each_commit_is_as_durable_as_it_was_asked_to_be(database: Database) -> None:
    found = commits(database)
    for durable in (False, True, True, False, True):
        with database.unit(durable=durable):  # a unit inside it is no commit of its own
            write(database, str(len(found)), durable=durable)
    assert found == ["NORMAL", "FULL", "FULL", "NORMAL", "FULL"]
    database.close()
    write(database, "after", durable=True)
    assert database.rows("PRAGMA synchronous")[0][0] == 2


@pytest.mark.parametrize(("effects", "waits", "commits_in_all"), [(1, 3, 10), (2, 4, 14)])
def test_an_effect_syncs_three_times(
    desk: Desk, refund, effects: int, waits: int, commits_in_all: int
) -> None:
    """The frozen list with its attempt, FIRING, the outcome. Each is asked for by design section 7, and a fourth
    would only be slow; two effects share the commit between them. The first transaction of all also keeps the epoch
    it met.
    """
    for key in ("t-0", "t-1"):
        found = commits(desk.runtime.journal.database)
        run(desk, *((refund, f"p-{n}", 5) for n in range(effects)), key=key)
    assert found.count("FULL") == waits and len(found) <= commits_in_all


class Raced(SQLiteConnection):
    """What SQLite answers, at once and now and then, while another process switches the same new file to WAL."""

    codes: ClassVar[list[int]] = []

    def execute(self, sql: str, *parameters) -> sqlite3.Cursor:
        if "journal_mode" in sql and self.codes:
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = self.codes.pop()
            raise error
        return super().execute(sql, *parameters)


CODES = [([sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY_RECOVERY], True), ([sqlite3.SQLITE_IOERR], False)]


@pytest.mark.parametrize(("codes", "opens"), CODES, ids=["busy", "broken"])
def test_a_new_journal_waits_for_another_open(tmp_path, monkeypatch, codes: list[int], opens: bool) -> None:
    monkeypatch.setattr("countersign.journal.sqlite.SQLiteConnection", Raced)
    monkeypatch.setattr(Raced, "codes", codes)
    journal = Journal(tmp_path / "journal.db")
    if opens:
        assert journal.transactions.newest_ids(1) == []
        assert journal.database.rows("PRAGMA journal_mode")[0][0] == "wal"
    else:
        with pytest.raises(JournalError, match="cannot be used"):
            journal.transactions.newest_ids(1)
    assert codes == []
    journal.close()


def test_a_call_to_a_model_waits_for_the_disk_before_and_after_it(desk: Desk) -> None:
    """What it may spend, and what it did, is known after the power fails."""
    found = commits(desk.runtime.journal.database)
    with llm_call("example-small", runtime=desk.runtime) as call:
        assert found == ["FULL"]
        call.record(OPENAI_CHAT)
    assert found == ["FULL", "FULL"]
