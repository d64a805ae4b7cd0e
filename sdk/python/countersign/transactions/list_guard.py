"""Whether reruns of a step ask for the same: a body that stages another list every time would ask people for ever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from countersign.commit.plan import StagedCall
from countersign.errors import RerunDiffers

_DIFFERENT_LISTS_ALLOWED: Final = 1  # the first may be the world having moved; the second is a pattern


class ListGuard:
    """Remembers the last list and counts how often it changed."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._last: list[tuple[str, str]] | None = None
        self._changes = 0

    def forget(self) -> None:
        """What the last run staged was spoilt by somebody else: the next one reads another world."""
        self._last = None

    def require_same(self, calls: Sequence[StagedCall]) -> None:
        """Compare with the run before.

        Raises:
            RerunDiffers: the list changed for the second time, naming the first call that differs.
        """
        now = [(call.tool.name, call.call_key) for call in calls]
        before, self._last = self._last, now
        if before is None or before == now:
            return
        self._changes += 1
        if self._changes > _DIFFERENT_LISTS_ALLOWED:
            position = _first_difference(before, now)
            raise RerunDiffers(self._key, position + 1, _name_at(before, position), _name_at(now, position))


def _first_difference(before: Sequence[tuple[str, str]], now: Sequence[tuple[str, str]]) -> int:
    pairs = zip(before, now, strict=False)
    return next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(before), len(now)))


def _name_at(calls: Sequence[tuple[str, str]], position: int) -> str | None:
    """A call as people recognise it: the tool, and enough of the call key to tell equal tools apart."""
    if position >= len(calls):
        return None
    name, call_key = calls[position]
    return f"{name} ({call_key[:8]})"
