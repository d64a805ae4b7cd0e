"""What is to happen next, by name: a queue that is used up, and what holds when the queue is empty.

The name `"*"` is for every name that has nothing of its own.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from typing import Final, Generic, TypeVar

T = TypeVar("T")
EVERY: Final = "*"


class Script(Generic[T]):
    """Written by the test, read by the fake, on any thread."""

    def __init__(self) -> None:
        self._next: defaultdict[str, deque[T]] = defaultdict(deque)
        self._always: dict[str, T] = {}
        self._lifts = 0

    def next(self, name: str, *steps: T) -> None:
        """These happen once each, in this order, after those already in the queue."""
        self._next[name].extend(steps)

    def always(self, name: str, step: T) -> None:
        """This happens whenever the queue is empty, until it is lifted."""
        self._always[name] = step

    def lift(self) -> None:
        """Nothing happens any more, and what hangs goes on."""
        self._next.clear()
        self._always.clear()
        self._lifts += 1

    async def lifted(self) -> None:
        """Wait until it is, in any thread."""
        lifts = self._lifts
        while self._lifts == lifts:  # noqa: ASYNC110  an event belongs to one thread
            await asyncio.sleep(0.05)

    def left(self) -> int:
        """How many steps of the queues have not happened."""
        return sum(map(len, self._next.values()))

    def step(self, name: str) -> T | None:
        """What happens now; a step of the queue is used up by this."""
        for named in (name, EVERY):
            if self._next.get(named):
                return self._next[named].popleft()
            if named in self._always:
                return self._always[named]
        return None
