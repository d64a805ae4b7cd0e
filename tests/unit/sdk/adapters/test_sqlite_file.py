"""A SQLite file: where it is, who else has it, what has landed in it, and the references it keeps."""

import asyncio
import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from countersign import IsolationConflict, MisuseError, SQLiteAdapter, tool
from tests.fakes.desk import Desk
from tests.unit.sdk.adapters.bank import Bank, balances, commit, credit
from tests.unit.sdk.adapters.rows import CALL

# ------------------------------------------------------------------------------------------ others are at it


@pytest.mark.parametrize("ours", [False, True])
def test_a_locked_database_is_a_conflict(adapter: SQLiteAdapter, path: Path, ours: bool) -> None:
    """By somebody else, or by a session of ours that is in no event loop."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        session = adapter.begin("t-0") if ours else None
        if not ours:
            other.execute("BEGIN IMMEDIATE")
        locked = r"database is locked.* busy_seconds=0\.1.*Retry"
        with pytest.raises(IsolationConflict, match=locked) as raised:
            adapter.begin("t-1")
        moved = raised.value
        assert (moved.adapter, moved.key, moved.expected, moved.now) == ("bank", "", None, None)
        if session is not None:
            session.undo()
    adapter.begin("t-1").undo()


def test_two_blocks_of_one_loop_do_not_block_it(desk: Desk, path: Path) -> None:
    """The second kept the loop for all of `busy_seconds`, and so the first, which alone could have let it go on."""
    adapter = SQLiteAdapter(path, name="bank", busy_seconds=3_600)

    @tool("credit", lane="live", adapter=adapter, registry=desk.registry)
    def credit_account() -> None:
        credit(adapter.connection)

    async def block(key: str) -> None:
        async with desk.step(key):
            credit_account()
            await asyncio.sleep(0.05)

    async def both() -> list[BaseException | None]:
        return await asyncio.gather(block("t-1"), block("t-2"), return_exceptions=True)

    first, second = asyncio.run(both())
    assert first is None and isinstance(second, IsolationConflict) and balances(path) == [101, 100]
    assert "another block of this event loop has it" in str(second) and "Serialize" in str(second)


@pytest.mark.parametrize("end", ["undo", "commit"])
def test_a_session_that_ended_keeps_no_other_of_its_loop_out(adapter: SQLiteAdapter, end: str) -> None:
    async def both() -> None:
        session = adapter.begin("t-1")
        session.prepare("a-1")
        session.undo() if end == "undo" else session.commit("a-1")
        adapter.begin("t-2").undo()

    asyncio.run(both())


# ----------------------------------------------------------------------------------------- what has landed


@pytest.mark.parametrize("prepared", [True, False])
def test_landed_reports_what_is_known_during_a_commit(adapter, path: Path, prepared: bool) -> None:
    """A session of ours keeps others out; while another process has the lock, a missing mark proves nothing."""
    another_process = SQLiteAdapter(path, busy_seconds=0.05)
    assert adapter.landed("a-1") is False
    commit(adapter.begin("t-0"))
    session = adapter.begin("t-1")
    if prepared:
        session.prepare("a-2")
    assert (another_process.landed("a-1"), another_process.landed("a-2")) == (True, None)
    assert (adapter.landed("a-1"), adapter.landed("a-3")) == (True, False)
    assert adapter.landed("a-2") is (None if prepared else False)
    session.undo()
    assert (adapter.landed("a-2"), another_process.landed("a-2")) == (False, False)


def test_a_fork_has_nothing_of_a_copied_session(bank: Bank) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0 if bank.adapter.landed("a-1") is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_read_only_file_shows_only_existing_marks(adapter: SQLiteAdapter, path: Path) -> None:
    commit(adapter.begin("t-0"))
    adapter._uri = lambda mode: f"{path.resolve().as_uri()}?mode=ro"  # type: ignore[method-assign]
    assert (adapter.landed("a-1"), adapter.landed("a-2")) == (True, None)


# ---------------------------------------------------------------------------------------- where the file is

NO_FILES = [":memory:", Path(":memory:"), "", Path(), "file::memory:?cache=shared", "file:x"]


@pytest.mark.parametrize("named", NO_FILES, ids=repr)
def test_a_database_that_is_no_file_is_refused_where_the_adapter_is_made(named: str | Path) -> None:
    with pytest.raises(MisuseError, match="in memory"):
        SQLiteAdapter(named)


@pytest.mark.parametrize("name", ["a?mode=ro.db", "a#b.db", "a%20b.db", "a b&c=d.db", "ä.db", "file:x"])
def test_a_file_with_any_name_is_found(path: Path, name: str) -> None:
    adapter = SQLiteAdapter(path.rename(path.parent / name))
    session = adapter.begin("t-1")
    with session.effect(CALL):
        credit(adapter.connection)
    commit(session)
    assert (balances(path.parent / name), adapter.landed("a-1")) == ([101, 100], True)
    assert [one.name for one in path.parent.iterdir()] == [name]


# --------------------------------------------------------------------------------------------- foreign keys

FAMILY = """
    CREATE TABLE parents (id INTEGER PRIMARY KEY);
    CREATE TABLE now (id INTEGER PRIMARY KEY, parent INT REFERENCES parents (id));
    CREATE TABLE gone (id INTEGER PRIMARY KEY, parent INT REFERENCES parents (id) ON DELETE CASCADE);
    CREATE TABLE "at ""the"" end" (
        id INTEGER PRIMARY KEY, parent INT REFERENCES PARENTS (id) DEFERRABLE INITIALLY /**/ Deferred
    );
    INSERT INTO parents VALUES (1), (2), (3), (4);
    INSERT INTO now VALUES (1, 1);
    INSERT INTO gone VALUES (1, 2);
    INSERT INTO "at ""the"" end" VALUES (1, 3);
"""
AT_THE_END = 'INSERT INTO "at ""the"" end" VALUES'


@pytest.fixture
def family(tmp_path) -> SQLiteAdapter:
    with closing(sqlite3.connect(tmp_path / "family.db")) as connection:
        connection.executescript(FAMILY)
    return SQLiteAdapter(tmp_path / "family.db", foreign_keys=True)


KEPT: dict[str, tuple[list[str], bool, int]] = {
    "a child that goes with its parent": (["DELETE FROM parents WHERE id = 2"], True, 0),
    "one that is whole at the end": ([f"{AT_THE_END} (2, 9)", "INSERT INTO parents VALUES (9)"], True, 1),
    "without foreign_keys anything": (["DELETE FROM parents"], False, 1),
}


@pytest.mark.parametrize(("statements", "asked", "left"), KEPT.values(), ids=KEPT)
def test_sound_references_stay(family, tmp_path, statements, asked: bool, left: int) -> None:
    adapter = family if asked else SQLiteAdapter(tmp_path / "family.db")
    session = adapter.begin("t-1")
    if asked:
        with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"), session.effect(CALL):
            adapter.connection.execute("DELETE FROM parents WHERE id = 1")
    for statement in statements:
        with session.effect(CALL):
            adapter.connection.execute(statement)
    with session.effect(CALL):
        assert adapter.connection.execute("SELECT count(*) FROM gone").fetchone() == (left,)
    commit(session)
    assert adapter.landed("a-1") is True


def test_references_broken_before_are_ignored(family: SQLiteAdapter, tmp_path) -> None:
    with closing(sqlite3.connect(tmp_path / "family.db", isolation_level=None)) as connection:
        connection.execute("INSERT INTO now VALUES (7, 77)")
        connection.execute(f"{AT_THE_END} (7, 77)")
    session = family.begin("t-1")
    with session.effect(CALL):
        family.connection.execute("INSERT INTO now VALUES (2, 4)")
    commit(session)
    assert family.landed("a-1") is True


TAKING = "CREATE TEMP TRIGGER taking AFTER INSERT ON parents BEGIN DELETE FROM parents WHERE id = 3; END"
GOES = "DELETE FROM parents WHERE id = 3"
BREAKS = {
    "a child without a parent": [f"{AT_THE_END} (2, 99)"],
    "a parent that goes": [GOES],
    "a parent that is another": ["UPDATE parents SET id = 33 WHERE id = 3"],
    "the table of parents": ["DROP TABLE now", "DROP TABLE gone", "DROP TABLE parents"],
    "a parent that goes and takes another name": [GOES, "ALTER TABLE parents RENAME TO old_parents"],
    "what a tool has put off itself": ["PRAGMA Defer_Foreign_Keys = ON", "DELETE FROM parents WHERE id = 1"],
    "a parent that a trigger takes": [TAKING, "INSERT INTO parents VALUES (33)"],
}


@pytest.mark.parametrize("broken", BREAKS.values(), ids=BREAKS)
def test_a_reference_the_commit_would_refuse_is_refused(family: SQLiteAdapter, broken: list[str]) -> None:
    session = family.begin("t-1")
    with session.effect(CALL):
        for statement in broken:
            family.connection.execute(statement)
        family.connection.row_factory, family.connection.text_factory = sqlite3.Row, bytes
    for ends in (session.changes, lambda: session.prepare("a-1")):
        with pytest.raises(sqlite3.IntegrityError, match=r"(?i)FOREIGN KEY constraint failed: .*parents"):
            ends()
    with pytest.raises(sqlite3.IntegrityError):  # as SQLite itself says
        session._connection.run_internal("COMMIT")
    session.undo()
    assert family.landed("a-1") is False


@pytest.mark.parametrize("statement", ["PRAGMA foreign_keys = ON", "pragma main.Foreign_Keys(0)"])
@pytest.mark.parametrize("inside", [False, True])
def test_switching_foreign_keys_in_a_transaction_is_refused(bank: Bank, statement: str, inside: bool) -> None:
    advice = r"SQLiteAdapter\(\.\.\., foreign_keys=True\)"
    with pytest.raises(MisuseError, match=advice), bank.effect():
        credit(bank.connection)
        with bank.effect() if inside else suppress(ZeroDivisionError):
            bank.connection.execute(statement)
    with bank.effect():
        assert bank.connection.execute("PRAGMA foreign_keys").fetchall() == [(0,)]
    bank.commit()
    assert bank.balances() == [100, 100]


def test_a_later_error_is_reported_unchanged(bank: Bank) -> None:
    with pytest.raises(ZeroDivisionError), bank.effect():
        with suppress(sqlite3.DatabaseError):
            bank.connection.execute("PRAGMA foreign_keys = ON")
        raise ZeroDivisionError
    with pytest.raises(sqlite3.OperationalError, match="nowhere"), bank.effect():
        bank.connection.execute("SELECT * FROM nowhere")
