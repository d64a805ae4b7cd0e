"""Units of work: the transaction handle, the audit lines and messages a unit writes, and the queue entry a writer runs.

A unit is a plain function of a :class:`Tx`. It touches only the database, because it may run twice and may share its
commit with other units. It returns plain values, because its connection is reused after the commit.

No audit row, no change: a line that cannot be written rolls its unit back. A line is canonical JSON, so no actor and no
reason can forge another line. It holds ids, digests and codes; texts of people and arguments of agents stay in their
own tables. A unit's lines are inserted together, as its last statement. SQLite has one writer, so each gets the next
index there; on PostgreSQL the sequencer assigns indexes after the commit.

A new row that its unit may still change is inserted at the end of the unit, in its final state.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeVar

import sqlalchemy as sa
import structlog
from sqlalchemy import Connection, bindparam, func
from sqlalchemy.exc import DatabaseError, InterfaceError, InternalError, OperationalError

from countersign.contract import canonicalize
from policy_service import metrics
from policy_service.errors import StorageUnavailableError
from policy_service.storage.core import Row, execute_write, fetch, insert_row, table
from policy_service.storage.system_tables import AuditRow, OutboxRow
from policy_service.storage.types import new_id

T = TypeVar("T")
Clock = Callable[[], datetime]

log = structlog.get_logger(__name__)


class AuditLine(NamedTuple):
    """An audit line as a unit wrote it, for metrics and traces."""

    kind: str
    txn: str | None
    effect_id: str | None
    rev: int | None
    at: datetime
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tx:
    """One unit of work: its connection and its time. ``now`` is the same for all of the unit."""

    conn: Connection
    now: datetime
    clock: Clock | None = None  # of this host, or of a test; None: the clock of the database server
    locked_txn: str | None = None  # the transaction id locked by advisory_locks.lock_transaction
    lines: list[AuditLine] = field(default_factory=list)
    unwritten: list[dict[str, Any]] = field(default_factory=list)  # lines not yet inserted
    new_rows: dict[int, Row] = field(default_factory=dict)  # not yet inserted, by id()


MAX_QUEUE_S = 30.0  # by then the caller has timed out and repeats the request under the same key

# Not IntegrityError, DataError, ProgrammingError: those are faults of the unit. A bare DatabaseError
# is a malformed file.
_DATABASE_ERRORS = (OperationalError, InterfaceError, InternalError)

Unit = Callable[[Tx], T]
Query = Callable[[Connection], T]


def utc_now() -> datetime:
    """The host's clock, which an embedded database uses."""
    return datetime.now(UTC)


# -- audit lines and messages --------------------------------------------------------------------------------

_audit = table(AuditRow)
_counter = itertools.count()
_process = secrets.token_hex(4)  # differs between processes; drawn once, because each draw is a system call
_MICROSECONDS = 1_000_000
_MAX_LINES = 16  # per statement; each count is a compiled statement of its own


def append(
    tx: Tx,
    kind: str,
    *,
    actor: str,
    body: Mapping[str, Any],
    txn: str | None = None,
    effect_id: str | None = None,
    rev: int | None = None,
    agent: str | None = None,
) -> None:
    """Write an audit line. ``agent`` is an index for searches, not part of the record.

    Raises:
        AdmissionError: the body is not plain JSON; the unit must not continue.
    """
    rest = f"{next(_counter) & 0xFFFF_FFFF:08x}{_process}"
    tx.unwritten.append(
        {
            "audit_id": f"{int(tx.now.timestamp() * _MICROSECONDS):014x}{rest}", "rest": rest, "kind": kind,
            "actor": actor, "txn": txn, "effect_id": effect_id, "rev": rev, "agent": agent,
            "body": canonicalize(dict(body)), "at": tx.now, "idx": None,
        }
    )  # fmt: skip
    tx.lines.append(AuditLine(kind, txn, effect_id, rev, tx.now, body))


def enqueue(tx: Tx, kind: str, payload: Mapping[str, Any]) -> None:
    """Write a message in the unit of work whose change causes it."""
    tx.conn.execute(
        sa.insert(table(OutboxRow)).values(
            outbox_id=new_id("out", tx.now), lane="", kind=kind, payload=dict(payload), state="waiting", attempts=0,
            next_at=tx.now, created_at=tx.now,
        )
    )  # fmt: skip


def run_unit(unit: Unit[T], tx: Tx) -> T:
    """Run a unit and insert its new rows and audit lines.

    Raises:
        TypeError: the result is a coroutine (the unit was ``async def``) or an open result.
    """
    result = unit(tx)
    for row in tx.new_rows.values():
        insert_row(tx.conn, row)
    tx.new_rows.clear()
    write_lines(tx)
    return require_plain_result(result)


def write_lines(tx: Tx, *, number: bool = True) -> None:
    """Insert the pending audit lines, several per statement, because each statement is a round trip.

    Without ``number`` they get no index on SQLite either.
    """
    if not tx.unwritten:
        return
    dialect = tx.conn.dialect.name
    if number and dialect == "sqlite":
        for idx, line in enumerate(tx.unwritten, highest_index(tx.conn) + 1):
            line["idx"] = idx
    for first in range(0, len(tx.unwritten), _MAX_LINES):
        lines = tx.unwritten[first : first + _MAX_LINES]
        values = {f"{name}_{n}": value for n, line in enumerate(lines) for name, value in line.items()}
        execute_write(tx.conn, _insert(len(lines), dialect), values)
    tx.unwritten.clear()


_HIGHEST = sa.select(func.max(_audit.c.idx))


def highest_index(conn: Connection) -> int:
    """The highest index; 0 for an empty log."""
    ((found,),) = fetch(conn, _HIGHEST, {})
    return found or 0


# An id is microseconds, a counter and random bits: 30 hex digits that sort in the order of writing. On PostgreSQL the
# time is the server's at this statement, after every row lock the unit has waited for. So of two units where one
# depends on the other, the later line sorts later on every replica.
_SERVER_TIME = sa.cast(func.extract("epoch", func.clock_timestamp()) * _MICROSECONDS, sa.BigInteger)


@cache
def _insert(lines: int, dialect: str) -> sa.Insert:
    """An INSERT of this many lines; each parameter is a column's name and the line's number."""
    return sa.insert(_audit).values([_line(n, dialect) for n in range(lines)])


def _line(n: int, dialect: str) -> dict[str, Any]:
    line: dict[str, Any] = {c.name: bindparam(f"{c.name}_{n}", type_=c.type) for c in _audit.c}
    if dialect != "sqlite":
        del line["idx"]
        time_hex = func.lpad(func.to_hex(_SERVER_TIME), 14, "0")
        line["audit_id"] = time_hex.concat(bindparam(f"rest_{n}", type_=sa.String))
    return line


# -- results and errors --------------------------------------------------------------------------------------


def require_plain_result(result: T) -> T:
    """Refuse a result that would still read from the connection after the unit.

    Raises:
        TypeError: a coroutine (the unit was ``async def``) or an open result.
    """
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError("a unit of work is a plain function; it was async and has not run")
    if isinstance(result, sa.Result):
        raise TypeError("a unit of work returned an open result; read the rows inside the unit")
    return result


def as_storage_error(error: BaseException) -> BaseException:
    """The error a caller sees: a fault of the database as StorageUnavailableError, any other unchanged."""
    if isinstance(error, _DATABASE_ERRORS) or type(error) is DatabaseError:
        return storage_unavailable("the database refused the change", error)
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    # A future cannot carry StopIteration, and a SystemExit in a unit must not end the writer.
    carried = RuntimeError(f"a unit of work raised {type(error).__name__}: {error}")
    carried.__cause__ = error
    return carried


def storage_unavailable(what: str, cause: BaseException) -> StorageUnavailableError:
    """Nothing was acknowledged. The cause's text stays in the log, because it may quote a row."""
    error = StorageUnavailableError(
        f"{what}; nothing was acknowledged, repeat the request under the same key"
    )
    error.__cause__ = cause
    return error


# -- the writers' queue --------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class QueuedUnit:
    """A queued unit and the future of its result."""

    unit: Unit[Any]
    future: Future[Any] | asyncio.Future[Any]
    answer: Any = None
    error: BaseException | None = None
    since: float = field(default_factory=time.monotonic)

    def require_not_expired(self) -> None:
        """Refuse to start a unit that waited longer than MAX_QUEUE_S.

        Raises:
            StorageUnavailableError: it has; none of it ran.
        """
        if (waited := time.monotonic() - self.since) > MAX_QUEUE_S:
            raise StorageUnavailableError(
                f"the change waited {waited:.0f} s for the database and was not begun; repeat the request under the "
                "same key"
            )

    def settle(self) -> None:
        """Set the future's result, unless the caller has cancelled it."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.answer)


def _resolve_all(group: Iterable[QueuedUnit]) -> None:
    for queued in group:
        queued.settle()


def resolve_futures(batch: Iterable[QueuedUnit]) -> None:
    """Set the results of a batch, with one wake-up per event loop rather than one per unit."""
    by_loop: dict[asyncio.AbstractEventLoop, list[QueuedUnit]] = {}
    for queued in batch:
        if isinstance(queued.future, asyncio.Future):
            by_loop.setdefault(queued.future.get_loop(), []).append(queued)
        else:
            queued.settle()
    for loop, group in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve_all, group)
        except RuntimeError:  # the loop is closed: the commits stay, no caller is left
            log.warning("answers_undelivered", units=len(group))


class CommitListener(Protocol):
    """Counts and traces committed audit lines. It changes nothing."""

    def before_commit(self, tx: Tx) -> Any:
        """Called in the unit, after its work: read what :meth:`committed` needs from the database."""

    def committed(self, lines: list[AuditLine], known: Any, seconds: float) -> None:
        """The unit is committed; ``known`` is the result of :meth:`before_commit`."""


class ObservedUnit:
    """A unit of work that reports its audit lines to a listener after its commit.

    A unit may run twice; only the lines of the committed run are reported, at most once. Code that needs every line
    reads the audit log.
    """

    def __init__(self, unit: Unit[Any], listener: CommitListener | None) -> None:
        self.unit = unit
        self._listener = listener
        self._lines: list[AuditLine] = []
        self._known: Any = None
        self._began = time.perf_counter()

    def __call__(self, tx: Tx) -> Any:
        self._lines = tx.lines
        answer = self.unit(tx)
        if self._listener is not None and tx.lines:
            self._known = self._listener.before_commit(tx)
        return answer

    def observe(self, future: Future[Any] | asyncio.Future[Any]) -> None:
        """Count the unit as waiting until ``future`` is done."""
        metrics.UNITS_WAITING.inc()
        future.add_done_callback(self._done)

    def _done(self, future: Future[Any] | asyncio.Future[Any]) -> None:
        metrics.UNITS_WAITING.dec()
        if future.cancelled() or future.exception() is not None:
            return
        seconds = time.perf_counter() - self._began
        metrics.UNIT_TIME.observe(seconds)
        if self._listener is None or not self._lines:
            return
        try:
            self._listener.committed(self._lines, self._known, seconds)
        except Exception:
            log.exception("lines_not_told")  # the change is committed even if it was not counted
