"""The connection that live tools on SQLite get: kept too long, or bypassed it."""

import contextvars
import os
import signal
import sqlite3
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from countersign.adapters import SQLiteAdapter
from countersign.adapters.sqlite_connection import LiveConnection
from tests.unit.sdk.adapters.bank import Bank, write_blob

PUT = "INSERT INTO notes VALUES (?)"


def heard_in_a_thread(act, *, with_context: bool = True):
    """What it answers once it is let go."""
    answers: list[str] = []

    def tries() -> None:
        try:
            act()
            answers.append("done")
        except Exception as error:  # noqa: BLE001 - an exception in a thread is lost
            answers.append(type(error).__name__)

    run = contextvars.copy_context().run if with_context else contextvars.Context().run
    thread = threading.Thread(target=run, args=(tries,))

    def let_go() -> str:
        thread.start()
        thread.join()
        return answers[0]

    return let_go


STATEMENTS = {
    "one": lambda connection: connection.execute(PUT, ("late",)),
    "many": lambda connection: connection.executemany(PUT, [("late",)]),
}


@pytest.mark.parametrize("write", [*STATEMENTS.values(), write_blob], ids=[*STATEMENTS, "blob"])
def test_one_kept_too_long_writes_nothing(bank: Bank, write) -> None:
    late = []
    with pytest.raises(TimeoutError), bank.effect():
        kept = bank.connection
        late.append(heard_in_a_thread(lambda: write(kept)))
        raise TimeoutError
    with bank.effect():
        bank.connection.execute(PUT, ("mine",))
        assert late[0]() in {"DatabaseError", "ProgrammingError"}
    bank.commit()
    assert bank.noted() == ["mine"]


@pytest.mark.parametrize("with_context", [True, False])
def test_a_thread_that_the_effect_waits_for_writes_with_it(bank: Bank, with_context: bool) -> None:
    """Also one without the context, as a plain thread is."""
    with bank.effect():
        kept = bank.connection
        assert heard_in_a_thread(lambda: kept.execute(PUT, ("late",)), with_context=with_context)() == "done"
    bank.commit()
    assert bank.noted() == ["late"]


def test_an_effect_does_not_end_between_looking_at_a_statement_and_doing_it(bank: Bank) -> None:
    begun = threading.Event()

    class Slow:
        def __conform__(self, protocol: object) -> str:
            begun.set()
            time.sleep(0.2)
            return "late"

    with pytest.raises(TimeoutError), bank.effect():
        late = heard_in_a_thread(lambda: bank.connection.execute(PUT, (Slow(),)))
        thread = threading.Thread(target=late)
        thread.start()
        assert begun.wait(10)
        raise TimeoutError
    thread.join()
    bank.commit()
    assert bank.noted() == []


CURSORS = [
    sqlite3.Cursor,
    lambda connection: connection.cursor(type("Own", (sqlite3.Cursor,), {})),
]


@pytest.mark.parametrize("cursor", CURSORS)
def test_a_foreign_cursor_runs_no_statement(bank: Bank, cursor) -> None:
    with bank.effect():
        for run_internal in (
            lambda it: it.execute(PUT, ("bare",)),
            lambda it: it.executemany(PUT, [("bare",)]),
            lambda it: it.executescript("INSERT INTO notes VALUES ('bare')"),
        ):
            with pytest.raises(sqlite3.Error):
                run_internal(cursor(bank.connection))
        assert bank.connection.execute("SELECT count(*) FROM notes").fetchone() == (0,)


@pytest.mark.parametrize("by", [sqlite3.Cursor, lambda connection: connection], ids=["bare", "its own"])
def test_no_row_survives_an_ended_transaction(bank: Bank, by) -> None:
    def rows():
        yield ("r1",)
        with suppress(sqlite3.Error):
            by(bank.connection).execute("INSERT OR ROLLBACK INTO notes VALUES ('dup')")
        yield ("r2",)

    with suppress(Exception), bank.effect():
        bank.connection.execute(PUT, ("dup",))
        by(bank.connection).executemany(PUT, rows())
        raise ValueError
    bank.session.undo()
    assert bank.noted() == []


# ----------------------------------------------------------------------------------------------------- Ctrl-C


@pytest.fixture
def ctrl_c():
    """What a terminal sends, to this process and now."""

    def send() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield send
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def asked(monkeypatch, ctrl_c):
    """Let it come while SQLite asks about such an action for the first time."""

    def arm(action: int) -> None:
        real, left = LiveConnection._allowed, [action]

        def allowed(self: LiveConnection, what: int, *more) -> int:
            if what in left:
                left.clear()
                ctrl_c()
            return real(self, what, *more)

        monkeypatch.setattr(LiveConnection, "_allowed", allowed)

    return arm


@pytest.mark.parametrize("act", STATEMENTS.values(), ids=STATEMENTS)
def test_an_interrupted_authorizer_allows(bank: Bank, asked, act) -> None:
    """SQLite takes what its authorizer raises for a no; it was `DatabaseError: not authorized`."""
    with bank.effect():
        asked(sqlite3.SQLITE_INSERT)
        with pytest.raises(KeyboardInterrupt):
            act(bank.connection)
        assert bank.connection.execute("SELECT t FROM notes").fetchall() == [("late",)]
    bank.session.undo()
    assert bank.noted() == []


def test_an_interrupt_of_the_authorizer_keeps_the_commit(bank: Bank, asked) -> None:
    with bank.effect():
        bank.connection.execute(PUT, ("a",))
    bank.session.prepare("a-1")
    asked(sqlite3.SQLITE_TRANSACTION)
    with pytest.raises(KeyboardInterrupt):
        bank.session.commit("a-1")
    assert (bank.noted(), bank.adapter.landed("a-1")) == (["a"], True)
    assert not bank.session._connection.is_open


def test_an_interrupt_of_a_wait_leaves_the_lock_to_others(path: Path, ctrl_c) -> None:
    """The lock was got after all, and kept until a garbage collection."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        timers = [threading.Timer(0.1, ctrl_c), threading.Timer(0.4, lambda: other.execute("ROLLBACK"))]
        for timer in timers:
            timer.start()
        with pytest.raises(KeyboardInterrupt) as kept:
            SQLiteAdapter(path, busy_seconds=5).begin("t-1")
        for timer in timers:
            timer.join()
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
    assert kept.value.__traceback__ is not None  # what holds the frames, and what they hold
