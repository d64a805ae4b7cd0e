"""Advisory locks: conflicting units run one at a time, on both engines and across replicas."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from policy_service.errors import ForbiddenError, StorageUnavailableError
from policy_service.storage import advisory_locks, postgres
from policy_service.storage.database import Database, StorageLimits, Tx
from policy_service.workflow.authorization import require_active_person
from policy_service.workflow.revocation.revoke import revoke_approver

ONE, OTHER = "1" * 64, "2" * 64
WAITING = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
_PATIENCE_S = 60.0
Unit = Callable[[Tx], Any]


@pytest.fixture
def replica(migrated_url: str) -> Iterator[Database]:
    """Another process's view of the same PostgreSQL database."""
    with Database.open(migrated_url) as database:
        yield database


class Held:
    """A unit that blocks at a given point until it is released."""

    def __init__(self, db: Database, ask: Unit) -> None:
        self._there, self._go = threading.Event(), threading.Event()
        self._threads = ThreadPoolExecutor(1)
        self.ended: Future[datetime] = self._threads.submit(db.write_sync, lambda tx: self._stand(tx, ask))
        assert self._there.wait(_PATIENCE_S)

    def _stand(self, tx: Tx, ask: Unit) -> datetime:
        ask(tx)
        self._there.set()
        assert self._go.wait(_PATIENCE_S)
        return moment(tx.conn)

    def let_go(self) -> datetime:
        """It goes on to its end; when that was."""
        self._go.set()
        self._threads.shutdown()
        return self.ended.result(_PATIENCE_S)


def moment(conn: Connection) -> datetime:
    """The server's clock."""
    found: datetime = conn.execute(text("SELECT clock_timestamp()")).scalar_one()
    return found


def until_it_waits(db: Database, second: Future[Any]) -> None:
    """Return once the second unit waits for a lock, or has ended."""
    while not second.done() and not db.read_sync(lambda conn: conn.execute(WAITING).scalar_one()):
        pass


def second_after(db: Database, replica: Database, first: Unit, second: Unit) -> bool:
    """Whether the second unit went on only after the first had ended."""
    held = Held(db, first)
    with ThreadPoolExecutor(1) as threads:
        went_on = threads.submit(replica.write_sync, lambda tx: (second(tx), moment(tx.conn)))
        until_it_waits(db, went_on)
        return held.let_go() < went_on.result(_PATIENCE_S)[1]


def on(txn: str) -> Unit:
    return lambda tx: advisory_locks.lock_transaction(tx, txn)


def acting(party: str) -> Unit:
    return lambda tx: advisory_locks.lock_shared(tx, party)


def stopping(party: str) -> Unit:
    return lambda tx: advisory_locks.lock_exclusive(tx, party)


def revoking(sub: str) -> Unit:
    return lambda tx: revoke_approver(tx, "idp", sub, "a stolen laptop")


def deciding(sub: str) -> Unit:
    def unit(tx: Tx) -> None:
        with suppress(ForbiddenError):  # where they were revoked first
            require_active_person(tx, "idp", sub)

    return unit


PAIRS = {
    "two units on one transaction": (on(ONE), on(ONE), True),
    "two units on two transactions": (on(ONE), on(OTHER), False),
    "two units that act for one agent": (acting("robot"), acting("robot"), False),
    "a stop waits for who acts": (acting("robot"), stopping("robot"), True),
    "who acts waits for a stop": (stopping("robot"), acting("robot"), True),
    "a stop of another agent does not wait": (acting("robot"), stopping("desk"), False),
    "a revocation waits for who decides": (deciding("maya"), revoking("maya"), True),
    "who decides waits for their revocation": (revoking("maya"), deciding("maya"), True),
    "a revocation of another person does not wait": (deciding("tomas"), revoking("maya"), False),
    "an agent named like a transaction": (on(ONE), stopping(ONE), False),
}


@pytest.mark.parametrize("engine", ["postgresql"])
@pytest.mark.parametrize(("first", "second", "waits"), PAIRS.values(), ids=PAIRS)
def test_locks_order(store: Database, replica: Database, first: Unit, second: Unit, waits: bool) -> None:
    assert second_after(store, replica, first, second) is waits


@pytest.mark.parametrize("engine", ["postgresql"])
def test_a_unit_that_waited_reads_the_clock_again(store: Database, replica: Database) -> None:
    held = Held(store, on(ONE))
    with ThreadPoolExecutor(1) as threads:
        lock = advisory_locks.lock_transaction
        waiting = threads.submit(replica.write_sync, lambda tx: (tx.now, lock(tx, ONE).now))
        until_it_waits(store, waiting)
        ended = held.let_go()
        before, after = waiting.result(_PATIENCE_S)
    assert before < ended < after


def test_a_unit_locks_one_transaction_and_changes_no_other(store: Database) -> None:
    with pytest.raises(RuntimeError, match="one transaction at most"):
        store.write_sync(lambda tx: advisory_locks.lock_transaction(on(ONE)(tx), OTHER))
    for ask in (lambda tx: tx, on(OTHER)):  # without a lock, or with another one
        with pytest.raises(RuntimeError, match="call lock_transaction first"):
            store.write_sync(lambda tx, ask=ask: advisory_locks.require_locked(ask(tx), ONE))
    store.write_sync(lambda tx: advisory_locks.require_locked(advisory_locks.lock_transaction(tx, ONE), ONE))


@pytest.mark.parametrize("engine", ["postgresql"])
def test_a_lock_timeout_asks_the_caller_to_repeat(store: Database, migrated_url: str) -> None:
    """A replica that hangs in a unit does not block others for ever."""
    held = Held(store, on(ONE))
    with Database.open(migrated_url, limits=StorageLimits(busy_timeout_ms=20)) as impatient:
        with pytest.raises(StorageUnavailableError, match="repeat the request"):
            impatient.write_sync(on(ONE))
        held.let_go()
        assert impatient.write_sync(lambda tx: advisory_locks.lock_transaction(tx, ONE).locked_txn) == ONE


@pytest.mark.parametrize("engine", ["postgresql"])
def test_a_dead_replica_loses_its_locks(
    store: Database, replica: Database, monkeypatch: pytest.MonkeyPatch, migrated_url: str
) -> None:
    monkeypatch.setattr(postgres, "_IDLE_MS", 1_000)  # a busy machine opens a connection within it
    with Database.open(migrated_url) as hanging:
        held = Held(hanging, on(ONE))
        assert replica.write_sync(lambda tx: advisory_locks.lock_transaction(tx, ONE).locked_txn) == ONE
        with pytest.raises(StorageUnavailableError):
            held.let_go()


def test_metered_subjects_are_locked_in_one_order(replica: Database) -> None:
    """Two processes order a set of names each by its own hash seed: the order of locks must not depend on it."""
    asked: list[list[int]] = []

    def ask(tx: Tx, names: list[str]) -> None:
        keys: list[int] = []
        event.listen(tx.conn, "before_cursor_execute", lambda *said: keys.append(said[3]["key"]))
        advisory_locks.lock_counters(tx, names)
        asked.append(keys)

    names = [f"agent {n}" for n in range(9)]
    for given in (names, names[::-1]):
        replica.write_sync(lambda tx, given=given: ask(tx, given))  # type: ignore[misc]
    assert asked[0] == asked[1] == sorted(asked[0])
    assert len(asked[0]) == (0 if replica.dialect == "sqlite" else len(names))
