"""Looks that were asked for: any number of them while one goes on are one more."""

from __future__ import annotations

import asyncio


class Looks:
    """Who asks never waits; who looks waits here until somebody has asked."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """There may be something new."""
        self._asked.set()

    @property
    def asked(self) -> bool:
        """Whether a look is still to come."""
        return self._asked.is_set()

    async def wait(self) -> None:
        """Until somebody has asked; what is asked from now on is another look."""
        await self._asked.wait()
        self._asked.clear()
