"""How a shared database is written: one unit a transaction, several at once.

READ COMMITTED is enough because races are decided by one conditional UPDATE and its row count, and because a
unit that reads a transaction before it moves it is alone with it (``alone.py``). A serialization failure or
a deadlock is run again with the same unit, and so is a unique key that another unit took first: run again,
the unit sees the row. A connection lost at COMMIT is *not*, because nobody knows whether it happened: the
caller repeats under the same key and finds out.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import structlog
from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError

from policy_service import metrics
from policy_service.errors import StartError, StorageUnavailableError
from policy_service.storage.advisory_locks import current_time
from policy_service.storage.audit_writer import run_unit
from policy_service.storage.types import refuse_nul
from policy_service.storage.unit_of_work import (
    Clock,
    QueuedUnit,
    T,
    Tx,
    Unit,
    as_storage_error,
    require_plain_result,
    resolve_futures,
)

log = structlog.get_logger(__name__)

RERUN_STATES = frozenset({"40001", "40P01", "23505"})  # serialization failure, deadlock, unique key taken
_IDLE_MS = (
    30_000  # a unit computes for milliseconds; one that is silent so long belongs to a replica that hangs
)
_KEEPALIVE_S = 10  # before a peer that says nothing is asked, and between two questions
_KEEPALIVE_COUNT = 2  # without an answer: then it is gone
_USER_TIMEOUT_MS = (
    (1 + _KEEPALIVE_COUNT) * _KEEPALIVE_S * 1_000
)  # the same for what was sent and never acknowledged
_RESPONSE_S = 30.0  # beyond the wait for a lock: a statement takes milliseconds
_RERUN_PAUSE = 0.005  # seconds, doubled with each run: long enough for the other transaction to finish
_random = random.SystemRandom()
_NAME = "countersign"
_OTHERS = text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
    "AND application_name LIKE 'countersign%' AND application_name <> current_setting('application_name')"
)


_EPOCH_AND_INDEX = "SELECT (SELECT value FROM meta WHERE name = 'epoch'), (SELECT max(idx) FROM audit)"


def make_application_name() -> str:
    """What the server knows one open database by."""
    return f"{_NAME}-{secrets.token_hex(8)}"


def count_other_connections(conn: Connection) -> int:
    """How many connections of other processes of ours there are."""
    found: int = conn.execute(_OTHERS).scalar_one()
    return found


def open_pool(
    url: URL, *, connections: int, read_only: bool, lock_timeout_ms: int, name: str = _NAME
) -> Engine:
    """An engine over a small pool; times arrive in UTC. Nothing waits for ever: not for a lock, not for a server that
    does not answer, and no lock for a replica that has gone away in the middle of a unit. The server knows it by
    ``name``.
    """
    from policy_service.storage.response_timeout import (
        TimedConnection,  # and the driver: SQLite starts without
    )

    session = {  # these are the server's: so it notices a replica that has gone
        "application_name": name,
        "timezone": "UTC",
        "default_transaction_read_only": "on" if read_only else "off",
        "lock_timeout": lock_timeout_ms,
        "idle_in_transaction_session_timeout": _IDLE_MS,
        "tcp_keepalives_idle": _KEEPALIVE_S,
        "tcp_keepalives_interval": _KEEPALIVE_S,
        "tcp_keepalives_count": _KEEPALIVE_COUNT,
    }
    sockets = {  # and these are ours, for a server that has gone
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
        return TimedConnection.within(answer_s, *args, **options)

    return engine


def refuse_stale_server(engine: Engine, reached: Callable[[], tuple[int, int]]) -> None:
    """Use no new connection that leads to another incarnation of the database, or to one whose log ends before what
    ``reached`` tells (epoch, index): a server that went away may come back restored, or as a standby that lacks the
    last commits, and a replica that went on would take what was redeemed for not redeemed.
    """

    @event.listens_for(engine, "connect")
    def _look(driver: Any, _record: object) -> None:
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
    """Refuse a server that acknowledges what it has not written.

    Raises:
        StartError: ``synchronous_commit`` is off.
    """
    try:
        with engine.connect() as conn:
            setting = conn.execute(text("SHOW synchronous_commit")).scalar_one()
    finally:
        engine.dispose()  # a service that refuses to start leaves no connection behind
    if setting == "off":
        raise StartError(
            "the database acknowledges commits it may lose (synchronous_commit = off); "
            "run: ALTER ROLE current_user SET synchronous_commit = on"
        )


class PostgresWriter:
    """Runs each unit of work in a transaction of its own, again where the database asks for it."""

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
        """Finish what waits, then stop."""
        self._threads.shutdown(wait=True)
        self._engine.dispose()

    def _serve(self, waiting: QueuedUnit) -> None:
        try:
            waiting.require_not_expired()
            waiting.answer = self._run(waiting.unit)
        except BaseException as error:  # noqa: BLE001  it belongs to whoever sent the unit
            waiting.error = as_storage_error(error)
            if isinstance(waiting.error, StorageUnavailableError):
                self._on_failure(
                    getattr(getattr(error, "orig", None), "sqlstate", None) or type(error).__name__
                )
        resolve_futures([waiting])
        if waiting.error is None:
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
            return require_plain_result(
                run_unit(unit, Tx(conn, current_time(conn, self._clock), self._clock))
            )
