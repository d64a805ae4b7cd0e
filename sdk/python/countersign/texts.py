"""Text from outside the SDK (of exceptions, probes, servers), made storable before it is written, logged or sent.

What comes out of here is a plain `str` that UTF-8 and both journal engines hold: half a surrogate pair (as
`os.fsdecode` makes it) and U+0000 (which PostgreSQL refuses) are written as escapes, and its length is bounded.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

MAX_TEXT: Final = 4096
"""Characters of one text: more than anybody reads in a message."""


def storable(text: str) -> str:
    """The text, with escapes for what cannot be stored, cut off after `MAX_TEXT` characters."""
    plain = str.__str__(text)[:MAX_TEXT]  # a subclass may answer anything to any other method
    escaped = plain.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", r"\x00")
    return escaped[:MAX_TEXT]


def text_of(error: BaseException) -> str:
    """The text of an exception, storable; empty where reading it fails.

    Nothing that its `__str__` raises goes on, not even what would end the program: what became of an effect has to be
    written down, and this is only its description.
    """
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - as above
        return ""
    return storable(text)


def add_note(error: BaseException, note: str) -> None:
    """Add a note to somebody else's exception; one that takes none (its `__notes__` is no list) goes on without."""
    with suppress(Exception):
        BaseException.add_note(error, note)
