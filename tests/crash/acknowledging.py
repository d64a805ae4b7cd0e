"""A program for the crash tests: writes units from several threads and says what was acknowledged.

    python -m tests.crash.acknowledging URL FIRST [FILE_SIZE_LIMIT]

With a limit, the kernel refuses to let any file grow past so many bytes: the write-ahead log meets a real
I/O error in the middle of its work. Prints `REFUSED n` for each unit that was refused.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
from collections.abc import Callable

from sqlalchemy import text

from policy_service.errors import StorageUnavailableError
from policy_service.storage.database import Database, Tx

THREADS = 8
_INSERT = text("INSERT INTO pairs (n, side, body) VALUES (:n, :side, zeroblob(3000))")
_CREATE = text("CREATE TABLE IF NOT EXISTS pairs (n INTEGER, side TEXT, body BLOB, PRIMARY KEY (n, side))")


def say(line: str) -> None:
    """One write, so that lines never mix and none is lost in a buffer at the kill."""
    os.write(1, f"{line}\n".encode())


def work(db: Database, first: int, refused: threading.Event) -> None:
    """Count up from `first` until refused or killed."""
    n = first
    while not refused.is_set():
        try:
            db.write_sync(insert(n))
        except StorageUnavailableError:
            say(f"REFUSED {n}")
            refused.set()
        else:
            say(str(n))
        n += THREADS


def insert(n: int) -> Callable[[Tx], None]:
    """Two rows that belong together: half of a unit would show."""

    def unit(tx: Tx) -> None:
        for side in ("left", "right"):
            tx.conn.execute(_INSERT, {"n": n, "side": side})

    return unit


def main() -> None:
    """Run until refused or killed."""
    url, first, *limit = sys.argv[1:]
    db = Database.open(url)
    db.write_sync(lambda tx: tx.conn.execute(_CREATE).rowcount)
    if limit:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit[0]), resource.RLIM_INFINITY))
    refused = threading.Event()
    threads = [threading.Thread(target=work, args=(db, int(first) + i, refused)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
