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

from countersign.errors import NotStageable, OutsideTransaction
from countersign.tools.current import Place, here

_POLL_SECONDS: Final = 0.002  # a task waits for a thread: no event of one loop reaches both


class _Turn:
    """One live effect that runs; whoever it starts has it too, and keeps it when it is over."""

    def __init__(self, turns: Turns) -> None:
        self.turns, self.over = turns, False


_inside: ContextVar[_Turn | None] = ContextVar("countersign_inside_live_effect", default=None)


class Turns:
    """Who may run a live effect now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: Place | None = None
        self._block = 0  # which block may run effects now

    @property
    def taken_here(self) -> bool:
        """Whether the code that asks is part of a live effect."""
        turn = _inside.get()
        return turn is not None and turn.turns is self

    def end_block(self) -> bool:
        """The block is over: who still waits for a turn is refused. Answers whether nobody is in the middle of one."""
        self._block += 1
        return not self._lock.locked() or self._holder == here()

    @contextmanager
    def blocking(self, tool: str) -> Iterator[None]:
        """The turn of a plain tool.

        Raises:
            NotStageable: waiting for the effect that is running would never end.
            OutsideTransaction: the block was over first.
        """
        if self._is_part(tool):
            yield
            return
        block = self._block
        if not self._lock.acquire(blocking=False):
            holder = self._holder
            if holder is not None and holder.thread == here().thread:
                raise NotStageable(
                    f"{tool} would stop the event loop for ever, for another task's live effect runs in it; make it "
                    "async, or call it with asyncio.to_thread"
                )
            self._lock.acquire()
        with self._held():
            self._require_same(block, tool)
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
        block = self._block
        while not self._lock.acquire(blocking=False):  # noqa: ASYNC110 - a thread may hold it
            await asyncio.sleep(_POLL_SECONDS)
        with self._held():
            self._require_same(block, tool)
            yield

    def _require_same(self, block: int, tool: str) -> None:
        if block != self._block:
            raise OutsideTransaction(
                f"{tool} waited for its turn until its block was over; wait inside the block for every thread and task "
                "that it has started"
            )

    def _is_part(self, tool: str) -> bool:
        turn = _inside.get()
        if turn is None or turn.turns is not self:
            return False
        if turn.over:
            raise NotStageable(
                f"{tool} was called by a thread or task that a live effect has started and that goes on after it; wait "
                "for it inside that effect, or start it outside"
            )
        if self._holder != here():
            raise NotStageable(
                f"{tool} was called by a thread or task that another live effect has started, and would wait for it "
                "for ever; call it after that, or from the effect itself"
            )
        return True

    @contextmanager
    def _held(self) -> Iterator[None]:
        turn = _Turn(self)
        self._holder, token = here(), _inside.set(turn)
        try:
            yield
        finally:
            turn.over = True
            _inside.reset(token)
            self._holder = None
            self._lock.release()
