"""`countersign worker`: go through the journal again and again, so that what people approve fires without its agent.

Rules: the journal's lease decides who fires, so any number of workers may share one journal, beside agents that stage
into it; a worker that is told to stop lets the effect being fired end, writes its outcome down and begins nothing
more, neither a redemption nor another effect; one that is killed leaves what every crash leaves (recovery.py). A
second signal acts as if no worker were here. A journal that was there and is away is looked at again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from countersign.errors import JournalError
from countersign.recovery.recovery import RecoveryResult, resume_each
from countersign.runtime import Runtime

log: Final = logging.getLogger("countersign")
_STOPPING: Final = b"finishing the effect that is being fired; a second signal ends at once\n"
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


async def run_worker(
    runtime: Runtime, tell: Callable[[RecoveryResult], None], *, every_seconds: float | None
) -> None:
    """Finish what can be finished, every so many seconds until a signal comes, or once for None. Runs on the main
    thread. `tell` hears of every transaction when it is first seen and when its state or note is another.

    Raises:
        JournalError: in the first round; later ones are told to the log and followed by another.
    """
    stop, told = _Stop(asyncio.get_running_loop()), ReportedResults()
    waits, seen_through = runtime.async_waits(), False
    with stop.on_signals():
        async with waits.opened():
            while not stop.asked:
                try:
                    async for found in resume_each(runtime.engine(waits, lambda: stop.asked)):
                        if told.is_new(found):
                            tell(found)
                except JournalError as error:
                    if not seen_through:
                        raise
                    log.warning("looking at the journal again: %s", error)
                else:
                    seen_through = True
                    told.end_of_round()
                if every_seconds is None:
                    return
                await stop.wait(every_seconds)


class ReportedResults:
    """What was said of each transaction at the last round; one that is finished is forgotten."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[str | None, str]] = {}
        self._now: dict[str, tuple[str | None, str]] = {}

    def __len__(self) -> int:
        return len(self._before) + len(self._now)

    def is_new(self, found: RecoveryResult) -> bool:
        """Whether something about it is another than a round ago."""
        self._now[found.txn] = found.after, found.note
        return self._before.get(found.txn) != self._now[found.txn]

    def end_of_round(self) -> None:
        """Everything that is left has been seen."""
        self._before, self._now = self._now, {}


class _Stop:
    """Set by a signal at once: also while a plain tool keeps the event loop from running, and also where the signal
    comes just before the loop begins to wait or on another thread. Of such a one the loop would hear when its wait
    ends, which is when the tool has timed out; so the interpreter is told to write to what the loop waits for.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.asked = False
        self._loop = loop
        self._wake = asyncio.Event()

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        before = {one: signal.getsignal(one) for one in _SIGNALS}

        def heard(number: int, frame: FrameType | None) -> None:
            self.asked = True
            for one in _SIGNALS:
                signal.signal(one, before[one])
            os.write(2, _STOPPING)  # a buffered stream may be the very thing the signal interrupted

        with _signals_blocked():
            for one in _SIGNALS:
                # For its wake-up alone: `heard` takes its place.
                self._loop.add_signal_handler(one, self._wake.set)
                signal.signal(one, heard)
        try:
            yield
        finally:
            with _signals_blocked():
                for one in _SIGNALS:
                    self._loop.remove_signal_handler(one)
                    signal.signal(one, before[one])

    async def wait(self, seconds: float) -> None:
        """Until it is asked to stop, at most so long."""
        try:
            await asyncio.wait_for(self._wake.wait(), seconds)
        except TimeoutError:
            return
        if not self.asked:
            # A process that a tool forked writes its own signals to our loop: one look too many, and not one after
            # the other from then on.
            self._wake.clear()


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """A signal that comes between two handlers waits for the second."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
