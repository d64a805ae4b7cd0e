"""The statements of the journal as PostgreSQL's driver reads them: `?` and `:name` become its own marks."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

_TOKEN: Final = re.compile(r"'(?:[^']|'')*'|\?|:([a-z_]+)|%")


@cache
def translated(sql: str) -> bytes:
    """One statement. Text in quotes stays as it is; statements are ours, never a caller's."""

    def mark(found: re.Match[str]) -> str:
        if found[1] is not None:
            return f"%({found[1]})s"
        return "%s" if found[0] == "?" else found[0].replace("%", "%%")

    return _TOKEN.sub(mark, sql).encode()
