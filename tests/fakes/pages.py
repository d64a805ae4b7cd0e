"""What a page says, for tests that look at several of its sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import unescape


def words(html: str) -> str:
    """The text of a page, on one line."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


def holds(text: str, *parts: str, without: Iterable[str] = ()) -> None:
    """Each of these is in the text, and none of those."""
    missing = [one for one in parts if one not in text]
    there = [one for one in without if one in text]
    assert not missing, f"{missing} is not in: {text}"
    assert not there, f"{there} is in: {text}"
