"""The epoch and the highest audit index, kept beside the keys and so outside the database.

A database restored from a backup has forgotten redemptions; its log then ends before this mark, and the service does
not start on it until `policy-service restored` has begun another epoch. The mark is written after the commit that
assigned the index, so a crash between the two leaves a mark that is behind, never one that is ahead; another epoch
stands in the mark before it stands in the database, so what it replaces never starts again.

With PostgreSQL every replica keeps a mark beside its copy of the keys and follows the log with it, whichever replica
numbers. Processes that share one folder share the mark: it never goes back.
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
    """What the deployment has reached: its incarnation, then the highest index its log ever had. Later is greater."""

    epoch: int
    highest_index: int


def read_mark(folder: Path) -> Mark | None:
    """The mark, or None before the first start.

    Raises:
        StartError: the file is damaged or others can read it.
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
    """Replace the mark durably: whoever reads sees the old one or the new one, whole. One that has got further, by
    another process, stays.

    Raises:
        OSError: it cannot be written, or what stands there cannot be read.
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
        fcntl.flock(handle, fcntl.LOCK_EX)  # the kernel lets go of it when a process dies
        yield
    finally:
        os.close(handle)


def _replace(folder: Path, mark: Mark) -> None:
    new = folder / f"{_NAME}.new"  # one name, so that a kill leaves one file behind and not one each time
    new.unlink(missing_ok=True)
    try:
        create_secret(new, json.dumps({"epoch": mark.epoch, "highest_index": mark.highest_index}).encode())
        new.replace(folder / _NAME)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    sync_folder(folder)


def require_no_log(folder: Path, highest_index: int) -> None:
    """Refuse to begin a mark on a database that has a log already: an old one would pass for the newest.

    Raises:
        StartError: it has one.
    """
    if highest_index > 0:
        raise StartError(
            f"there is no {folder / _NAME}, and this database has a log up to {highest_index}: copy {_NAME} from "
            "where these keys came from (another replica, or their backup), so that a database which has forgotten "
            "something is found out"
        )


def is_behind(mark: Mark, highest_index: int, epoch: int) -> bool:
    """Whether a database has forgotten something that this mark has seen."""
    return highest_index < mark.highest_index or epoch < mark.epoch


def require_not_behind(mark: Mark, highest_index: int, epoch: int) -> None:
    """Refuse a database that has forgotten something, and one of an epoch this mark has not heard of.

    Raises:
        StartError: its log ends before the mark, or its epoch is another one.
    """
    where = (
        f"this database ends at audit index {highest_index} in epoch {epoch}, the keys' folder has seen "
        f"{mark.highest_index} in epoch {mark.epoch}"
    )
    if epoch > mark.epoch:
        raise StartError(
            f"{where}: it was restored, and declared so where another copy of these keys is; copy {_NAME} from there"
        )
    if is_behind(mark, highest_index, epoch):
        raise StartError(
            f"{where}: it was restored or replaced, and has forgotten what was redeemed since; bring back a newer "
            "copy, or, if there is none, run: policy-service restored --dry-run"
        )
