"""The epoch mark: the epoch and the highest audit index, stored with the keys, outside the database.

A database restored from a backup lacks later redemptions, and its audit log ends before this mark. The service does
not start on it until `policy-service restored` has begun a new epoch. The mark is written after the commit that
assigned the index, so a crash in between leaves it behind, never ahead. A new epoch is written to the mark before the
database, so the database it replaces never starts again.

With PostgreSQL, every replica keeps a mark with its copy of the keys and updates it from the audit log. Processes that
share a folder share the mark; it never decreases.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from policy_service.errors import StartError
from policy_service.tokens.secret_files import create_secret, make_secret_folder, read_secret, sync_folder

_NAME = "epoch.json"


@dataclass(frozen=True, order=True)
class Mark:
    """The epoch of a deployment, then its highest audit index. Later marks compare greater."""

    epoch: int
    highest_index: int


def read_mark(folder: Path) -> Mark | None:
    """The mark, or None before the first start.

    Raises:
        StartError: the file is damaged, or others can read it.
    """
    path = folder / _NAME
    if not path.exists():
        return None
    try:
        value = json.loads(read_secret(path))
        return Mark(int(value["epoch"]), int(value["highest_index"]))
    except (ValueError, KeyError, TypeError) as error:
        raise StartError(f"the epoch mark {path} is damaged: {error}; restore it from its backup") from error


def write_mark(folder: Path, mark: Mark) -> None:
    """Replace the mark atomically and durably, unless another process has written a later one.

    Raises:
        OSError: it cannot be written, or the present file cannot be read.
    """
    make_secret_folder(folder)
    with _folder_lock(folder):
        try:
            before = read_mark(folder)
        except StartError as error:
            raise OSError(str(error)) from error
        if before is None or before < mark:
            _replace(folder, mark)


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # the kernel releases it if the process dies
        yield
    finally:
        os.close(handle)


def _replace(folder: Path, mark: Mark) -> None:
    new = folder / f"{_NAME}.new"  # a fixed name, so that repeated crashes leave at most one file
    new.unlink(missing_ok=True)
    try:
        create_secret(new, json.dumps({"epoch": mark.epoch, "highest_index": mark.highest_index}).encode())
        new.replace(folder / _NAME)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    sync_folder(folder)


def require_no_log(folder: Path, highest_index: int) -> None:
    """Refuse to create a mark for a database that already has an audit log: an old database would pass as current.

    Raises:
        StartError: it has one.
    """
    if highest_index > 0:
        raise StartError(
            f"there is no {folder / _NAME}, and this database has a log up to {highest_index}: copy {_NAME} from "
            "the source of these keys (another replica, or their backup); else an old database would pass as current"
        )


def is_behind(mark: Mark, highest_index: int, epoch: int) -> bool:
    """Whether a database lacks something that this mark has seen."""
    return highest_index < mark.highest_index or epoch < mark.epoch


def require_not_behind(mark: Mark, highest_index: int, epoch: int) -> None:
    """Refuse a database that lacks something, or one of an epoch unknown to this mark.

    Raises:
        StartError: its log ends before the mark, or its epoch differs.
    """
    where = (
        f"this database ends at audit index {highest_index} in epoch {epoch}, the keys' folder has seen "
        f"{mark.highest_index} in epoch {mark.epoch}"
    )
    if epoch > mark.epoch:
        raise StartError(
            f"{where}: it was restored, and another copy of these keys records that; copy its {_NAME} here"
        )
    if is_behind(mark, highest_index, epoch):
        raise StartError(
            f"{where}: it was restored or replaced, and lacks the redemptions since; restore a newer "
            "copy, or, if there is none, run: policy-service restored --dry-run"
        )
