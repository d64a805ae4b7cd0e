"""What a program may say of a run: its key, how long it may wait, and its claims. Checked before anything is begun."""

from __future__ import annotations

import math
from typing import Final

from pydantic import ValidationError

from countersign.contract.wire import Claimed
from countersign.errors import UNNAMED, MisuseError
from countersign.errors.misuse import require_writable

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
    require_writable(f"the key of a {of}", key)
    return key


def require_wait(wait: object) -> None:
    """Seconds, as many as one likes.

    Raises:
        MisuseError: it is no such number.
    """
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not (math.isfinite(wait) and wait >= 0):
        raise MisuseError(f"wait={wait!r} is no number of seconds; ten minutes are wait=600")


def claimed_of(purpose: object, reasoning: object, on_behalf_of: object) -> Claimed | None:
    """The agent's own words, which people read as such; None where it says nothing.

    Raises:
        MisuseError: one of them is no text, or longer than people are shown.
    """
    said = {"purpose": purpose, "reasoning": reasoning, "on_behalf_of": on_behalf_of}
    said = {name: value for name, value in said.items() if value not in (None, "")}
    for name, value in said.items():
        if isinstance(value, str):
            require_writable(name, value)
    try:
        return Claimed.model_validate(said) if said else None
    except ValidationError as error:
        wrong = error.errors(include_input=False, include_url=False)[0]
        raise MisuseError(f"{wrong['loc'][0]}: {wrong['msg']}") from None
