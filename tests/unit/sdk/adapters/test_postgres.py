"""PostgreSQL passes the exam, keeps its transaction from its tools, and says what became of a lost COMMIT."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from countersign.adapters.contract import AdapterContract, Resource
from countersign.adapters.postgres import PostgresAdapter, PostgresSession
from countersign.errors import CommitUnknown, MisuseError, SessionLost, SettingsError
from tests.unit.sdk.adapters.resources import PostgresRows
from tests.unit.sdk.adapters.rows import CALL

pytestmark = pytest.mark.xdist_group("postgresql")


class TestPostgres(AdapterContract):
    @pytest.fixture(autouse=True)
    def _server(self, conninfo: str) -> None:
        self._conninfo = conninfo

    def resource(self, folder: Path) -> Resource:
        return PostgresRows(self._conninfo)


@pytest.fixture
def adapter(rows: PostgresRows) -> PostgresAdapter:
    return rows.adapter()


@pytest.fixture
def session(adapter: PostgresAdapter) -> Iterator[PostgresSession]:
    begun = adapter.begin("t-1")
    yield begun
    with suppress(SessionLost):
        begun.undo()


def commit(session: PostgresSession) -> None:
    session.prepare("a-1")
    session.commit("a-1")


ENDINGS = (
    "COMMIT|commit| ;; COMMIT|-- so\nCOMMIT|-- so\rCOMMIT|-- so\r\nCOMMIT AND CHAIN|--\r--\r\n/**/ROLLBACK AND CHAIN"
    "|/* a /* b */ */ End|ROLLBACK|ABORT|BEGIN|START TRANSACTION|SAVEPOINT x|RELEASE countersign_effect"
    "|PREPARE TRANSACTION 'x'|/**/;/**/end|SELECT 1; COMMIT|DO $$ BEGIN COMMIT; END $$"
).split("|")


@pytest.mark.parametrize("statement", ENDINGS)
def test_a_tool_may_not_end_the_transaction_it_runs_in(
    adapter: PostgresAdapter, session: PostgresSession, rows: PostgresRows, statement: str
) -> None:
    with pytest.raises((MisuseError, psycopg.Error)), session.effect(CALL):
        rows.write(adapter, "k", "sly")
        adapter.execute(statement)
    assert rows.outside("k") is None
    with session.effect(CALL):
        assert rows.read(adapter, "k") is None


RESULT_OF_A_TOOL = {"fetchone", "fetchmany", "fetchall", "rowcount", "description", "statusmessage"}


def test_what_a_statement_returns_can_be_read_and_nothing_else(
    adapter: PostgresAdapter, session: PostgresSession, rows: PostgresRows
) -> None:
    asked = "SELECT key, value FROM rows ORDER BY key"
    with session.effect(CALL):
        rows.write(adapter, "a", "1")
        rows.write(adapter, "b", "2")
        found = adapter.execute(asked)
    assert {name for name in dir(found) if not name.startswith("_")} == RESULT_OF_A_TOOL
    assert (found.rowcount, found.statusmessage) == (2, "SELECT 2")
    assert [one.name for one in found.description or ()] == ["key", "value"]
    assert (found.fetchone(), found.fetchmany(1), found.fetchone()) == (("a", "1"), [("b", "2")], None)
    with session.effect(CALL):
        assert [*adapter.execute(asked)] == adapter.execute(asked).fetchall() == [("a", "1"), ("b", "2")]


End = Callable[[PostgresAdapter, PostgresSession], object]


def says(statement: str) -> End:
    """Past the adapter's check, as whatever it does not know would be."""
    return lambda adapter, session: session._connection.execute(statement.encode())


def is_terminated(adapter: PostgresAdapter, session: PostgresSession) -> None:
    with adapter.connect() as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (session._connection.info.backend_pid,))


ENDS: dict[str, tuple[End, bool]] = {
    "COMMIT": (says("COMMIT"), True),
    "COMMIT AND CHAIN": (says("COMMIT AND CHAIN"), True),
    "ROLLBACK": (says("ROLLBACK"), True),
    "ROLLBACK AND CHAIN": (says("ROLLBACK AND CHAIN"), True),
    "COMMIT and another one": (says("COMMIT; BEGIN"), True),
    "the server ends the connection": (is_terminated, False),
    "a COPY that nobody answers": (lambda adapter, _: adapter.execute("COPY rows FROM STDIN"), False),
}


@pytest.mark.parametrize(("end", "may_stand"), ENDS.values(), ids=ENDS)
def test_an_effect_in_which_the_transaction_was_ended_is_told_and_nothing_runs_after_it(
    adapter: PostgresAdapter, session: PostgresSession, rows: PostgresRows, end: End, may_stand: bool
) -> None:
    stands = "may stand and cannot be undone" if may_stand else "Nothing of it stands"
    block = session.savepoint()
    with pytest.raises(SessionLost, match=stands), session.effect(CALL):
        rows.write(adapter, "k", "until then")
        with suppress(psycopg.Error):
            end(adapter, session)
        with suppress(SessionLost, psycopg.Error):
            rows.write(adapter, "other", "after it")
    for refused in (
        session.effect(CALL).__enter__, session.savepoint, session.verify_unmoved, session.changes,
        lambda: session.prepare("a-1"), block.release, block.rollback,
    ):  # fmt: skip
        with pytest.raises(SessionLost, match=stands):
            refused()
    if may_stand:
        with pytest.raises(SessionLost, match=stands):
            session.undo()
    session.undo()
    assert (adapter.landed("a-1"), rows.outside("other")) == (False, None)
    assert may_stand or rows.outside("k") is None


def test_a_session_that_lost_its_transaction_between_effects_does_not_commit(
    adapter: PostgresAdapter, session: PostgresSession, rows: PostgresRows
) -> None:
    with session.effect(CALL):
        rows.write(adapter, "k", "until then")
    is_terminated(adapter, session)
    with pytest.raises(psycopg.OperationalError):
        session.prepare("a-1")
    with pytest.raises(SessionLost, match="Nothing of it stands"):
        session.prepare("a-1")
    session.undo()
    assert (rows.outside("k"), adapter.landed("a-1")) == (None, False)


def test_who_interrupts_the_program_is_not_answered_with_another_error(
    adapter: PostgresAdapter, session: PostgresSession
) -> None:
    with pytest.raises(KeyboardInterrupt), session.effect(CALL):
        says("COMMIT")(adapter, session)
        raise KeyboardInterrupt
    with pytest.raises(SessionLost):
        session.undo()


def test_a_tool_that_swallows_an_error_of_the_database_has_failed(
    adapter: PostgresAdapter, session: PostgresSession, rows: PostgresRows
) -> None:
    with pytest.raises(psycopg.errors.InFailedSqlTransaction), session.effect(CALL):
        rows.write(adapter, "k", "half")
        with pytest.raises(psycopg.errors.UndefinedTable):
            adapter.execute("SELECT * FROM nowhere")
    commit(session)
    assert (rows.outside("k"), adapter.landed("a-1")) == (None, True)


def test_a_deferred_constraint_fails_when_it_is_prepared_and_not_at_the_commit(
    adapter: PostgresAdapter, session: PostgresSession
) -> None:
    with session.effect(CALL):
        adapter.execute("CREATE TABLE late (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        adapter.execute("INSERT INTO late VALUES (1), (1)")
    with pytest.raises(psycopg.errors.UniqueViolation):
        session.prepare("a-1")
    session.undo()
    assert adapter.landed("a-1") is False


class _Lost(psycopg.OperationalError):
    """The line broke."""


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("arrived", [True, False])
def test_a_commit_whose_answer_is_lost_is_looked_up(
    adapter: PostgresAdapter, session: PostgresSession, rows: PostgresRows, arrived: bool, known: bool
) -> None:
    with session.effect(CALL):
        rows.write(adapter, "k", "new")
    session.prepare("a-1")
    real = session._connection.execute

    def losing(query: Any, *args: Any, **kwargs: Any) -> Any:
        if arrived:
            real(query, *args, **kwargs)
        raise _Lost

    session._connection.execute = losing  # type: ignore[method-assign]
    if not known:  # the server is away, and may have heard the COMMIT
        adapter._conninfo = "host=127.0.0.1 port=1 user=nobody dbname=gone"
    told = pytest.raises(_Lost if known else CommitUnknown)
    with nullcontext() if arrived and known else told:
        session.commit("a-1")
    assert rows.outside("k") == ("new" if arrived else None)


def test_a_server_that_turns_a_commit_into_a_rollback_is_not_believed(
    adapter: PostgresAdapter, session: PostgresSession
) -> None:
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
