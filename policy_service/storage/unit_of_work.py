"""The unit of work: what a change may see, and who waits for it.

A unit is a plain function of a :class:`Tx`. It touches nothing but the database, because it may run twice
and because others may be in the same commit; its answer is a plain value, because the connection it came
from moves on.

What a unit of work has to tell once it is committed: the lines of the log it wrote, and how long it took.

A unit may run twice; what it wrote in a run that was thrown away is not told. Nothing told here is asked for again: who
needs to know for certain reads the log.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import perf_counter
from typing import Any, NamedTuple, Protocol, TypeVar

import structlog
from sqlalchemy import Connection, Result
from sqlalchemy.exc import DatabaseError, InterfaceError, InternalError, OperationalError

from policy_service import metrics
from policy_service.errors import StorageUnavailableError

T = TypeVar("T")
Clock = Callable[[], datetime]

log = structlog.get_logger(__name__)


class AuditLine(NamedTuple):
    """A line of the log as a unit wrote it, for whoever counts or traces what was committed."""

    kind: str
    txn: str | None
    effect_id: str | None
    rev: int | None
    at: datetime
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tx:
    """One unit of work: its connection, and the one ``now`` everything in it agrees on."""

    conn: Connection
    now: datetime
    clock: Clock | None = None  # of this host, or of a test; None: the database server's own
    alone_with: str | None = None  # see `storage/alone.py`
    lines: list[AuditLine] = field(default_factory=list)  # what it says to the log
    # those of them that are not yet in the database
    unwritten: list[dict[str, Any]] = field(default_factory=list)


MAX_QUEUE_S = 30.0  # in the queue: by then whoever asked has given up, and asks again under the same key

# Not IntegrityError, DataError, ProgrammingError: those say something about the unit. A bare DatabaseError
# is a malformed file.
_DATABASE_ERRORS = (OperationalError, InterfaceError, InternalError)

Unit = Callable[[Tx], T]
Query = Callable[[Connection], T]


def utc_now() -> datetime:
    """The clock of an embedded database: this host's."""
    return datetime.now(UTC)


def require_plain_result(answer: T) -> T:
    """Refuse an answer that would still be reading when the unit is over.

    Raises:
        TypeError: a coroutine (the unit was ``async def``) or an open result.
    """
    if inspect.iscoroutine(answer):
        answer.close()
        raise TypeError("a unit of work is a plain function; it was async and has not run")
    if isinstance(answer, Result):
        raise TypeError("a unit of work answered with an open result; read the rows inside the unit")
    return answer


def as_storage_error(error: BaseException) -> BaseException:
    """The error a caller sees: the database's own trouble is the world's fault, the rest is left as it is."""
    if isinstance(error, _DATABASE_ERRORS) or type(error) is DatabaseError:
        return storage_unavailable("the database refused the change", error)
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    # A future cannot carry StopIteration, and nobody's SystemExit may end the writer.
    carried = RuntimeError(f"a unit of work raised {type(error).__name__}: {error}")
    carried.__cause__ = error
    return carried


def storage_unavailable(what: str, cause: BaseException) -> StorageUnavailableError:
    """Nothing was acknowledged. The cause's text stays in the log: it may quote a row."""
    error = StorageUnavailableError(
        f"{what}; nothing was acknowledged, repeat the request under the same key"
    )
    error.__cause__ = cause
    return error


@dataclass(slots=True, eq=False)
class QueuedUnit:
    """A unit in the queue, and where its answer goes."""

    unit: Unit[Any]
    future: Future[Any] | asyncio.Future[Any]
    answer: Any = None
    error: BaseException | None = field(default=None)
    since: float = field(default_factory=time.monotonic)

    def require_not_expired(self) -> None:
        """Refuse to begin what has waited for too long.

        Raises:
            StorageUnavailableError: it has; nothing of it was done.
        """
        if (waited := time.monotonic() - self.since) > MAX_QUEUE_S:
            raise StorageUnavailableError(
                f"the change waited {waited:.0f} s for the database and was not begun; repeat the request under the "
                "same key"
            )

    def settle(self) -> None:
        """Give the answer, unless whoever asked has gone away."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.answer)


def _resolve_all(group: Iterable[QueuedUnit]) -> None:
    for waiting in group:
        waiting.settle()


def resolve_futures(batch: Iterable[QueuedUnit]) -> None:
    """Answer everybody of a batch; one wake-up for each event loop, not one for each unit."""
    by_loop: dict[asyncio.AbstractEventLoop, list[QueuedUnit]] = {}
    for waiting in batch:
        if isinstance(waiting.future, asyncio.Future):
            by_loop.setdefault(waiting.future.get_loop(), []).append(waiting)
        else:
            waiting.settle()
    for loop, group in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve_all, group)
        except RuntimeError:  # the loop is closed: what was committed stays, nobody is left to be told
            log.warning("answers_undelivered", units=len(group))


class CommitListener(Protocol):
    """Counts and traces what is committed. It changes nothing and asks for nothing."""

    def before_commit(self, tx: Tx) -> Any:
        """In the unit, when it has done its work: whatever :meth:`committed` will want to know from the database."""

    def committed(self, lines: list[AuditLine], known: Any, seconds: float) -> None:
        """The unit is committed; ``known`` is what :meth:`before_commit` answered."""


class ObservedUnit:
    """A unit of work, and its telling."""

    def __init__(self, unit: Unit[Any], listener: CommitListener | None) -> None:
        self.unit = unit
        self._listener = listener
        self._lines: list[AuditLine] = []
        self._known: Any = None
        self._began = perf_counter()

    def __call__(self, tx: Tx) -> Any:
        self._lines = tx.lines
        answer = self.unit(tx)
        if self._listener is not None and tx.lines:
            self._known = self._listener.before_commit(tx)
        return answer

    def when(self, future: Future[Any] | asyncio.Future[Any]) -> None:
        """The unit is handed over; ``future`` tells when it is over."""
        metrics.UNITS_WAITING.inc()
        future.add_done_callback(self._done)

    def _done(self, future: Future[Any] | asyncio.Future[Any]) -> None:
        """It is over, one way or the other."""
        metrics.UNITS_WAITING.dec()
        if future.cancelled() or future.exception() is not None:
            return
        seconds = perf_counter() - self._began
        metrics.UNIT_TIME.observe(seconds)
        if self._listener is None or not self._lines:
            return
        try:
            self._listener.committed(self._lines, self._known, seconds)
        except Exception:
            log.exception("lines_not_told")  # it is committed whatever became of the count
