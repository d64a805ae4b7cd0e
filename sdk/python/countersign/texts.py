"""External text (of exceptions, probes, servers), made storable before it is written, logged or sent.

The result is a plain `str` that UTF-8 and both journal engines can store: lone surrogates (as `os.fsdecode` makes them)
and U+0000 (which PostgreSQL refuses) are escaped, and its length is limited.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

MAX_TEXT: Final = 4096
"""Characters of one text: more than a message needs."""


def storable(text: str) -> str:
    """The text with escapes for what cannot be stored, cut after `MAX_TEXT` characters."""
    plain = str.__str__(text)[:MAX_TEXT]  # a subclass may override any other method
    escaped = plain.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", r"\x00")
    return escaped[:MAX_TEXT]


def text_of(error: BaseException) -> str:
    """The text of an exception, storable; empty if reading it fails.

    Nothing that its `__str__` raises propagates, not even an exit: the outcome of an effect has to be recorded, and
    this is only its description.
    """
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - as above
        return ""
    return storable(text)


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception; one that accepts none (its `__notes__` is no list) is left without."""
    with suppress(Exception):
        BaseException.add_note(error, note)
