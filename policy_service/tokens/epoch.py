"""The epoch and the highest audit index, kept beside the keys and so outside the database.

A database restored from a backup has forgotten redemptions; its log then ends before this mark, and the service does
not start on it. The mark is written after the commit that assigned the index, so a crash between the two leaves a mark
that is behind, never one that is ahead.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from policy_service.errors import StartError
from policy_service.tokens.files import create_secret, make_secret_folder, read_secret, sync_folder

_NAME = "epoch.json"


@dataclass(frozen=True)
class Mark:
    """What the deployment has reached: its incarnation, and the highest index its log ever had."""

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
    """Replace the mark durably: whoever reads sees the old one or the new one, whole."""
    make_secret_folder(folder)
    new = folder / f"{_NAME}.new"  # one name, so that a kill leaves one file behind and not one each time
    new.unlink(missing_ok=True)
    try:
        create_secret(new, json.dumps({"epoch": mark.epoch, "highest_index": mark.highest_index}).encode())
        new.replace(folder / _NAME)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    sync_folder(folder)


def require_not_behind(mark: Mark, highest_index: int, epoch: int) -> None:
    """Refuse a database that has forgotten something.

    Raises:
        StartError: its log ends before the mark, or its epoch is another one.
    """
    if highest_index < mark.highest_index or epoch != mark.epoch:
        raise StartError(
            f"this database ends at audit index {highest_index} in epoch {epoch}, the keys' folder has seen "
            f"{mark.highest_index} in epoch {mark.epoch}: it was restored or replaced, and has forgotten what was "
            "redeemed since; restore a backup that reaches the mark (nothing takes over an older one yet)"
        )
