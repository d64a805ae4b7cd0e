"""Waiting for what sets no event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


async def until(look: Callable[[], Found], seconds: float = 10.0) -> Found:
    """What a look finds at last."""
    async with asyncio.timeout(seconds):
        while not (found := look()):  # noqa: ASYNC110  nothing sets an event
            await asyncio.sleep(0.02)
    return found
