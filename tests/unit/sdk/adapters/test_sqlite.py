"""SQLite may end transactions by itself; no live work remains, and every later use raises."""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from countersign import SessionLost
from tests.unit.sdk.adapters.bank import BOOK_AGAIN, CREDIT, Bank, credit, write_blob

Use = Callable[[sqlite3.Connection], object]
NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
EVERYTHING = f"{NUMBERS} INSERT INTO guarded SELECT i FROM n"


def _interrupted(connection: sqlite3.Connection) -> None:
    connection.execute("DROP TRIGGER guard")
    threading.Timer(0.05, connection.interrupt).start()
    connection.execute(EVERYTHING)


FILL = ("PRAGMA max_page_count = 40", "PRAGMA cache_size = 5", "DROP TRIGGER guard", EVERYTHING)
ENDS: dict[str, Use] = {
    "INSERT OR ROLLBACK": lambda it: it.execute("INSERT OR ROLLBACK INTO accounts VALUES ('a', 1)"),
    "a schema's ON CONFLICT ROLLBACK": lambda it: it.execute(BOOK_AGAIN),
    "RAISE(ROLLBACK) in a trigger": lambda it: it.execute("INSERT INTO guarded VALUES ('x')"),
    "an interrupt": _interrupted,
    "a full disk": lambda it: [it.execute(statement) for statement in FILL],
    "its connection is closed": lambda it: it.close(),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_after_sqlite_ended_the_transaction_everything_is_refused(bank: Bank, end: Use) -> None:
    session, block = bank.session, bank.session.savepoint()
    with bank.effect():
        credit(bank.connection)
    with pytest.raises(SessionLost, match="Nothing of it is kept"), bank.effect():
        end(bank.connection)
    for refused in (
        bank.effect().__enter__, session.savepoint, session.verify_isolation, session.changes,
        lambda: session.prepare("a-1"), block.release, block.rollback,
    ):  # fmt: skip
        with pytest.raises(SessionLost):
            refused()
    with pytest.raises(sqlite3.Error):
        session.commit("a-1")
    session.undo()
    assert (bank.balances(), bank.adapter.landed("a-1")) == ([100, 100], False)


def _commits(connection: sqlite3.Connection) -> None:
    connection.isolation_level = "DEFERRED"
    credit(connection)
    connection.commit()


ALL = "UPDATE accounts SET cents = 5"
WRITES: dict[str, Use] = {
    "a statement that is compiled already": credit,
    "another statement": lambda it: it.execute(ALL),
    "a savepoint": lambda it: it.execute("SAVEPOINT mine") and it.execute(ALL),
    "a blob": write_blob,
    "a transaction of its own": _commits,
    "a script": lambda it: it.executescript(ALL),
    "a cursor of its own": lambda it: sqlite3.Cursor(it).execute(CREDIT, ("a",)),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_tool_that_swallows_it_and_goes_on_writes_nothing(bank: Bank, write: Use) -> None:
    with pytest.raises(SessionLost), bank.effect():
        credit(bank.connection)
        with suppress(sqlite3.IntegrityError):
            bank.connection.execute(BOOK_AGAIN)
        with suppress(Exception):
            write(bank.connection)
    assert bank.balances() == [100, 100]


def test_an_outer_tool_does_not_hide_it(bank: Bank) -> None:
    with pytest.raises(SessionLost), bank.effect():
        credit(bank.connection)
        with suppress(SessionLost), bank.effect():
            bank.connection.execute(BOOK_AGAIN)
    assert bank.balances() == [100, 100]


def test_an_interrupt_is_not_replaced_by_another_error(bank: Bank) -> None:
    with pytest.raises(KeyboardInterrupt), bank.effect():
        with suppress(sqlite3.IntegrityError):
            bank.connection.execute(BOOK_AGAIN)
        raise KeyboardInterrupt
    with pytest.raises(SessionLost):
        bank.session.prepare("a-1")


def test_a_failed_rollback_of_an_effect_loses_the_session(bank: Bank) -> None:
    """A query timeout: what was half read keeps the interrupt alive, and it meets our own statement."""
    with pytest.raises(SessionLost, match="interrupted"), bank.effect():
        credit(bank.connection)
        half_read = bank.connection.execute("SELECT id FROM accounts")
        half_read.fetchone()
        bank.connection.interrupt()
        raise ZeroDivisionError
    half_read.close()
    with pytest.raises(SessionLost):
        bank.session.prepare("a-1")
    bank.session.undo()
    assert bank.balances() == [100, 100]


def test_a_failed_undo_is_reported(bank: Bank) -> None:
    with bank.effect():
        half_read = bank.connection.execute("SELECT id FROM accounts")
        half_read.fetchone()
    bank.session._connection.interrupt()
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        bank.session.undo()
    bank.session.undo()


# ------------------------------------------------------------------------------ what tools may not do to it

KEPT_ON: list[Use] = [
    lambda kept: kept.commit(), lambda kept: kept.execute("COMMIT"), lambda kept: kept.execute("SELECT 1"),
    credit, write_blob,
]  # fmt: skip


@pytest.mark.parametrize("use", KEPT_ON)
def test_a_connection_that_a_tool_kept_does_nothing_outside_its_effects(bank: Bank, use: Use) -> None:
    with bank.effect():
        kept = bank.connection
        credit(kept)
    with pytest.raises(Exception, match=r"not authorized|prohibited|outside"):
        use(kept)
    assert bank.balances() == [100, 100]
    bank.commit()
    assert bank.balances() == [101, 100]


FORBIDDEN = [
    "PRAGMA journal_mode = OFF", "PRAGMA main.JOURNAL_MODE = 'off'", "PRAGMA journal_mode = DELETE",
    "RELEASE countersign_effect", 'ROLLBACK TO "Countersign_Effect"', "RELEASE countersign_block",
]  # fmt: skip


@pytest.mark.parametrize("statement", FORBIDDEN)
def test_undo_keeps_what_it_needs(bank: Bank, statement: str) -> None:
    block = bank.session.savepoint()
    with bank.effect():
        credit(bank.connection)
        with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
            bank.connection.execute(statement)
        assert bank.connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    block.rollback()
    bank.commit()
    assert bank.balances() == [100, 100]


def test_a_tool_cannot_take_the_guard_off(bank: Bank) -> None:
    with bank.effect():
        connection = bank.connection
        for take_off in (
            lambda: connection.set_authorizer(None),
            lambda: connection.set_authorizer(lambda *_: sqlite3.SQLITE_OK),
            lambda: connection.deserialize(b""),
        ):
            with pytest.raises(sqlite3.NotSupportedError):
                take_off()
        credit(connection)
        with pytest.raises(sqlite3.DatabaseError):
            connection.commit()
    bank.session.undo()
    assert bank.balances() == [100, 100]


def test_a_tool_has_savepoints_of_its_own(bank: Bank) -> None:
    with bank.effect():
        bank.connection.execute("SAVEPOINT mine")
        credit(bank.connection)
        bank.connection.execute("ROLLBACK TO mine")
        credit(bank.connection, "b")
    bank.commit()
    assert bank.balances() == [100, 101]


@pytest.mark.parametrize("inner_raises", [False, True])
def test_an_outer_effect_stays_guarded_and_watched_after_an_inner_one(bank: Bank, inner_raises: bool) -> None:
    with bank.effect():
        with suppress(ZeroDivisionError), bank.effect():
            credit(bank.connection)
            if inner_raises:
                raise ZeroDivisionError
        with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
            bank.connection.commit()
        bank.connection.execute("DELETE FROM booked")  # a table that nothing touched before
    keys = [one.key for one in bank.session.changes() or ()]
    assert keys == (["booked[o-1]"] if inner_raises else ["accounts[a]", "booked[o-1]"])
