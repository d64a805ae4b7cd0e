"""PostgreSQL passes the exam, keeps its transaction from its tools, and says what became of a lost COMMIT."""

from __future__ import annotations

import builtins
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from countersign import (
    MisuseError,
    Moved,
    SessionLost,
    SettingsError,
    tool,
    transaction,
)
from countersign.adapters import LiveCall
from countersign.adapters.contract import AdapterContract, Resource
from countersign.adapters.postgres import _TABLE, PostgresAdapter, PostgresSession
from tests.fakes.desk import Desk
from tests.unit.sdk.adapters.resources import PostgresRows

pytestmark = pytest.mark.xdist_group("postgresql")
CALL = LiveCall("exam", {}, "e-1")


class TestPostgres(AdapterContract):
    @pytest.fixture(autouse=True)
    def _server(self, conninfo: str) -> None:
        self._conninfo = conninfo

    def resource(self, folder: Path) -> Resource:
        return PostgresRows(self._conninfo)


def test_scenario_56_a_dry_run_leaves_postgresql_as_it_was(rows: PostgresRows, desk: Desk) -> None:
    """Rows and tables; the adapter's own empty table of attempts is there as after any first use."""
    adapter = rows.adapter()

    @tool("upsert", lane="live", adapter=adapter, registry=desk.registry)
    def upsert(key: str, value: str) -> str | None:
        rows.write(adapter, key, value)
        return rows.read(adapter, key)

    @tool("make_table", lane="live", adapter=adapter, registry=desk.registry)
    def make_table() -> None:
        adapter.execute("CREATE TABLE made (n int)")

    assert rows.change_outside("a", "before")
    with transaction("t-1", dry_run=True, runtime=desk.runtime) as txn:
        assert upsert("a", "after") == "after"
        upsert("b", "new")
        make_table()
    assert (rows.outside("a"), rows.outside("b")) == ("before", None)
    assert rows.tables() == ["countersign_landed", "rows"]
    assert [one.changes for one in txn.result.changes] == [None]


@pytest.fixture
def begun(rows: PostgresRows) -> Iterator[tuple[PostgresAdapter, PostgresSession]]:
    adapter = rows.adapter()
    session = adapter.begin("t-1")
    yield adapter, session
    session.undo()


ENDINGS = (
    "COMMIT|commit| ;; COMMIT|-- so\nCOMMIT|-- so\rCOMMIT|-- so\r\nCOMMIT AND CHAIN|--\r--\r\n/**/ROLLBACK AND CHAIN"
    "|/* a /* b */ */ End|ROLLBACK|ABORT|BEGIN|START TRANSACTION|SAVEPOINT x|RELEASE countersign_effect"
    "|PREPARE TRANSACTION 'x'|/**/;/**/end|SELECT 1; COMMIT|DO $$ BEGIN COMMIT; END $$"
).split("|")


@pytest.mark.parametrize("statement", ENDINGS)
def test_a_tool_may_not_end_the_transaction_it_runs_in(
    begun: tuple[PostgresAdapter, PostgresSession], rows: PostgresRows, statement: str
) -> None:
    adapter, session = begun
    with pytest.raises((MisuseError, psycopg.Error)), session.effect(CALL):
        rows.write(adapter, "k", "sly")
        adapter.execute(statement)
    assert rows.outside("k") is None
    with session.effect(CALL):
        assert rows.read(adapter, "k") is None


RESULT_OF_A_TOOL = {"fetchone", "fetchmany", "fetchall", "rowcount", "description", "statusmessage"}


def test_what_a_statement_returns_can_be_read_and_nothing_else(
    begun: tuple[PostgresAdapter, PostgresSession], rows: PostgresRows
) -> None:
    adapter, session = begun
    with session.effect(CALL):
        rows.write(adapter, "a", "1")
        rows.write(adapter, "b", "2")
        found = adapter.execute("SELECT key, value FROM rows ORDER BY key")
    assert {name for name in dir(found) if not name.startswith("_")} == RESULT_OF_A_TOOL
    assert (found.rowcount, found.statusmessage) == (2, "SELECT 2")
    assert found.description is not None and [one.name for one in found.description] == ["key", "value"]
    assert (found.fetchone(), found.fetchmany(1), found.fetchone()) == (("a", "1"), [("b", "2")], None)
    with session.effect(CALL):
        assert list(adapter.execute("SELECT key FROM rows ORDER BY key")) == [("a",), ("b",)]
        assert adapter.execute("SELECT key FROM rows ORDER BY key").fetchall() == [("a",), ("b",)]


def commit(session: PostgresSession) -> None:
    session.prepare("a-1")
    session.commit("a-1")


def _says(statement: str) -> Callable[[PostgresAdapter, PostgresSession], None]:
    """Past the adapter's check, as whatever it does not know would be."""

    def end(adapter: PostgresAdapter, session: PostgresSession) -> None:
        session._connection.execute(statement.encode())

    return end


def _is_terminated(adapter: PostgresAdapter, session: PostgresSession) -> None:
    with adapter.connect() as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (session._connection.info.backend_pid,))


def _fails_to_copy(adapter: PostgresAdapter, session: PostgresSession) -> None:
    adapter.execute("COPY rows FROM STDIN")


End = Callable[[PostgresAdapter, PostgresSession], None]
ENDS: dict[str, tuple[End, bool]] = {
    "COMMIT": (_says("COMMIT"), True),
    "COMMIT AND CHAIN": (_says("COMMIT AND CHAIN"), True),
    "ROLLBACK": (_says("ROLLBACK"), True),
    "ROLLBACK AND CHAIN": (_says("ROLLBACK AND CHAIN"), True),
    "COMMIT and another one": (_says("COMMIT; BEGIN"), True),
    "the server ends the connection": (_is_terminated, False),
    "a COPY that nobody answers": (_fails_to_copy, False),
}


@pytest.mark.parametrize(("end", "may_stand"), ENDS.values(), ids=ENDS)
def test_an_effect_in_which_the_transaction_was_ended_is_told_and_nothing_runs_after_it(
    begun: tuple[PostgresAdapter, PostgresSession], rows: PostgresRows, end: End, may_stand: bool
) -> None:
    adapter, session = begun
    stands = "may stand and cannot be undone" if may_stand else "Nothing of it stands"
    with pytest.raises(SessionLost, match=stands), session.effect(CALL):
        rows.write(adapter, "k", "until then")
        with suppress(psycopg.Error):
            end(adapter, session)
    for refused in (
        lambda: session.effect(CALL).__enter__(),
        session.savepoint,
        session.verify_unmoved,
        session.changes,
        lambda: session.prepare("a-1"),
    ):
        with pytest.raises(SessionLost, match=stands):
            refused()
    if may_stand:
        with pytest.raises(SessionLost, match=stands):
            session.undo()
    session.undo()
    assert adapter.landed("a-1") is False
    if not may_stand:
        assert rows.outside("k") is None


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK"])
def test_a_tool_whose_transaction_was_ended_writes_nothing_more(
    begun: tuple[PostgresAdapter, PostgresSession], rows: PostgresRows, statement: str
) -> None:
    adapter, session = begun
    with pytest.raises(SessionLost), session.effect(CALL):
        _says(statement)(adapter, session)
        with suppress(SessionLost):
            rows.write(adapter, "k", "alone")
    assert rows.outside("k") is None
    with pytest.raises(SessionLost):
        session.undo()


def test_a_session_that_lost_its_transaction_between_effects_does_not_commit(
    begun: tuple[PostgresAdapter, PostgresSession], rows: PostgresRows
) -> None:
    adapter, session = begun
    with session.effect(CALL):
        rows.write(adapter, "k", "until then")
    _is_terminated(adapter, session)
    with pytest.raises(psycopg.OperationalError):
        session.prepare("a-1")
    with pytest.raises(SessionLost, match="Nothing of it stands"):
        session.prepare("a-1")
    session.undo()
    assert (rows.outside("k"), adapter.landed("a-1")) == (None, False)


def test_who_interrupts_the_program_is_not_answered_with_another_error(
    begun: tuple[PostgresAdapter, PostgresSession],
) -> None:
    adapter, session = begun
    with pytest.raises(KeyboardInterrupt), session.effect(CALL):
        _says("COMMIT")(adapter, session)
        raise KeyboardInterrupt
    with pytest.raises(SessionLost):
        session.undo()


def test_a_block_in_which_it_was_lost_cannot_be_ended(rows: PostgresRows) -> None:
    adapter = rows.adapter()
    for end in ("release", "rollback"):
        session = adapter.begin("t-1")
        block = session.savepoint()
        with suppress(SessionLost), session.effect(CALL):
            _is_terminated(adapter, session)
        with pytest.raises(SessionLost):
            getattr(block, end)()
        session.undo()


# --------------------------------------------------------------------------------------- where the mark stands

MOVES = {
    "the search path": ["SET LOCAL search_path TO tenant_7"],
    "the search path for good": ["SET search_path TO tenant_7"],
    "a temporary table": [
        "CREATE TEMP TABLE countersign_landed (attempt_id text PRIMARY KEY, landed_at text)"
    ],
    "a schema that comes first": [
        "CREATE SCHEMA AUTHORIZATION CURRENT_USER"
        " CREATE TABLE countersign_landed (attempt_id text PRIMARY KEY, landed_at text)",
    ],
}


@pytest.mark.parametrize("moves", [*MOVES.values(), ["SELECT 1"]], ids=[*MOVES, "nothing"])
def test_whatever_a_tool_does_to_names_the_mark_stands_where_landed_looks(
    begun: tuple[PostgresAdapter, PostgresSession], rows: PostgresRows, conninfo: str, moves: list[str]
) -> None:
    adapter, session = begun
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA tenant_7")
        connection.execute("CREATE TABLE tenant_7.countersign_landed (LIKE countersign_landed INCLUDING ALL)")
        try:
            with session.effect(CALL):
                rows.write(adapter, "k", "new")
                for statement in moves:
                    adapter.execute(statement)
            commit(session)
            assert rows.adapter().landed("a-1") is True
            assert connection.execute("SELECT attempt_id FROM public.countersign_landed").fetchall() == [
                ("a-1",)
            ]
            assert connection.execute("SELECT * FROM tenant_7.countersign_landed").fetchall() == []
        finally:
            connection.execute("DROP SCHEMA tenant_7 CASCADE")
            connection.execute(f'DROP SCHEMA IF EXISTS "{connection.info.user}" CASCADE'.encode())


def test_the_mark_of_an_agent_with_a_schema_of_its_own_stands_there(
    conninfo: str, rows: PostgresRows
) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute('CREATE SCHEMA "Ten ant"')
        try:
            adapter = PostgresAdapter(f"{conninfo}?options=-csearch_path%3D%22Ten%5C%20ant%22", name="rows")
            session = adapter.begin("t-1")
            commit(session)
            assert adapter.landed("a-1") is True
            found = connection.execute('SELECT attempt_id FROM "Ten ant".countersign_landed').fetchall()
            assert found == [("a-1",)]
        finally:
            connection.execute('DROP SCHEMA "Ten ant" CASCADE')


def test_a_tool_that_swallows_an_error_of_the_database_has_failed(
    begun: tuple[PostgresAdapter, PostgresSession], rows: PostgresRows
) -> None:
    adapter, session = begun
    with pytest.raises(psycopg.errors.InFailedSqlTransaction), session.effect(CALL):
        rows.write(adapter, "k", "half")
        with pytest.raises(psycopg.errors.UndefinedTable):
            adapter.execute("SELECT * FROM nowhere")
    commit(session)
    assert (rows.outside("k"), adapter.landed("a-1")) == (None, True)


def test_a_deferred_constraint_fails_when_it_is_prepared_and_not_at_the_commit(
    begun: tuple[PostgresAdapter, PostgresSession], rows: PostgresRows
) -> None:
    adapter, session = begun
    with session.effect(CALL):
        adapter.execute("CREATE TABLE late (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        adapter.execute("INSERT INTO late VALUES (1), (1)")
    with pytest.raises(psycopg.errors.UniqueViolation):
        session.prepare("a-1")
    session.undo()
    assert adapter.landed("a-1") is False


def test_landed_waits_for_a_commit_that_is_under_way(
    begun: tuple[PostgresAdapter, PostgresSession], rows: PostgresRows
) -> None:
    adapter, session = begun
    with session.effect(CALL):
        rows.write(adapter, "k", "new")
    session.prepare("a-1")
    late = threading.Timer(0.3, session.commit, ["a-1"])
    late.start()
    began = time.monotonic()
    assert adapter.landed("a-1") is True
    assert time.monotonic() - began > 0.2
    late.join()


def test_landed_of_a_transaction_that_does_not_end_is_not_known(conninfo: str, rows: PostgresRows) -> None:
    adapter = PostgresAdapter(conninfo, wait_seconds=0.1)
    session = adapter.begin("t-1")
    session.prepare("a-1")
    assert adapter.landed("a-1") is None
    session.undo()
    assert adapter.landed("a-1") is False


class _Lost(psycopg.OperationalError):
    """The line broke."""


@pytest.mark.parametrize("arrived", [True, False])
def test_a_commit_whose_answer_is_lost_is_looked_up(
    begun: tuple[PostgresAdapter, PostgresSession], rows: PostgresRows, arrived: bool
) -> None:
    adapter, session = begun
    with session.effect(CALL):
        rows.write(adapter, "k", "new")
    session.prepare("a-1")
    real = session._connection.execute

    def losing(query: Any, *args: Any, **kwargs: Any) -> Any:
        if arrived:
            real(query, *args, **kwargs)
        raise _Lost

    session._connection.execute = losing  # type: ignore[method-assign]
    if arrived:
        session.commit("a-1")
    else:
        with pytest.raises(_Lost):
            session.commit("a-1")
    assert rows.outside("k") == ("new" if arrived else None)


def test_a_server_that_turns_a_commit_into_a_rollback_is_not_believed(
    begun: tuple[PostgresAdapter, PostgresSession],
) -> None:
    adapter, session = begun
    session.prepare("a-1")
    with pytest.raises(psycopg.Error):
        session._connection.execute("SELECT * FROM nowhere")
    with pytest.raises(psycopg.InterfaceError, match="ROLLBACK"):
        session.commit("a-1")
    assert adapter.landed("a-1") is False


def test_without_its_driver_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("psycopg"):
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(SettingsError, match=r"countersign-sdk\[postgres\]"):
        PostgresAdapter("dbname=x")


@pytest.mark.parametrize("round_", [0, 1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 10))])
def test_many_that_come_first_at_once_all_begin(conninfo: str, rows: PostgresRows, round_: int) -> None:
    """Scenario of a first deployment: every process makes the table of marks, and each finds another's half made."""
    together = threading.Barrier(6)

    def begin(_: int) -> None:
        adapter = PostgresAdapter(conninfo, name="rows")
        adapter.connect().close()
        together.wait(10)
        adapter.begin("t" * 64).undo()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(begin, range(6)))


def test_a_name_that_something_else_has_is_told_before_anything_ran(
    conninfo: str, rows: PostgresRows
) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("CREATE DOMAIN countersign_landed AS text")
        try:
            with pytest.raises(psycopg.errors.DuplicateObject):
                PostgresAdapter(conninfo, name="rows").begin("t" * 64)
        finally:
            connection.execute("DROP DOMAIN countersign_landed")


# ------------------------------------------------------------------------------ others who write meanwhile

Look, Put = Callable[[str], int], Callable[[str, int], None]


def numbers(desk: Desk, adapter: PostgresAdapter, also: str = "") -> tuple[Look, Put]:
    """Live tools that read and write numbers; `also` is said behind each SELECT."""

    @tool("look", lane="live", adapter=adapter, registry=desk.registry)
    def look(key: str) -> int:
        row = adapter.execute(f"SELECT value FROM rows WHERE key = %s {also}", (key,)).fetchone()
        return 0 if row is None else int(row[0])

    @tool("put", lane="live", adapter=adapter, registry=desk.registry)
    def put(key: str, value: int) -> None:
        adapter.execute("UPDATE rows SET value = %s WHERE key = %s", (str(value), key))

    return look, put


def test_scenario_45_of_two_that_add_to_one_row_exactly_one_commits(
    conninfo: str, rows: PostgresRows, desk: Desk
) -> None:
    """Without any lock: the row was read, changed by somebody else, and is written."""
    look, put = numbers(desk, PostgresAdapter(conninfo, name="rows"))
    assert rows.change_outside("n", "5")
    with pytest.raises(Moved) as moved, transaction("t-1", runtime=desk.runtime):
        before = look("n")
        assert rows.change_outside("n", "15")
        put("n", before + 1)
    assert rows.outside("n") == "15"
    assert (moved.value.adapter, moved.value.key) == ("rows", "")
    assert str(moved.value).startswith(
        "another transaction was met in 'rows' ('put': could not serialize access due to concurrent update)"
    )


@pytest.mark.parametrize("also", ["FOR SHARE", "FOR UPDATE"])
def test_scenario_45_of_two_that_each_rely_on_the_other_at_most_one_commits_at_a_time(
    conninfo: str, rows: PostgresRows, desk: Desk, also: str
) -> None:
    """Write skew: each reads both rows and switches its own off. The server ends the circle of waiting."""
    quick = f"{conninfo}?options=-cdeadlock_timeout%3D20ms"
    look, put = numbers(desk, PostgresAdapter(quick, name="rows"), also)
    assert rows.change_outside("ann", "1") and rows.change_outside("bob", "1")
    both_in = threading.Barrier(2)

    def leave(name: str, other: str) -> str:
        try:
            with transaction(name, runtime=desk.runtime):
                if also == "FOR SHARE":
                    on_call = look(name) + look(other)
                    both_in.wait(10)
                else:
                    on_call = look(name)
                    both_in.wait(10)
                    on_call += look(other)
                if on_call == 2:
                    put(name, 0)
        except Moved as moved:
            return str(moved)
        return "left"

    with ThreadPoolExecutor(2) as pool:
        ends = sorted(pool.map(leave, ["ann", "bob"], ["bob", "ann"]))
    assert ends[1] == "left"
    assert re.match("another transaction was met in 'rows' .'(put|look)': deadlock detected.", ends[0])
    assert sorted([rows.outside("ann"), rows.outside("bob")]) == ["0", "1"]


def test_scenario_45_with_a_locked_table_the_second_waits_and_sees_what_the_first_wrote(
    rows: PostgresRows, desk: Desk
) -> None:
    adapter = rows.adapter()
    look, put = numbers(desk, adapter)
    assert rows.change_outside("n", "0")
    first_in, second_began = threading.Event(), threading.Event()

    def add(key: str) -> int:
        if key == "second":
            first_in.wait(10)
            second_began.set()
        with transaction(key, runtime=desk.runtime):
            before = look("n")
            if key == "first":
                first_in.set()
                second_began.wait(10)
                time.sleep(0.05)  # the second one is waiting by now; it would read 0 if it were not
            put("n", before + 1)
        return before

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(add, ["first", "second"])) == [0, 1]
    assert rows.outside("n") == "2"


# ------------------------------------------------------------------------------------------ others are at it


@pytest.fixture
def busy(conninfo: str, rows: PostgresRows) -> Iterator[psycopg.Connection[Any]]:
    """Somebody else has written to the table and not said yet whether that stands."""
    rows.change_outside("k", "old")
    with psycopg.connect(conninfo, autocommit=True) as other:
        other.execute("BEGIN")
        other.execute("UPDATE rows SET value = 'theirs'")
        yield other


WAITED = r"lock timeout, wait_seconds=0\.1.*Retry"


def test_a_table_that_others_keep_locked_is_a_conflict_that_says_for_how_long_it_waited_and_what_to_do(
    conninfo: str, busy: psycopg.Connection[Any]
) -> None:
    adapter = PostgresAdapter(conninfo, name="bank", locks=("public.rows",), wait_seconds=0.1)
    with pytest.raises(Moved, match=WAITED) as told:
        adapter.begin("t-1")
    assert (told.value.adapter, told.value.key) == ("bank", "public.rows")
    busy.execute("ROLLBACK")
    adapter.begin("t-1").undo()


def test_a_row_that_others_keep_locked_is_one_as_well_and_the_session_goes_on(
    conninfo: str, busy: psycopg.Connection[Any], rows: PostgresRows
) -> None:
    adapter = PostgresAdapter(conninfo, name="bank", wait_seconds=0.1)
    session = adapter.begin("t-1")
    with pytest.raises(Moved, match=WAITED) as told, session.effect(CALL):
        rows.write(adapter, "k", "mine")
    assert told.value.key == ""
    with session.effect(CALL):
        rows.write(adapter, "other", "mine")
    commit(session)
    assert rows.outside("other") == "mine"


def test_a_table_of_marks_that_others_are_making_is_a_conflict(conninfo: str) -> None:
    adapter = PostgresAdapter(conninfo, name="bank", wait_seconds=0.1)
    with psycopg.connect(conninfo) as other:
        other.execute("DROP TABLE IF EXISTS countersign_landed")
        other.commit()
        other.execute(_TABLE.encode())
        with pytest.raises(Moved, match=f"table of marks.*{WAITED}"):
            adapter.begin("t-1")
        other.rollback()
    adapter.begin("t-1").undo()


def test_a_sequence_goes_on_from_where_an_undone_tool_left_it_and_a_large_object_does_not_stand(
    conninfo: str, rows: PostgresRows
) -> None:
    """As the README says of what no transaction undoes."""
    adapter = PostgresAdapter(conninfo)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("CREATE SEQUENCE numbers")
        try:
            session = adapter.begin("t-1")
            with session.effect(CALL):
                adapter.execute("SELECT setval('numbers', 500)")
                adapter.execute("SELECT lo_create(4711)")
            session.undo()
            assert connection.execute("SELECT nextval('numbers')").fetchone() == (501,)
            found = connection.execute("SELECT 1 FROM pg_largeobject_metadata WHERE oid = 4711")
            assert found.fetchone() is None
        finally:
            connection.execute("DROP SEQUENCE numbers")
