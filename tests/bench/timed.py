"""`python -m tests.bench.timed FILE serve`: the service, and in FILE the processor time its SQL has taken.

Every cursor of SQLite notes its thread's time, so it does not matter through which library a statement comes.
"""

from __future__ import annotations

import mmap
import sqlite3
import struct
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

SECONDS = struct.Struct("d")
_STEPS = ("execute", "executemany", "fetchone", "fetchmany", "fetchall")


def main(file: Path) -> None:
    """Replace SQLite's cursors, then run the service's command line."""
    file.write_bytes(bytes(SECONDS.size))
    with file.open("r+b") as opened:
        page = mmap.mmap(opened.fileno(), SECONDS.size)
    spent: dict[int, float] = {}  # by thread

    def timed(method: Callable[..., Any]) -> Callable[..., Any]:
        def step(cursor: sqlite3.Cursor, *values: Any) -> Any:
            start, thread = time.thread_time(), threading.get_ident()
            try:
                return method(cursor, *values)
            finally:
                spent[thread] = spent.get(thread, 0.0) + time.thread_time() - start
                SECONDS.pack_into(page, 0, sum(list(spent.values())))

        return step

    timed_cursor = type(
        "Cursor", (sqlite3.Cursor,), {name: timed(getattr(sqlite3.Cursor, name)) for name in _STEPS}
    )

    class Connection(sqlite3.Connection):
        def cursor(self, factory: Any = timed_cursor) -> Any:
            return super().cursor(factory)

        def execute(self, *values: Any) -> Any:  # SQLite's own would take its own cursor
            return self.cursor().execute(*values)

    sqlite3.connect = sqlite3.dbapi2.connect = partial(sqlite3.connect, factory=Connection)  # type: ignore[assignment]
    from policy_service.cli import app

    app()


if __name__ == "__main__":
    main(Path(sys.argv.pop(1)))
