"""Keeping the epoch mark in step: the highest index of the log, written beside the keys after the commit that gave it.

Written by a task of its own and never twice at once, so a busy log costs one file write at a time; a crash loses at
most the last of them, which leaves the mark behind the database, never ahead.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import structlog

from policy_service.audit.log import highest_index
from policy_service.health import Signal
from policy_service.storage.database import Database
from policy_service.storage.system_tables import ensure_epoch
from policy_service.tokens.epoch import Mark, read_mark, require_no_log, require_not_behind, write_mark

log = structlog.get_logger(__name__)

_SPACING_S = 0.2  # two syncs a mark: a busy log must not spend the disk on them


def reconcile_epoch(db: Database, key_dir: Path) -> Mark:
    """Compare the database with the mark, or make both at the very first start.

    Raises:
        StartError: the database has forgotten something it once knew.
    """
    mark = read_mark(key_dir)
    epoch = db.write_sync(ensure_epoch)
    highest = db.read_sync(highest_index)
    if mark is None:
        require_no_log(key_dir, highest)
        mark = Mark(epoch, highest)
        write_mark(key_dir, mark)
    require_not_behind(mark, highest, epoch)
    if highest > mark.highest_index:  # stopped between the commit and the mark
        mark = Mark(epoch, highest)
        write_mark(key_dir, mark)
    return mark


class EpochMarkWriter:
    """The mark of a running service."""

    def __init__(self, key_dir: Path, mark: Mark, signal: Signal | None = None) -> None:
        self._key_dir = key_dir
        self._written = mark
        self._highest = mark.highest_index
        self._news = asyncio.Event()
        # A cancelled `run` leaves its thread writing: the last write of all waits for it, and never goes back.
        self._one_writer = threading.Lock()
        self.signal = signal or Signal()

    @property
    def epoch(self) -> int:
        """The incarnation of this deployment's database."""
        return self._written.epoch

    def progress(self) -> tuple[int, int]:
        """The epoch and how far its log has got, as far as this process has heard."""
        return self.epoch, self._highest

    def reached(self, index: int) -> None:
        """The log has got this far; the file follows."""
        if index > self._highest:
            self._highest = index
            self._news.set()

    async def run(self) -> None:
        """Follow until cancelled. A mark that cannot be written is said aloud and tried again."""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self.write()
                self.signal.good()
            except OSError:
                self.signal.bad("the epoch mark beside the keys cannot be written")
                self._news.set()
                log.exception("epoch_mark_not_written")
            await asyncio.sleep(_SPACING_S)

    async def write(self) -> None:
        """Bring the file up to date."""
        if self._highest > self._written.highest_index:
            await asyncio.to_thread(self._write)

    def _write(self) -> None:
        with self._one_writer:
            mark = Mark(self._written.epoch, self._highest)
            if mark != self._written:
                write_mark(self._key_dir, mark)
                self._written = mark
