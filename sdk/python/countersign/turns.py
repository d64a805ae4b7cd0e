"""Live effects of one transaction take turns: a session is one connection, and two effects that run at once in it would
take back each other's work.

Where calls come from several threads and tasks (`txn.parallel()`), each live effect waits until the one before it has
ended. A live tool may call another of the same transaction; then the inner one is part of the outer.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Final

from countersign.current import Place, here
from countersign.errors import NotStageable

_POLL_SECONDS: Final = 0.002  # a task waits for a thread: no event of one loop reaches both


_inside: ContextVar[Turns | None] = ContextVar("countersign_inside_live_effect", default=None)


class Turns:
    """Who may run a live effect now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: Place | None = None

    @property
    def taken_here(self) -> bool:
        """Whether the code that asks is part of a live effect."""
        return _inside.get() is self

    @contextmanager
    def blocking(self, tool: str) -> Iterator[None]:
        """The turn of a plain tool.

        Raises:
            NotStageable: waiting for the effect that is running would never end.
        """
        if self._is_part(tool):
            yield
            return
        if not self._lock.acquire(blocking=False):
            holder = self._holder
            if holder is not None and holder.thread == here().thread:
                raise NotStageable(
                    f"{tool} would stop the event loop for ever, for another task's live effect runs in it; make it "
                    "async, or call it with asyncio.to_thread"
                )
            self._lock.acquire()
        with self._held():
            yield

    @asynccontextmanager
    async def awaiting(self, tool: str) -> AsyncIterator[None]:
        """The turn of an async tool.

        Raises:
            NotStageable: as above.
        """
        if self._is_part(tool):
            yield
            return
        while not self._lock.acquire(blocking=False):  # noqa: ASYNC110 - a thread may hold it
            await asyncio.sleep(_POLL_SECONDS)
        with self._held():
            yield

    def _is_part(self, tool: str) -> bool:
        if _inside.get() is not self:
            return False
        if self._holder != here():
            raise NotStageable(
                f"{tool} was called by a thread or task that another live effect has started, and would wait for it "
                "for ever; call it after that, or from the effect itself"
            )
        return True

    @contextmanager
    def _held(self) -> Iterator[None]:
        self._holder, token = here(), _inside.set(self)
        try:
            yield
        finally:
            _inside.reset(token)
            self._holder = None
            self._lock.release()
