"""What a unit of work has to tell once it is committed: the lines of the log it wrote, and how long it took.

A unit may run twice; what it wrote in a run that was thrown away is not told. Nothing told here is asked for again: who
needs to know for certain reads the log.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from time import perf_counter
from typing import Any, Protocol

import structlog

from policy_service import metrics
from policy_service.storage.unit import Line, Tx, Unit

log = structlog.get_logger(__name__)


class Listener(Protocol):
    """Counts and traces what is committed. It changes nothing and asks for nothing."""

    def before_commit(self, tx: Tx) -> Any:
        """In the unit, when it has done its work: whatever :meth:`committed` will want to know from the database."""

    def committed(self, lines: list[Line], known: Any, seconds: float) -> None:
        """The unit is committed; ``known`` is what :meth:`before_commit` answered."""


class Told:
    """A unit of work, and its telling."""

    def __init__(self, unit: Unit[Any], listener: Listener | None) -> None:
        self.unit = unit
        self._listener = listener
        self._lines: list[Line] = []
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
