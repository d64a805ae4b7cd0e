"""PostgreSQL: protects its transaction from tools, and looks up the result of a lost COMMIT."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from countersign.adapters.contract_suite import AdapterContract, ContractResource
from countersign.adapters.postgres import PostgresAdapter, PostgresSession
from countersign.errors import CommitUnknown, MisuseError, SessionLost, SettingsError
from tests.unit.sdk.adapters.bank import commit
from tests.unit.sdk.adapters.resources import PostgresRows
from tests.unit.sdk.adapters.rows import CALL

pytestmark = pytest.mark.xdist_group("postgresql")


class TestPostgres(AdapterContract):
    @pytest.fixture(autouse=True)
    def _server(self, conninfo: str) -> None:
        self._conninfo = conninfo

    def resource(self, folder: Path) -> ContractResource:
        return PostgresRows(self._conninfo)


@dataclass
class Begun:
    """The rows, with a transaction of ours that is open."""

    rows: PostgresRows
    adapter: PostgresAdapter
    session: PostgresSession

    def effect(self) -> AbstractContextManager[None]:
        return self.session.effect(CALL)

    def write(self, key: str, value: str) -> None:
        self.rows.write(self.adapter, key, value)

    def outside(self, key: str) -> str | None:
        return self.rows.outside(key)

    def says(self, statement: str) -> None:
        """Bypass the adapter's check, like a statement it does not know."""
        self.session._connection.execute(statement.encode())

    def is_terminated(self) -> None:
        with self.adapter.connect() as other:
            pid = self.session._connection.info.backend_pid
            other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))


@pytest.fixture
def begun(rows: PostgresRows) -> Iterator[Begun]:
    adapter = rows.adapter()
    session = adapter.begin("t-1")
    yield Begun(rows, adapter, session)
    with suppress(SessionLost):
        session.undo()


ENDINGS = (
    "COMMIT|commit| ;; COMMIT|-- so\nCOMMIT|-- so\rCOMMIT|-- so\r\nCOMMIT AND CHAIN|--\r--\r\n/**/ROLLBACK AND CHAIN"
    "|/* a /* b */ */ End|ROLLBACK|ABORT|BEGIN|START TRANSACTION|SAVEPOINT x|RELEASE countersign_effect"
    "|PREPARE TRANSACTION 'x'|/**/;/**/end|SELECT 1; COMMIT|DO $$ BEGIN COMMIT; END $$"
).split("|")


@pytest.mark.parametrize("statement", ENDINGS)
def test_a_tool_may_not_end_the_transaction_it_runs_in(begun: Begun, statement: str) -> None:
    with pytest.raises((MisuseError, psycopg.Error)), begun.effect():
        begun.write("k", "sly")
        begun.adapter.execute(statement)
    assert begun.outside("k") is None
    with begun.effect():
        assert begun.rows.read(begun.adapter, "k") is None


RESULT_OF_A_TOOL = {"fetchone", "fetchmany", "fetchall", "rowcount", "description", "statusmessage"}


def test_what_a_statement_returns_can_be_read_and_nothing_else(begun: Begun) -> None:
    query, pairs = "SELECT key, value FROM rows ORDER BY key", [("a", "1"), ("b", "2")]
    with begun.effect():
        for pair in pairs:
            begun.write(*pair)
        found = begun.adapter.execute(query)
    assert {name for name in dir(found) if not name.startswith("_")} == RESULT_OF_A_TOOL
    assert (found.rowcount, found.statusmessage) == (2, "SELECT 2")
    assert [one.name for one in found.description or ()] == ["key", "value"]
    assert (found.fetchone(), found.fetchmany(1), found.fetchone()) == (pairs[0], pairs[1:], None)
    with begun.effect():
        assert [*begun.adapter.execute(query)] == begun.adapter.execute(query).fetchall() == pairs


End = Callable[[Begun], object]
ENDING_STATEMENTS = ["COMMIT", "COMMIT AND CHAIN", "ROLLBACK", "ROLLBACK AND CHAIN", "COMMIT; BEGIN"]


ENDS: dict[str, tuple[End, bool]] = {
    **{sql: (lambda it, sql=sql: it.says(sql), True) for sql in ENDING_STATEMENTS},
    "the server ends the connection": (Begun.is_terminated, False),
    "a COPY without data": (lambda it: it.adapter.execute("COPY rows FROM STDIN"), False),
}


@pytest.mark.parametrize(("end", "may_stay"), ENDS.values(), ids=ENDS)
def test_after_its_transaction_ended_everything_is_refused(begun: Begun, end: End, may_stay: bool) -> None:
    message = "may be permanent and cannot be undone" if may_stay else "Nothing of it is kept"
    session, block = begun.session, begun.session.savepoint()
    with pytest.raises(SessionLost, match=message), begun.effect():
        begun.write("k", "until then")
        with suppress(psycopg.Error):
            end(begun)
        with suppress(SessionLost, psycopg.Error):
            begun.write("other", "after it")
    for refused in (
        begun.effect().__enter__, session.savepoint, session.verify_isolation, session.changes,
        lambda: session.prepare("a-1"), block.release, block.rollback, *[session.undo] * may_stay,
    ):  # fmt: skip
        with pytest.raises(SessionLost, match=message):
            refused()
    session.undo()
    assert (begun.adapter.landed("a-1"), begun.outside("other")) == (False, None)
    assert may_stay or begun.outside("k") is None


def test_a_session_that_lost_its_transaction_between_effects_does_not_commit(begun: Begun) -> None:
    with begun.effect():
        begun.write("k", "until then")
    begun.is_terminated()
    with pytest.raises(psycopg.OperationalError):
        begun.session.prepare("a-1")
    with pytest.raises(SessionLost, match="Nothing of it is kept"):
        begun.session.prepare("a-1")
    begun.session.undo()
    assert (begun.outside("k"), begun.adapter.landed("a-1")) == (None, False)


def test_an_interrupt_is_not_replaced_by_another_error(begun: Begun) -> None:
    with pytest.raises(KeyboardInterrupt), begun.effect():
        begun.says("COMMIT")
        raise KeyboardInterrupt
    with pytest.raises(SessionLost):
        begun.session.undo()


def test_a_tool_that_swallows_an_error_of_the_database_has_failed(begun: Begun) -> None:
    with pytest.raises(psycopg.errors.InFailedSqlTransaction), begun.effect():
        begun.write("k", "half")
        with pytest.raises(psycopg.errors.UndefinedTable):
            begun.adapter.execute("SELECT * FROM nowhere")
    commit(begun.session)
    assert (begun.outside("k"), begun.adapter.landed("a-1")) == (None, True)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("arrived", [True, False])
def test_a_commit_whose_answer_is_lost_is_looked_up(begun: Begun, arrived: bool, known: bool) -> None:
    with begun.effect():
        begun.write("k", "new")
    begun.session.prepare("a-1")
    real = begun.session._connection.execute

    def losing(query, *args, **kwargs):
        if arrived:
            real(query, *args, **kwargs)
        raise psycopg.OperationalError("the line broke")

    begun.session._connection.execute = losing  # type: ignore[method-assign]
    if not known:  # the server is away, and may have received the COMMIT
        begun.adapter._conninfo = "host=127.0.0.1 port=1 user=none dbname=gone"
    lost = pytest.raises(psycopg.OperationalError if known else CommitUnknown)
    with nullcontext() if arrived and known else lost:
        begun.session.commit("a-1")
    assert begun.outside("k") == ("new" if arrived else None)


def test_a_server_that_turns_a_commit_into_a_rollback_is_not_believed(begun: Begun) -> None:
    begun.session.prepare("a-1")
    with pytest.raises(psycopg.Error):
        begun.session._connection.execute("SELECT * FROM nowhere")
    with pytest.raises(psycopg.InterfaceError, match="ROLLBACK"):
        begun.session.commit("a-1")
    assert begun.adapter.landed("a-1") is False


def test_a_missing_driver_is_reported_with_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(SettingsError, match=r"countersign-sdk\[postgres\]"):
        PostgresAdapter("dbname=x")
