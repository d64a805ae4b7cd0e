"""Keeps the epoch mark current: writes the highest audit index to the key folder after the commit that assigned it.

One task writes it, so a busy log causes one file write at a time. A crash loses at most the last write, which leaves
the mark behind the database, never ahead.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import structlog

from policy_service.health import Signal
from policy_service.tokens.epoch import Mark, write_mark

log = structlog.get_logger(__name__)

_SPACING_S = 1  # each write syncs twice; a busy log must not overload the disk


class EpochMarkWriter:
    """The mark of a running service."""

    def __init__(self, key_dir: Path, mark: Mark, signal: Signal | None = None) -> None:
        self._key_dir = key_dir
        self._written = mark
        self._highest = mark.highest_index
        self._news = asyncio.Event()
        # A cancelled `run` leaves its thread writing; the final write waits for it, so the mark never decreases.
        self._one_writer = threading.Lock()
        self.signal = signal or Signal()

    def current_epoch(self) -> int:
        """The epoch of this deployment's database."""
        return self._written.epoch

    def progress(self) -> tuple[int, int]:
        """The epoch and the highest index this process has seen."""
        return self._written.epoch, self._highest

    def reached(self, index: int) -> None:
        """Record a new highest index; the file follows."""
        if index > self._highest:
            self._highest = index
            self._news.set()

    async def run(self) -> None:
        """Follow until cancelled. A failed write is logged and retried."""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self.write()
                self.signal.good()
            except OSError:
                self.signal.bad("the epoch mark in the key folder cannot be written")
                self._news.set()
                log.exception("epoch_mark_not_written")
            await asyncio.sleep(_SPACING_S)

    async def write(self) -> None:
        """Write the current mark."""
        if self._highest > self._written.highest_index:
            await asyncio.to_thread(self._write)

    def _write(self) -> None:
        with self._one_writer:
            mark = Mark(self._written.epoch, self._highest)
            if mark != self._written:
                write_mark(self._key_dir, mark)
                self._written = mark
