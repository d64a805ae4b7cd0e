"""One process for each embedded database.

The lock is the kernel's (``flock``), so it ends with its holder however that ends; the pid in the file only
helps people. The file is never deleted: a deleted one could be locked by two, each holding another inode.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from policy_service.errors import StartError


class InUseError(StartError):
    """Another process holds the lock."""

    def __init__(self, path: Path, holder: str) -> None:
        self.holder = holder
        super().__init__(
            f"the database beside {str(path)!r} is in use by {holder}; stop that one first, "
            "or use another folder (data_dir)"
        )


class ProcessLock:
    """Hold ``path`` for as long as this object, or refuse."""

    def __init__(self, path: Path, what: str = "policy-service serve") -> None:
        self.path = path
        self._what = what
        self._fd: int | None = None

    def acquire(self) -> Self:
        """Take the lock.

        Raises:
            InUseError: another process holds it; the sentence names it.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(fd, 200).decode("utf-8", "replace").strip() or "another process"
            os.close(fd)
            raise InUseError(self.path, holder) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"pid {os.getpid()} ({self._what})\n".encode(), 0)
        self._fd = fd
        return self

    def release(self) -> None:
        """Let go. Doing it twice is no error."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.ftruncate(fd, 0)
            os.close(fd)

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def lock_path(database_file: Path) -> Path:
    """Where the lock of a database lies: beside it."""
    return database_file.with_name(database_file.name + ".lock")
