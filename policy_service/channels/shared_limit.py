"""Memory for senders that are not identified yet: one limit for all connections of this process.

When together they hold more, the oldest holder is dropped. An honest request takes milliseconds, so the oldest one is
slow; refusing the newest instead would let a few slow senders lock out everybody else.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final


class SharedLimit:
    """Bytes by holder, the oldest first."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self._holders: dict[Hashable, tuple[int, Callable[[], None]]] = {}

    def hold(self, holder: Hashable, size: int, drop: Callable[[], None]) -> None:
        """Record that ``holder`` has ``size`` bytes now. ``drop`` makes it let go of them; it may be called at once."""
        before, _ = self._holders.get(holder, (0, drop))
        self._holders[holder] = (size, drop)
        self.held_bytes += size - before
        while self.held_bytes > self.max_bytes:
            oldest, (_, drop_oldest) = next(iter(self._holders.items()))
            self.release(oldest)
            drop_oldest()

    def release(self, holder: Hashable) -> None:
        """Forget ``holder``, if it is known."""
        size, _ = self._holders.pop(holder, (0, None))
        self.held_bytes -= size


UNIDENTIFIED: Final = SharedLimit(16 * 1024 * 1024)  # several hundred of the usual bodies at the same moment
