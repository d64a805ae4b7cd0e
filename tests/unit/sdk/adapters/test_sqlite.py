"""SQLite ends transactions by itself; nothing of a live tool stands by that, and everybody is told."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from countersign import (
    Abort,
    MisuseError,
    Moved,
    NotStageable,
    Serialize,
    SessionLost,
    tool,
    transaction,
)
from countersign.adapters import LiveCall, SQLiteAdapter
from countersign.adapters.sqlite import SQLiteSession
from tests.fakes.desk import Desk, refund_tool

CALL = LiveCall("exam", {}, "e-1")
TABLES = """
    CREATE TABLE accounts (id TEXT PRIMARY KEY, cents INT);
    CREATE TABLE booked (id TEXT PRIMARY KEY ON CONFLICT ROLLBACK);
    CREATE TABLE guarded (id TEXT);
    CREATE TRIGGER guard BEFORE INSERT ON guarded BEGIN SELECT RAISE(ROLLBACK, 'no'); END;
    INSERT INTO accounts VALUES ('a', 100), ('b', 100);
    INSERT INTO booked VALUES ('o-1');
"""
EVERYTHING = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) INSERT INTO guarded SELECT i FROM n"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "bank.db")) as connection:
        connection.executescript(TABLES)
    return tmp_path / "bank.db"


@pytest.fixture
def adapter(path: Path) -> SQLiteAdapter:
    return SQLiteAdapter(path, busy_seconds=0.1)


@pytest.fixture
def session(adapter: SQLiteAdapter) -> Iterator[SQLiteSession]:
    session = adapter.begin("t-1")
    yield session
    session.undo()


def standing(path: Path) -> list[int]:
    """What everybody else sees of the two accounts."""
    with closing(sqlite3.connect(path)) as connection:
        return [cents for (cents,) in connection.execute("SELECT cents FROM accounts ORDER BY id")]


CREDIT = "UPDATE accounts SET cents = cents + 1 WHERE id = ?"


def credit(connection: sqlite3.Connection, account: str = "a") -> None:
    connection.execute(CREDIT, (account,))


def commit(session: SQLiteSession) -> None:
    session.prepare("a-1")
    session.commit("a-1")


def _interrupted(connection: sqlite3.Connection) -> None:
    connection.execute("DROP TRIGGER guard")
    threading.Timer(0.05, connection.interrupt).start()
    connection.execute(EVERYTHING)


def _full(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA max_page_count = 40")
    connection.execute("PRAGMA cache_size = 5")
    connection.execute("DROP TRIGGER guard")
    connection.execute(EVERYTHING)


ENDS: dict[str, Callable[[sqlite3.Connection], object]] = {
    "INSERT OR ROLLBACK": lambda it: it.execute("INSERT OR ROLLBACK INTO accounts VALUES ('a', 1)"),
    "a schema's ON CONFLICT ROLLBACK": lambda it: it.execute("INSERT INTO booked VALUES ('o-1')"),
    "RAISE(ROLLBACK) in a trigger": lambda it: it.execute("INSERT INTO guarded VALUES ('x')"),
    "an interrupt": _interrupted,
    "a full disk": _full,
    "its connection is closed": lambda it: it.close(),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_an_effect_in_which_sqlite_ended_the_transaction_is_told_and_nothing_runs_after_it(
    adapter: SQLiteAdapter,
    session: SQLiteSession,
    path: Path,
    end: Callable[[sqlite3.Connection], object],
) -> None:
    with session.effect(CALL):
        credit(adapter.connection)
    with pytest.raises(SessionLost, match="Nothing of it stands"), session.effect(CALL):
        end(adapter.connection)
    for refused in (
        lambda: session.effect(CALL).__enter__(),
        session.savepoint,
        session.verify_unmoved,
        session.changes,
        lambda: session.prepare("a-1"),
    ):
        with pytest.raises(SessionLost):
            refused()
    with pytest.raises(sqlite3.Error):
        session.commit("a-1")
    session.undo()
    assert (standing(path), adapter.landed("a-1")) == ([100, 100], False)


def _blob(connection: sqlite3.Connection) -> None:
    with connection.blobopen("accounts", "id", 1) as blob:
        blob.write(b"z")


def _commits(connection: sqlite3.Connection) -> None:
    connection.isolation_level = "DEFERRED"
    credit(connection)
    connection.commit()


WRITES: dict[str, Callable[[sqlite3.Connection], object]] = {
    "a statement that is compiled already": credit,
    "another statement": lambda it: it.execute("UPDATE accounts SET cents = 5"),
    "a savepoint": lambda it: it.execute("SAVEPOINT mine") and it.execute("UPDATE accounts SET cents = 5"),
    "a blob": _blob,
    "a transaction of its own": _commits,
    "a script": lambda it: it.executescript("UPDATE accounts SET cents = 5"),
    "a cursor of its own": lambda it: sqlite3.Cursor(it).execute(CREDIT, ("a",)),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_tool_that_swallows_it_and_goes_on_writes_nothing(
    adapter: SQLiteAdapter,
    session: SQLiteSession,
    path: Path,
    write: Callable[[sqlite3.Connection], object],
) -> None:
    with pytest.raises(SessionLost), session.effect(CALL):
        credit(adapter.connection)
        with suppress(sqlite3.IntegrityError):
            adapter.connection.execute("INSERT INTO booked VALUES ('o-1')")
        with suppress(Exception):
            write(adapter.connection)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT * FROM accounts").fetchall() == [("a", 100), ("b", 100)]


def test_a_tool_inside_another_that_swallows_it_does_not_hide_it(
    adapter: SQLiteAdapter, session: SQLiteSession, path: Path
) -> None:
    with pytest.raises(SessionLost), session.effect(CALL):
        credit(adapter.connection)
        with suppress(SessionLost), session.effect(CALL):
            adapter.connection.execute("INSERT INTO booked VALUES ('o-1')")
    assert standing(path) == [100, 100]


def test_who_interrupts_the_program_is_not_answered_with_another_error(
    adapter: SQLiteAdapter, session: SQLiteSession
) -> None:
    with pytest.raises(KeyboardInterrupt), session.effect(CALL):
        with suppress(sqlite3.IntegrityError):
            adapter.connection.execute("INSERT INTO booked VALUES ('o-1')")
        raise KeyboardInterrupt
    with pytest.raises(SessionLost):
        session.prepare("a-1")


def test_a_block_in_which_it_was_lost_cannot_be_ended(adapter: SQLiteAdapter, session: SQLiteSession) -> None:
    for end in ("release", "rollback"):
        lost = adapter.begin("t-2") if end == "rollback" else session
        block = lost.savepoint()
        with suppress(SessionLost), lost.effect(CALL):
            adapter.connection.execute("INSERT INTO booked VALUES ('o-1')")
        with pytest.raises(SessionLost):
            getattr(block, end)()
        lost.undo()


def test_an_effect_that_could_not_be_taken_back_loses_the_session_with_it(
    adapter: SQLiteAdapter, session: SQLiteSession, path: Path
) -> None:
    """A query timeout: what was half read keeps the interrupt alive, and it meets our own statement."""
    with pytest.raises(SessionLost, match="interrupted"), session.effect(CALL):
        credit(adapter.connection)
        half_read = adapter.connection.execute("SELECT id FROM accounts")
        half_read.fetchone()
        adapter.connection.interrupt()
        raise ZeroDivisionError
    half_read.close()
    with pytest.raises(SessionLost):
        session.prepare("a-1")
    session.undo()
    assert standing(path) == [100, 100]


# ------------------------------------------------------------------------------ what tools may not do to it


@pytest.mark.parametrize(
    "use",
    [
        lambda kept: kept.commit(),
        lambda kept: kept.execute("COMMIT"),
        lambda kept: kept.execute("SELECT 1"),
        credit,
        _blob,
    ],
)
def test_a_connection_that_a_tool_kept_does_nothing_outside_its_effects(
    adapter: SQLiteAdapter,
    session: SQLiteSession,
    path: Path,
    use: Callable[[sqlite3.Connection], object],
) -> None:
    with session.effect(CALL):
        kept = adapter.connection
        credit(kept)
    with pytest.raises(Exception, match=r"not authorized|prohibited|outside"):
        use(kept)
    assert standing(path) == [100, 100]
    commit(session)
    assert standing(path) == [101, 100]


@pytest.mark.parametrize("said", ["journal_mode = OFF", "main.JOURNAL_MODE = 'off'", "journal_mode = DELETE"])
def test_a_tool_cannot_take_away_what_undo_needs(
    adapter: SQLiteAdapter, session: SQLiteSession, said: str
) -> None:
    with session.effect(CALL), pytest.raises(sqlite3.DatabaseError, match="not authorized"):
        adapter.connection.execute(f"PRAGMA {said}")
    with session.effect(CALL):
        (found,) = adapter.connection.execute("PRAGMA journal_mode").fetchone()
    assert found == "delete"


def test_a_tool_cannot_take_the_guard_off(adapter: SQLiteAdapter, session: SQLiteSession, path: Path) -> None:
    with session.effect(CALL):
        for guard in (None, lambda *_: sqlite3.SQLITE_OK):
            with pytest.raises(sqlite3.NotSupportedError):
                adapter.connection.set_authorizer(guard)
        with pytest.raises(sqlite3.NotSupportedError):
            adapter.connection.deserialize(b"")
        credit(adapter.connection)
        with pytest.raises(sqlite3.DatabaseError):
            adapter.connection.commit()
    session.undo()
    assert standing(path) == [100, 100]


@pytest.mark.parametrize(
    "statement",
    ["RELEASE countersign_effect", 'ROLLBACK TO "Countersign_Effect"', "RELEASE countersign_block"],
)
def test_a_tool_cannot_end_the_savepoints_of_its_session(
    adapter: SQLiteAdapter, session: SQLiteSession, path: Path, statement: str
) -> None:
    block = session.savepoint()
    with session.effect(CALL):
        credit(adapter.connection)
        with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
            adapter.connection.execute(statement)
    block.rollback()
    commit(session)
    assert standing(path) == [100, 100]


def test_a_tool_has_savepoints_of_its_own(adapter: SQLiteAdapter, session: SQLiteSession, path: Path) -> None:
    with session.effect(CALL):
        adapter.connection.execute("SAVEPOINT mine")
        credit(adapter.connection)
        adapter.connection.execute("ROLLBACK TO mine")
        credit(adapter.connection, "b")
    commit(session)
    assert standing(path) == [100, 101]


def test_an_undo_that_fails_is_told(adapter: SQLiteAdapter, session: SQLiteSession) -> None:
    with session.effect(CALL):
        half_read = adapter.connection.execute("SELECT id FROM accounts")
        half_read.fetchone()
    session._connection.interrupt()
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        session.undo()
    session.undo()


# --------------------------------------------------------------------------------------- a whole transaction


def crediting(desk: Desk, adapter: SQLiteAdapter) -> Callable[[str], None]:
    @tool("credit", lane="live", adapter=adapter, registry=desk.registry)
    def credit_account(account: str) -> None:
        credit(adapter.connection, account)

    return credit_account


@pytest.mark.parametrize("raises_itself", [False, True])
@pytest.mark.parametrize("dry_run", [False, True])
def test_a_block_that_swallows_it_all_ends_with_the_loss_and_nothing_stands(
    desk: Desk, path: Path, adapter: SQLiteAdapter, raises_itself: bool, dry_run: bool
) -> None:
    refund, credit_account = refund_tool(desk), crediting(desk, adapter)

    @tool("book", lane="live", adapter=adapter, registry=desk.registry)
    def book(order: str) -> None:
        with suppress(sqlite3.IntegrityError):
            adapter.connection.execute("INSERT INTO booked VALUES (?)", (order,))
        credit(adapter.connection)

    with (
        pytest.raises(ZeroDivisionError if raises_itself else SessionLost),
        transaction("t-1", runtime=desk.runtime, dry_run=dry_run),
    ):
        credit_account("a")
        for act, argument in ((book, "o-1"), (credit_account, "b"), (book, "o-2")):
            with pytest.raises(SessionLost):
                act(argument)
        refund("o-1", 100)
        if raises_itself:
            raise ZeroDivisionError
    assert (standing(path), desk.done) == ([100, 100], [])
    with transaction("t-2", runtime=desk.runtime):
        credit_account("b")
    assert standing(path) == [100, 101]


# -------------------------------------------------------------------------------------- one inside the other


@pytest.mark.parametrize("inner_raises", [False, True])
def test_an_outer_effect_is_guarded_and_watched_as_before_once_an_inner_one_has_ended(
    adapter: SQLiteAdapter, session: SQLiteSession, path: Path, inner_raises: bool
) -> None:
    with session.effect(CALL):
        with suppress(ZeroDivisionError), session.effect(CALL):
            credit(adapter.connection)
            if inner_raises:
                raise ZeroDivisionError
        with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
            adapter.connection.commit()
        adapter.connection.execute("DELETE FROM booked")  # a table that nothing touched before
    changes = session.changes()
    assert changes is not None
    told = [one.key for one in changes]
    assert told == (["booked[o-1]"] if inner_raises else ["accounts[a]", "booked[o-1]"])
    session.undo()
    assert standing(path) == [100, 100]


# ------------------------------------------------------------------------------------------ others are at it


@pytest.fixture
def busy(path: Path) -> Iterator[sqlite3.Connection]:
    """Somebody else has the write lock."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


def test_a_database_that_others_keep_locked_is_a_conflict_that_says_for_how_long_it_waited_and_what_to_do(
    adapter: SQLiteAdapter, busy: sqlite3.Connection
) -> None:
    with pytest.raises(Moved, match=r"database is locked.* busy_seconds=0\.1.*Retry") as told:
        adapter.begin("t-1")
    assert (told.value.adapter, told.value.key, told.value.expected, told.value.now) == (
        "bank",
        "",
        None,
        None,
    )
    busy.execute("ROLLBACK")
    adapter.begin("t-1").undo()


@pytest.mark.parametrize("isolation", [Abort(), Serialize(timeout_seconds=30)])
def test_two_blocks_of_one_event_loop_do_not_wait_for_each_other_for_nothing(
    desk: Desk, path: Path, isolation: Abort | Serialize
) -> None:
    """The second kept the loop for all of `busy_seconds`, and so the first, which alone could have let it go on."""
    adapter = SQLiteAdapter(path, name="bank", busy_seconds=3_600)
    credit_account = crediting(desk, adapter)
    entered: list[str] = []

    async def block(key: str) -> None:
        async with transaction(key, isolation=isolation, runtime=desk.runtime):
            credit_account("a")
            entered.append(key)
            await asyncio.sleep(0.05)

    async def both() -> list[BaseException | None]:
        return await asyncio.gather(block("t-1"), block("t-2"), return_exceptions=True)

    first, second = asyncio.run(both())
    assert first is None
    if isinstance(isolation, Serialize):
        assert (second, standing(path)) == (None, [102, 100])
    else:
        assert isinstance(second, Moved) and "another block of this event loop has it" in str(second)
        assert "Serialize" in str(second) and standing(path) == [101, 100]


@pytest.mark.parametrize("end", ["undo", "commit"])
def test_a_session_that_ended_keeps_no_other_of_its_loop_out(adapter: SQLiteAdapter, end: str) -> None:
    async def both() -> None:
        session = adapter.begin("t-1")
        session.prepare("a-1")
        session.undo() if end == "undo" else session.commit("a-1")
        adapter.begin("t-2").undo()

    asyncio.run(both())


def test_workers_of_one_event_loop_wait_for_each_other_as_threads_do(desk: Desk, path: Path) -> None:
    """The loop goes on meanwhile, and one worker may serve both blocks."""
    credit_account = crediting(desk, SQLiteAdapter(path, name="bank", busy_seconds=30))

    async def block(key: str, first: bool) -> None:
        await asyncio.sleep(0 if first else 0.05)
        async with transaction(key, runtime=desk.runtime) as txn:
            with txn.parallel():
                await asyncio.to_thread(credit_account, "a")
            await asyncio.sleep(0.2 if first else 0)

    async def both() -> None:
        await asyncio.gather(block("t-1", True), block("t-2", False))

    asyncio.run(both())
    assert standing(path) == [102, 100]


# ---------------------------------------------------------------------------------------- where the file is


@pytest.mark.parametrize(
    "path", [":memory:", Path(":memory:"), "", Path(), "file::memory:?cache=shared", "file:x"], ids=repr
)
def test_a_database_that_is_no_file_is_refused_where_the_adapter_is_made(path: str | Path) -> None:
    with pytest.raises(MisuseError, match="in memory"):
        SQLiteAdapter(path)


def test_a_file_that_is_not_there_is_refused_and_not_made(tmp_path: Path) -> None:
    missing = SQLiteAdapter(tmp_path / "bnak.db")
    with pytest.raises(NotStageable, match=r"bnak\.db"):
        missing.begin("t-1")
    assert (list(tmp_path.iterdir()), missing.landed("a-1")) == ([], None)


@pytest.mark.parametrize("name", ["a?mode=ro.db", "a#b.db", "a%20b.db", "a b&c=d.db", "ä.db", "file:x"])
def test_a_file_is_found_whatever_it_is_called(path: Path, name: str) -> None:
    adapter = SQLiteAdapter(path.rename(path.parent / name))
    session = adapter.begin("t-1")
    with session.effect(CALL):
        credit(adapter.connection)
    commit(session)
    assert (standing(path.parent / name), adapter.landed("a-1")) == ([101, 100], True)
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


@pytest.fixture
def family(tmp_path: Path) -> SQLiteAdapter:
    with closing(sqlite3.connect(tmp_path / "family.db")) as connection:
        connection.executescript(FAMILY)
    return SQLiteAdapter(tmp_path / "family.db", foreign_keys=True)


KEPT: dict[str, tuple[list[str], bool]] = {
    "a child that goes with its parent": (["DELETE FROM parents WHERE id = 2"], True),
    "a reference that is whole again at the end": (
        ["""INSERT INTO "at ""the"" end" VALUES (2, 9)""", "INSERT INTO parents VALUES (9)"],
        True,
    ),
    "whatever it is where nothing was said": (["DELETE FROM parents"], False),
}


@pytest.mark.parametrize(("statements", "asked"), KEPT.values(), ids=KEPT)
def test_references_that_hold_at_the_end_are_committed(
    family: SQLiteAdapter, tmp_path: Path, statements: list[str], asked: bool
) -> None:
    adapter = family if asked else SQLiteAdapter(tmp_path / "family.db")
    session = adapter.begin("t-1")
    if asked:
        with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"), session.effect(CALL):
            adapter.connection.execute("DELETE FROM parents WHERE id = 1")
    for statement in statements:
        with session.effect(CALL):
            adapter.connection.execute(statement)
    with session.effect(CALL):
        (left,) = adapter.connection.execute("SELECT count(*) FROM gone").fetchone()
    assert left == (0 if "id = 2" in statements[0] else 1)
    commit(session)
    assert adapter.landed("a-1") is True


def test_what_was_broken_before_is_nobodys_fault_where_nothing_waits_for_the_commit(
    family: SQLiteAdapter, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "family.db", isolation_level=None)) as connection:
        connection.execute("INSERT INTO now VALUES (7, 77)")
        connection.execute("""INSERT INTO "at ""the"" end" VALUES (7, 77)""")
    session = family.begin("t-1")
    with session.effect(CALL):
        family.connection.execute("INSERT INTO now VALUES (2, 4)")
    commit(session)
    assert family.landed("a-1") is True


BREAKS = {
    "a child without a parent": ["""INSERT INTO "at ""the"" end" VALUES (2, 99)"""],
    "a parent that goes": ["DELETE FROM parents WHERE id = 3"],
    "a parent that is another": ["UPDATE parents SET id = 33 WHERE id = 3"],
    "the table of parents": ["DROP TABLE now", "DROP TABLE gone", "DROP TABLE parents"],
    "a parent that goes and takes another name": [
        "DELETE FROM parents WHERE id = 3",
        "ALTER TABLE parents RENAME TO old_parents",
    ],
    "what a tool has put off itself": [
        "PRAGMA Defer_Foreign_Keys = ON",
        "DELETE FROM parents WHERE id = 1",
    ],
    "a parent that a trigger takes": [
        "CREATE TEMP TRIGGER taking AFTER INSERT ON parents BEGIN DELETE FROM parents WHERE id = 3; END",
        "INSERT INTO parents VALUES (33)",
    ],
}


@pytest.mark.parametrize("broken", BREAKS.values(), ids=BREAKS)
def test_a_reference_that_the_commit_would_refuse_is_refused_before_it(
    family: SQLiteAdapter, broken: list[str]
) -> None:
    session = family.begin("t-1")
    with session.effect(CALL):
        for statement in broken:
            family.connection.execute(statement)
        family.connection.row_factory, family.connection.text_factory = sqlite3.Row, bytes
    for ends in (session.changes, lambda: session.prepare("a-1")):
        with pytest.raises(sqlite3.IntegrityError, match=r"(?i)FOREIGN KEY constraint failed: .*parents"):
            ends()
    with pytest.raises(sqlite3.IntegrityError):  # as SQLite itself says
        session._connection.say("COMMIT")
    session.undo()
    assert family.landed("a-1") is False


@pytest.mark.parametrize("statement", ["PRAGMA foreign_keys = ON", "pragma main.Foreign_Keys(0)"])
@pytest.mark.parametrize("inside", [False, True])
def test_a_tool_that_would_switch_them_in_the_middle_is_told_how(
    adapter: SQLiteAdapter, session: SQLiteSession, path: Path, statement: str, inside: bool
) -> None:
    with (
        pytest.raises(MisuseError, match=r"SQLiteAdapter\(\.\.\., foreign_keys=True\)"),
        session.effect(CALL),
    ):
        credit(adapter.connection)
        with session.effect(CALL) if inside else suppress(ZeroDivisionError):
            adapter.connection.execute(statement)
    with session.effect(CALL):
        assert adapter.connection.execute("PRAGMA foreign_keys").fetchall() == [(0,)]
    commit(session)
    assert standing(path) == [100, 100]


def test_another_error_after_that_is_told_as_it_is(adapter: SQLiteAdapter, session: SQLiteSession) -> None:
    with pytest.raises(ZeroDivisionError), session.effect(CALL):
        with suppress(sqlite3.DatabaseError):
            adapter.connection.execute("PRAGMA foreign_keys = ON")
        raise ZeroDivisionError
    with pytest.raises(sqlite3.OperationalError, match="nowhere"), session.effect(CALL):
        adapter.connection.execute("SELECT * FROM nowhere")
