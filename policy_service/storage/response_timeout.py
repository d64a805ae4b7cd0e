"""Connections to a database server that wait for no answer for ever.

A host that has gone is noticed by the socket (``postgres.py`` says after how long). A server that hangs, or one that is
gone behind a proxy, is not: the peer goes on acknowledging what it never answers. So every answer has its time, and a
connection that outlives it is closed, because nobody knows what it would be told next.
"""

from __future__ import annotations

import time
from typing import Any, Self

import psycopg
from psycopg.abc import RV, PQGen


class TimedConnection(psycopg.Connection[Any]):
    """A connection whose every answer comes in time, or never."""

    _answer_s: float

    @classmethod
    def within(cls, seconds: float, *args: Any, **options: Any) -> Self:
        """Connect; each answer may take so many seconds."""
        connection = cls.connect(*args, **options)
        connection._answer_s = seconds
        return connection

    def wait(self, gen: PQGen[RV], *args: Any, **more: Any) -> RV:
        """Every exchange with the server passes here.

        Raises:
            psycopg.OperationalError: the answer did not come in time; the connection is closed.
        """
        try:
            return super().wait(_with_timeout(gen, self._answer_s), *args, **more)
        except _ResponseTimeoutError:
            self.close()
            raise


class _ResponseTimeoutError(psycopg.OperationalError):
    """The time for an answer is up."""


def _with_timeout(gen: PQGen[RV], seconds: float) -> PQGen[RV]:
    """The driver's own steps; while nothing comes it takes one every tenth of a second, with nothing ready."""
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
