"""What a program may say of a run: its key, and how long it may wait. Checked before anything of it is begun."""

from __future__ import annotations

import math
from typing import Final

from countersign.errors import UNNAMED, MisuseError

MAX_KEY: Final = 200  # characters


def require_key(key: object, of: str = "transaction", *, longest: int = MAX_KEY, why: str = "") -> str:
    """The key of a run, which finds it again.

    Raises:
        MisuseError: it is no text, or of no length that can be kept; `why` says what else it has to hold.
    """
    if key is None:
        raise MisuseError(
            f"this {of} may run again, so it needs a key that is the same at each run: write key='ticket-4711' or "
            "the like"
        )
    if not isinstance(key, str):
        raise MisuseError(f"the key of a {of} is text: write key={str(key)!r} in place of key={key!r}")
    if not 0 < len(key) <= longest:
        raise MisuseError(f"the key of a {of} has 1 to {longest} characters, this has {len(key)}{why}")
    if key.startswith(UNNAMED):
        raise MisuseError(
            f"a key that begins with {UNNAMED!r} is one that nobody gave, and no other run may find it: write another "
            f"than {key!r}"
        )
    if any("\ud800" <= one <= "\udfff" for one in key):  # half a surrogate pair can be neither sent nor kept
        raise MisuseError(f"the key of a {of} is text that can be written as UTF-8, and {key!r} is not")
    return key


def require_wait(wait: object) -> None:
    """Seconds, as many as one likes.

    Raises:
        MisuseError: it is no such number.
    """
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not (math.isfinite(wait) and wait >= 0):
        raise MisuseError(f"wait={wait!r} is no number of seconds; ten minutes are wait=600")
