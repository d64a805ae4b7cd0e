"""How long to wait between tries."""

from __future__ import annotations

import random
from typing import Final

_MAX_DOUBLINGS: Final = 32  # beyond these every `longest` has been reached


def backoff(base: float, tried: int, longest: float) -> float:
    """Seconds: `base` doubled with each of the `tried` tries, `longest` at most, and of that a half or more, by chance,
    so that many who failed together do not come back together.
    """
    doubled: float = base * 2.0 ** min(tried, _MAX_DOUBLINGS)
    return min(doubled, longest) * random.uniform(0.5, 1)  # noqa: S311 - spread, not secrecy
