"""A database that does not respond: waits are bounded, and so is the queue."""

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from sqlalchemy import Connection, make_url, text

from policy_service.errors import StorageUnavailableError
from policy_service.storage import database, postgres, unit_of_work
from policy_service.storage.database import Database, StorageLimits, Tx
from tests.fakes.silent import Silent
from tests.unit.storage.databases import execute

_CAPACITY = 5
_BOUND_S = 20.0  # well above what each test waits for, far below what TCP would


def add(n: int) -> Callable[[Tx], int]:
    return lambda tx: tx.conn.execute(text("INSERT INTO t VALUES (:n)"), {"n": n}).rowcount


def numbers(conn: Connection) -> list[int]:
    return list(conn.scalars(text("SELECT n FROM t ORDER BY n")))


# -- a server that has gone ------------------------------------------------------------------------------------------


TCP = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": 30_000}


def test_every_connection_has_keepalives(postgres_url: str) -> None:
    with Database.open(postgres_url) as db:
        assert len(db._pools) == 2
        for pool in db._pools:
            with pool.connect() as conn:
                driver: Any = conn.connection.driver_connection
                with socket.socket(fileno=os.dup(driver.pgconn.socket)) as ours:
                    assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                    for name, value in TCP.items():
                        assert ours.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value, name


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Silent]:
    """A proxy between the service and its server."""
    url = make_url(postgres_url)
    with Silent(str(url.host), url.port or 5432) as started:
        yield started


async def test_silence_times_out(postgres_url: str, proxy: Silent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_RESPONSE_S", 1.0)
    monkeypatch.setattr(postgres, "_KEEPALIVE_S", 2)
    url = make_url(postgres_url).set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
    with Database.open(url, limits=StorageLimits(busy_timeout_ms=100)) as db:
        execute(db, "CREATE TABLE t (n INTEGER)")

        def silenced(tx: Tx) -> None:
            add(1)(tx)
            proxy.silent.set()
            add(2)(tx)

        try:
            async with asyncio.timeout(_BOUND_S):
                for asked in (db.write(silenced), db.write(add(3)), db.read(numbers)):
                    with pytest.raises(StorageUnavailableError):
                        await asked
                proxy.silent.clear()
                await db.write(add(4))
                assert await db.read(numbers) == [4]
        finally:
            proxy.cut()  # or a waiting unit keeps the database from closing


# -- more than can be served -----------------------------------------------------------------------------------------


Busy = tuple[Database, threading.Event]


@pytest.fixture
def busy(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Busy]:
    """A database with a table, whose writes wait for a signal."""
    go, begun = threading.Event(), threading.Event()

    def hold(tx: Tx) -> None:
        begun.set()
        assert go.wait(_BOUND_S)

    monkeypatch.setattr(database, "MAX_PENDING_UNITS", _CAPACITY)
    with Database.open(database_url, limits=StorageLimits(pool_size=1)) as db:
        execute(db, "CREATE TABLE t (n INTEGER)")
        held: Future[None] = Future()
        db._writer.submit(hold, held)
        assert begun.wait(_BOUND_S)
        yield db, go
        go.set()


async def test_a_full_queue_refuses_and_changes_nothing(busy: Busy) -> None:
    db, go = busy
    waiting = [asyncio.create_task(db.write(add(n))) for n in range(_CAPACITY)]
    await asyncio.sleep(0)
    for refused in (db.write, lambda unit: asyncio.to_thread(db.write_sync, unit)):
        with pytest.raises(StorageUnavailableError, match="too many"):
            await refused(add(-1))
    go.set()
    await asyncio.gather(*waiting)
    for n in range(_CAPACITY, 2 * _CAPACITY):  # there is capacity again
        await db.write(add(n))
    assert await db.read(numbers) == list(range(2 * _CAPACITY))


async def test_a_unit_queued_too_long_is_not_run(busy: Busy, monkeypatch: pytest.MonkeyPatch) -> None:
    db, go = busy
    stale = [asyncio.create_task(db.write(add(n))) for n in range(3)]
    await asyncio.sleep(0)
    monkeypatch.setattr(unit_of_work, "MAX_QUEUE_S", 0.0)
    go.set()
    for one in await asyncio.gather(*stale, return_exceptions=True):
        assert isinstance(one, StorageUnavailableError)
    monkeypatch.undo()
    await db.write(add(7))
    assert await db.read(numbers) == [7]
