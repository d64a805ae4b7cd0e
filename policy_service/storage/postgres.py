"""PostgreSQL: one unit of work per transaction, several at once.

READ COMMITTED suffices: races are decided by one conditional UPDATE and its row count, and a unit locks a transaction
id before it reads it (``advisory_locks.py``). A serialization failure, a deadlock, or a unique key that another unit
took first reruns the unit, which then sees the row. A connection lost at COMMIT does not, because the outcome is
unknown: the caller repeats the request under the same key.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

import psycopg
import structlog
from psycopg.abc import RV, PQGen
from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError

from policy_service import metrics
from policy_service.errors import StartError, StorageUnavailableError
from policy_service.storage.advisory_locks import current_time
from policy_service.storage.types import refuse_nul
from policy_service.storage.unit_of_work import (
    Clock,
    QueuedUnit,
    T,
    Tx,
    Unit,
    as_storage_error,
    resolve_futures,
    run_unit,
)

log = structlog.get_logger(__name__)

RERUN_STATES = frozenset({"40001", "40P01", "23505"})  # serialization failure, deadlock, unique key taken
_IDLE_MS = (
    30_000  # a unit computes for milliseconds; a longer idle transaction belongs to a replica that hangs
)
_KEEPALIVE_S = 10  # idle time before the first keepalive, and between two
_KEEPALIVE_COUNT = 2  # unanswered keepalives before the connection is dropped
_USER_TIMEOUT_MS = (1 + _KEEPALIVE_COUNT) * _KEEPALIVE_S * 1_000  # the same for unacknowledged data
_RESPONSE_S = 30.0  # in addition to the lock timeout; a statement takes milliseconds
_RERUN_PAUSE = 0.005  # seconds, doubled with each run; the other transaction finishes meanwhile
_random = random.SystemRandom()
_OTHERS = text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
    "AND application_name LIKE 'countersign%' AND application_name <> current_setting('application_name')"
)


_EPOCH_AND_INDEX = "SELECT (SELECT value FROM meta WHERE name = 'epoch'), (SELECT max(idx) FROM audit)"


class TimedConnection(psycopg.Connection[Any]):
    """A connection that closes itself when one response takes too long.

    Keepalives detect a host that has gone. They do not detect a server that hangs, or one that is gone behind a proxy
    that still acknowledges.
    """

    _response_s: float

    @classmethod
    def connect_within(cls, seconds: float, *args: Any, **options: Any) -> Self:
        """Connect; each response may take this many seconds."""
        connection = cls.connect(*args, **options)
        connection._response_s = seconds
        return connection

    def wait(self, gen: PQGen[RV], *args: Any, **more: Any) -> RV:
        """Run one exchange with the server; psycopg calls this for each.

        Raises:
            psycopg.OperationalError: no response in time; the connection is closed, because its state is unknown.
        """
        try:
            return super().wait(_with_timeout(gen, self._response_s), *args, **more)
        except _ResponseTimeoutError:
            self.close()
            raise


class _ResponseTimeoutError(psycopg.OperationalError):
    """No response in time."""


def _with_timeout(gen: PQGen[RV], seconds: float) -> PQGen[RV]:
    """The driver's own steps, with a deadline. Without input the driver resumes the generator ten times a second."""
    until = time.monotonic() + seconds
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > until:
                raise _ResponseTimeoutError(f"the server did not answer within {seconds:g} s")
            wanted = gen.send(ready)
    except StopIteration as done:
        answer: RV = done.value
        return answer


def count_other_connections(conn: Connection) -> int:
    """How many connections other processes of this service have."""
    found: int = conn.execute(_OTHERS).scalar_one()
    return found


def open_pool(url: URL, *, connections: int, read_only: bool, lock_timeout_ms: int, name: str) -> Engine:
    """An engine over a small pool; times arrive in UTC. Locks, responses and idle transactions all have a timeout.
    ``name`` is its ``application_name`` on the server.
    """
    session = {  # on the server: detects a replica that has gone
        "application_name": name,
        "timezone": "UTC",
        "default_transaction_read_only": "on" if read_only else "off",
        "lock_timeout": lock_timeout_ms,
        "idle_in_transaction_session_timeout": _IDLE_MS,
        "tcp_keepalives_idle": _KEEPALIVE_S,
        "tcp_keepalives_interval": _KEEPALIVE_S,
        "tcp_keepalives_count": _KEEPALIVE_COUNT,
    }
    sockets = {  # on this side: detects a server that has gone
        "connect_timeout": _KEEPALIVE_S,
        "keepalives": 1,
        "keepalives_idle": _KEEPALIVE_S,
        "keepalives_interval": _KEEPALIVE_S,
        "keepalives_count": _KEEPALIVE_COUNT,
        "tcp_user_timeout": _USER_TIMEOUT_MS,
    }
    options = " ".join(f"-c {name}={value}" for name, value in session.items())
    engine = create_engine(
        url, pool_size=connections, max_overflow=0, pool_pre_ping=True,
        isolation_level="REPEATABLE READ" if read_only else "READ COMMITTED",
        connect_args={"options": options, **sockets}, hide_parameters=True,
    )  # fmt: skip
    refuse_nul(engine)
    answer_s = _RESPONSE_S + lock_timeout_ms / 1_000

    @event.listens_for(engine, "do_connect")
    def _connect(_dialect: object, _record: object, args: list[Any], options: dict[str, Any]) -> Any:
        return TimedConnection.connect_within(answer_s, *args, **options)

    return engine


def refuse_stale_server(engine: Engine, reached: Callable[[], tuple[int, int]]) -> None:
    """Refuse new connections to another epoch of the database, or to one whose audit log ends before ``reached()``
    (epoch, index). A server may return restored, or as a standby without the last commits. A replica that continued
    would take redeemed releases for unredeemed.
    """

    @event.listens_for(engine, "connect")
    def _check(driver: Any, _record: object) -> None:
        epoch, index = reached()
        try:
            found = driver.execute(_EPOCH_AND_INDEX).fetchone()
            driver.rollback()
        except Exception:
            driver.close()
            raise
        if found[0] != str(epoch) or (found[1] or 0) < index:
            driver.close()
            raise StorageUnavailableError(
                f"the database is in epoch {found[0]} and ends at audit index {found[1] or 0}; this replica has seen "
                f"{index} in epoch {epoch}: stop every replica, and see docs/how-to/backup.md"
            )


def require_durable(engine: Engine) -> None:
    """Refuse a server that acknowledges unwritten commits.

    Raises:
        StartError: ``synchronous_commit`` is off.
    """
    try:
        with engine.connect() as conn:
            setting = conn.execute(text("SHOW synchronous_commit")).scalar_one()
    finally:
        engine.dispose()  # a service that refuses to start keeps no connection
    if setting == "off":
        raise StartError(
            "the database acknowledges commits it may lose (synchronous_commit = off); "
            "run: ALTER ROLE current_user SET synchronous_commit = on"
        )


class PostgresWriter:
    """Runs each unit of work in its own transaction, again where the database asks for it."""

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Clock | None,
        connections: int,
        max_runs: int,
        on_commit: Callable[[], None],
        on_failure: Callable[[str | None], None] = lambda name: None,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._max_runs = max_runs
        self._on_commit = on_commit
        self._on_failure = on_failure
        self._threads = ThreadPoolExecutor(connections, "countersign-write")

    def submit(self, unit: Unit[Any], future: Future[Any] | asyncio.Future[Any]) -> None:
        """Queue a unit; the future is settled after its commit.

        Raises:
            StorageUnavailableError: the writer is closed.
        """
        try:
            self._threads.submit(self._serve, QueuedUnit(unit, future))
        except RuntimeError as error:
            raise StorageUnavailableError(
                "the database is closed, the service is stopping; repeat the request under the same key"
            ) from error

    def close(self) -> None:
        """Finish the queued units, then stop."""
        self._threads.shutdown(wait=True)
        self._engine.dispose()

    def _serve(self, queued: QueuedUnit) -> None:
        try:
            queued.require_not_expired()
            queued.answer = self._run(queued.unit)
        except BaseException as error:  # noqa: BLE001  it is returned to the caller of the unit
            queued.error = as_storage_error(error)
            if isinstance(queued.error, StorageUnavailableError):
                self._on_failure(
                    getattr(getattr(error, "orig", None), "sqlstate", None) or type(error).__name__
                )
        resolve_futures([queued])
        if queued.error is None:
            metrics.COMMIT_UNITS.observe(1)
            self._on_commit()

    def _run(self, unit: Unit[T]) -> T:
        for run in range(1, self._max_runs):
            try:
                return self._once(unit)
            except DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) not in RERUN_STATES:
                    raise
                log.info("unit_rerun", run=run)
                time.sleep(_random.uniform(0, _RERUN_PAUSE * 2**run))
        return self._once(unit)

    def _once(self, unit: Unit[T]) -> T:
        with self._engine.begin() as conn:
            return run_unit(unit, Tx(conn, current_time(conn, self._clock), self._clock))
