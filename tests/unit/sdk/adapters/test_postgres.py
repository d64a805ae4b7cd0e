"""PostgreSQL passes the exam, keeps its transaction from its tools, and says what became of a lost COMMIT."""

from __future__ import annotations

import builtins
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from countersign import (
    MisuseError,
    Moved,
    OutsideTransaction,
    Retry,
    SettingsError,
    Transaction,
    run_transaction,
    tool,
    transaction,
)
from countersign.adapters import LiveCall
from countersign.adapters.contract import AdapterContract, Resource
from countersign.adapters.postgres import PostgresAdapter, PostgresSession
from tests.fakes.desk import Desk, make_desk
from tests.unit.sdk.adapters.resources import PostgresRows

pytestmark = pytest.mark.xdist_group("postgresql")
CALL = LiveCall("exam", {}, "e-1")


class TestPostgres(AdapterContract):
    @pytest.fixture(autouse=True)
    def _server(self, conninfo: str) -> None:
        self._conninfo = conninfo

    def resource(self, folder: Path) -> Resource:
        return PostgresRows(self._conninfo)


@pytest.fixture
def rows(conninfo: str) -> PostgresRows:
    return PostgresRows(conninfo)


def test_scenario_56_a_dry_run_leaves_postgresql_as_it_was(rows: PostgresRows, desk: Desk) -> None:
    """Rows and tables; the adapter's own empty table of attempts is there as after any first use."""
    adapter = rows.adapter()
    assert isinstance(adapter, PostgresAdapter)

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
def desk(tmp_path: Path) -> Iterator[Desk]:
    world = make_desk(tmp_path)
    yield world
    world.runtime.close()


@pytest.fixture
def begun(rows: PostgresRows) -> Iterator[tuple[PostgresAdapter, PostgresSession]]:
    adapter = rows.adapter()
    assert isinstance(adapter, PostgresAdapter)
    session = adapter.begin("t-1")
    yield adapter, session
    session.undo()


@pytest.mark.parametrize(
    "statement",
    [
        *(
            "COMMIT",
            "commit",
            " ;; COMMIT",
            "-- so\nCOMMIT",
            "/* a /* b */ */ End",
            "ROLLBACK",
            "ABORT",
            "BEGIN",
        ),
        *(
            "START TRANSACTION",
            "SAVEPOINT x",
            "RELEASE countersign_effect",
            "PREPARE TRANSACTION 'x'",
            "/**/;/**/end",
        ),
        *("SELECT 1; COMMIT", "DO $$ BEGIN COMMIT; END $$"),
    ],
)
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


def test_a_tool_that_swallows_an_error_of_the_database_has_failed(
    begun: tuple[PostgresAdapter, PostgresSession], rows: PostgresRows
) -> None:
    adapter, session = begun
    with pytest.raises(psycopg.errors.InFailedSqlTransaction), session.effect(CALL):
        rows.write(adapter, "k", "half")
        with pytest.raises(psycopg.errors.UndefinedTable):
            adapter.execute("SELECT * FROM nowhere")
    session.prepare("a-1")
    session.commit("a-1")
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


def test_outside_a_live_tool_it_refuses(rows: PostgresRows) -> None:
    with pytest.raises(OutsideTransaction):
        rows.read(rows.adapter(), "k")


def test_without_its_driver_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("psycopg"):
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(SettingsError, match=r"countersign-sdk\[postgres\]"):
        PostgresAdapter("dbname=x")


@pytest.mark.parametrize("round_", range(10))
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
    assert (moved.value.adapter, moved.value.key) == ("rows", "put")
    assert str(moved.value).startswith(
        "'put' met another transaction in 'rows' (could not serialize access due to concurrent update)"
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
    assert re.match("'(put|look)' met another transaction in 'rows' .deadlock detected.", ends[0])
    assert sorted([rows.outside("ann"), rows.outside("bob")]) == ["0", "1"]


def test_scenario_45_with_a_locked_table_the_second_waits_and_sees_what_the_first_wrote(
    rows: PostgresRows, desk: Desk
) -> None:
    adapter = rows.adapter()
    assert isinstance(adapter, PostgresAdapter)
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


def test_scenario_47_a_row_that_moved_is_looked_at_again(
    conninfo: str, rows: PostgresRows, desk: Desk
) -> None:
    look, put = numbers(desk, PostgresAdapter(conninfo, name="rows"))
    assert rows.change_outside("n", "5")
    seen: list[int] = []

    def step(txn: Transaction) -> None:
        seen.append(look("n"))
        if len(seen) == 1:
            assert rows.change_outside("n", "15")
        put("n", seen[-1] + 1)

    run_transaction(step, key="t-1", isolation=Retry(), runtime=desk.runtime)
    assert (seen, rows.outside("n")) == ([5, 15], "16")
