"""Secret files: created once with mode 0600, or refused.

A file is created by O_EXCL and synced before it is used. One that others can read, or that another user owns, is
refused with the command that fixes it. Nothing here prints a secret.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from policy_service.errors import StartError

_GROUP_OR_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_secret_folder(folder: Path) -> None:
    """Create the folder of the secrets with mode 0700."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def create_secret(path: Path, content: bytes) -> None:
    """Write a new secret file and sync it.

    Raises:
        FileExistsError: the file exists; a secret is never overwritten.
    """
    # The mode is set at creation: a chmod afterwards leaves a moment in which others can open the file.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def replace_secret(path: Path, content: bytes) -> None:
    """Replace a secret file atomically."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)  # left by an interrupted replacement
    create_secret(fresh, content)
    fresh.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a file's new name durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_secret(
    path: Path, *, what: str = "the key", get: str = "policy-service init makes the keys"
) -> bytes:
    """The bytes of a secret file. ``what`` and ``get`` are the words of a refusal: its name, and how to create a
    missing one.

    Raises:
        StartError: it is missing, not a regular file, of another user, or readable by others.
    """
    try:
        handle = os.open(
            path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        )  # a named pipe must not block the start
    except FileNotFoundError:
        raise StartError(f"{what} {path} is missing; {get}") from None
    except OSError as error:
        raise StartError(
            f"{what} {path} cannot be read ({error.strerror}); put a plain file there"
        ) from error
    try:
        # The open file is checked, not its path: the path can be replaced between a check and the opening.
        _require_private(f"{what} {path}", path, os.fstat(handle))
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(handle)


def _require_private(named: str, path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise StartError(f"{named} is not a plain file; put one there")
    if status.st_uid != os.geteuid():
        raise StartError(
            f"{named} belongs to user {status.st_uid}, the service runs as {os.geteuid()}; "
            f"run: chown {os.geteuid()} {path}"
        )
    if status.st_mode & _GROUP_OR_OTHERS:
        raise StartError(f"{named} can be read by others; run: chmod 600 {path}")
