"""PostgreSQL: the schema of an attempt's mark, and concurrent sessions."""

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from countersign import IsolationConflict, tool
from countersign.adapters.postgres import _TABLE, PostgresAdapter
from tests.fakes.desk import Desk
from tests.unit.sdk.adapters.bank import commit
from tests.unit.sdk.adapters.resources import PostgresRows
from tests.unit.sdk.adapters.rows import CALL

pytestmark = pytest.mark.xdist_group("postgresql")


@pytest.fixture
def outside(conninfo: str, rows: PostgresRows):
    """Somebody else's connection to the database of the rows."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        yield connection


# --------------------------------------------------------------------------------------- where the mark is

A_TABLE_OF_MARKS = "TABLE countersign_landed (attempt_id text PRIMARY KEY, landed_at text)"
MOVES = {
    "nothing": "SELECT 1",
    "the search path": "SET LOCAL search_path TO tenant_7",
    "the search path for good": "SET search_path TO tenant_7",
    "a temporary table": f"CREATE TEMP {A_TABLE_OF_MARKS}",
    "a schema that comes first": f"CREATE SCHEMA AUTHORIZATION CURRENT_USER CREATE {A_TABLE_OF_MARKS}",
}


@pytest.mark.parametrize("moves", MOVES.values(), ids=MOVES)
def test_no_tool_moves_the_mark(outside: psycopg.Connection, rows: PostgresRows, moves: str) -> None:
    adapter = rows.adapter()
    session, marks = adapter.begin("t-1"), "SELECT attempt_id FROM {}.countersign_landed"
    outside.execute("CREATE SCHEMA tenant_7")
    outside.execute("CREATE TABLE tenant_7.countersign_landed (LIKE countersign_landed INCLUDING ALL)")
    try:
        with session.effect(CALL):
            rows.write(adapter, "k", "new")
            adapter.execute(moves)
        commit(session)
        assert rows.adapter().landed("a-1") is True
        for schema, found in (("public", [("a-1",)]), ("tenant_7", [])):
            assert outside.execute(marks.format(schema).encode()).fetchall() == found
    finally:
        outside.execute("DROP SCHEMA tenant_7 CASCADE")
        outside.execute(f'DROP SCHEMA IF EXISTS "{outside.info.user}" CASCADE'.encode())


def test_the_schema_of_an_agent_has_its_mark(conninfo: str, outside: psycopg.Connection) -> None:
    outside.execute('CREATE SCHEMA "Ten ant"')
    try:
        adapter = PostgresAdapter(f"{conninfo}?options=-csearch_path%3D%22Ten%5C%20ant%22", name="rows")
        commit(adapter.begin("t-1"))
        assert adapter.landed("a-1") is True
        found = outside.execute('SELECT attempt_id FROM "Ten ant".countersign_landed').fetchall()
        assert found == [("a-1",)]
    finally:
        outside.execute('DROP SCHEMA "Ten ant" CASCADE')


def test_landed_waits_briefly_for_a_commit_under_way(conninfo: str) -> None:
    patient, hasty = PostgresAdapter(conninfo), PostgresAdapter(conninfo, wait_seconds=0.1)
    for adapter, found in ((hasty, None), (patient, True)):
        session = patient.begin("t-1")
        session.prepare("a-1")
        late = threading.Timer(0.3, session.commit if found else session.undo, ["a-1"] if found else [])
        late.start()
        began = time.monotonic()
        assert (adapter.landed("a-1"), time.monotonic() - began > 0.2) == (found, found is True)
        late.join()


def test_many_that_come_first_at_once_all_begin(conninfo: str, rows: PostgresRows) -> None:
    """In a first deployment every process makes the table of marks, and each finds another's half made."""
    together = threading.Barrier(6)

    def begin(_: int) -> None:
        adapter = PostgresAdapter(conninfo, name="rows")
        together.wait(10)
        adapter.begin("t" * 64).undo()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(begin, range(6)))


def test_a_used_name_is_reported_first(conninfo: str, outside: psycopg.Connection) -> None:
    outside.execute("CREATE DOMAIN countersign_landed AS text")
    try:
        with pytest.raises(psycopg.errors.DuplicateObject):
            PostgresAdapter(conninfo, name="rows").begin("t" * 64)
    finally:
        outside.execute("DROP DOMAIN countersign_landed")


# ------------------------------------------------------------------------------ others who write meanwhile


def numbers(desk: Desk, adapter: PostgresAdapter, also: str = "") -> tuple:
    """Live tools that read and write numbers; `also` ends each SELECT."""
    live = {"lane": "live", "adapter": adapter, "registry": desk.registry}

    @tool("look", **live)
    def look(key: str) -> int:
        return int(adapter.execute(f"SELECT value FROM rows WHERE key = %s {also}", (key,)).fetchone()[0])

    @tool("put", **live)
    def put(key: str, value: int) -> None:
        adapter.execute("UPDATE rows SET value = %s WHERE key = %s", (str(value), key))

    return look, put


def test_scenario_45_a_lost_update_is_refused(conninfo: str, rows: PostgresRows, desk: Desk) -> None:
    """Without any lock: the row was read, changed by somebody else, and is written."""
    look, put = numbers(desk, PostgresAdapter(conninfo, name="rows"))
    assert rows.change_outside("n", "5")
    with pytest.raises(IsolationConflict) as moved, desk.step():
        before = look("n")
        assert rows.change_outside("n", "15")
        put("n", before + 1)
    assert (rows.outside("n"), moved.value.adapter, moved.value.key) == ("15", "rows", "")


def test_scenario_45_write_skew_is_refused(conninfo: str, rows: PostgresRows, desk: Desk) -> None:
    """Write skew: each reads both rows and switches its own off. The server ends the circle of waiting."""
    quick = f"{conninfo}?options=-cdeadlock_timeout%3D20ms"
    look, put = numbers(desk, PostgresAdapter(quick, name="rows"), "FOR UPDATE")
    assert rows.change_outside("ann", "1") and rows.change_outside("bob", "1")
    both_in = threading.Barrier(2)

    def leave(name: str, other: str) -> str:
        try:
            with desk.step(name):
                on_call = look(name)
                both_in.wait(10)
                if on_call + look(other) == 2:
                    put(name, 0)
        except IsolationConflict as moved:
            return str(moved)
        return "left"

    with ThreadPoolExecutor(2) as pool:
        ends = sorted(pool.map(leave, ["ann", "bob"], ["bob", "ann"]))
    assert ends[1] == "left"
    assert re.match("another transaction was met in 'rows' .'look': deadlock detected.", ends[0])
    assert sorted([rows.outside("ann"), rows.outside("bob")]) == ["0", "1"]


WAITED = r"lock timeout, wait_seconds=0\.1.*Retry"


@pytest.fixture
def busy(outside: psycopg.Connection, rows: PostgresRows) -> psycopg.Connection:
    """Another session has written to the table and not committed yet."""
    rows.change_outside("k", "old")
    outside.execute("BEGIN")
    outside.execute("UPDATE rows SET value = 'theirs'")
    return outside


def test_a_locked_table_is_a_conflict(conninfo: str, busy: psycopg.Connection) -> None:
    adapter = PostgresAdapter(conninfo, name="bank", locks=("public.rows",), wait_seconds=0.1)
    with pytest.raises(IsolationConflict, match=WAITED) as raised:
        adapter.begin("t-1")
    assert (raised.value.adapter, raised.value.key) == ("bank", "public.rows")
    busy.execute("ROLLBACK")
    adapter.begin("t-1").undo()


@pytest.mark.usefixtures("busy")
def test_a_locked_row_is_one_and_the_session_lives(conninfo: str, rows: PostgresRows) -> None:
    adapter = PostgresAdapter(conninfo, name="bank", wait_seconds=0.1)
    session = adapter.begin("t-1")
    with pytest.raises(IsolationConflict, match=WAITED) as raised, session.effect(CALL):
        rows.write(adapter, "k", "mine")
    assert raised.value.key == ""
    with session.effect(CALL):
        rows.write(adapter, "other", "mine")
    commit(session)
    assert rows.outside("other") == "mine"


def test_a_table_of_marks_being_made_is_a_conflict(conninfo: str, outside: psycopg.Connection) -> None:
    adapter = PostgresAdapter(conninfo, name="bank", wait_seconds=0.1)
    with outside.transaction():
        outside.execute(_TABLE.encode())
        with pytest.raises(IsolationConflict, match=f"table of marks.*{WAITED}"):
            adapter.begin("t-1")
    adapter.begin("t-1").undo()
