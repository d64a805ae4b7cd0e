"""`countersign worker`: process the journal repeatedly, so that approved effects fire without their agent.

Rules: the journal's lease decides who fires, so any number of workers and staging agents may share one journal. A
stopping worker lets the current effect end, writes its outcome and begins nothing more, neither a redemption nor
another effect. A killed one leaves what every crash leaves (recovery.py). A second signal acts as if no worker were
running. After the first round, an unavailable journal is retried.
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
    """Finish what can be finished, every `every_seconds` until a signal arrives, or once for None. Runs on the main
    thread. `tell` receives every transaction when it is first seen and when its state or note changes.

    Raises:
        JournalError: in the first round; later ones are logged and retried.
    """
    stop, text = _Stop(asyncio.get_running_loop()), ReportedResults()
    executor, seen_through = runtime.async_executor(), False
    with stop.on_signals():
        async with executor.opened():
            while not stop.asked:
                try:
                    async for found in resume_each(runtime.engine(executor, lambda: stop.asked)):
                        if text.is_new(found):
                            tell(found)
                except JournalError as error:
                    if not seen_through:
                        raise
                    log.warning("retrying the journal: %s", error)
                else:
                    seen_through = True
                    text.end_of_round()
                if every_seconds is None:
                    return
                await stop.wait(every_seconds)


class ReportedResults:
    """The state and note of each transaction in the last round; finished ones are dropped."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[str | None, str]] = {}
        self._now: dict[str, tuple[str | None, str]] = {}

    def __len__(self) -> int:
        return len(self._before) + len(self._now)

    def is_new(self, found: RecoveryResult) -> bool:
        """Whether it differs from the last round."""
        self._now[found.txn] = found.after, found.note
        return self._before.get(found.txn) != self._now[found.txn]

    def end_of_round(self) -> None:
        """Make this round the last one."""
        self._before, self._now = self._now, {}


class _Stop:
    """Set by a signal at once: also while a plain tool blocks the event loop, and also if the signal arrives just
    before the loop waits, or on another thread. The loop would notice that one only when its wait ends, that is,
    when the tool has timed out; so the interpreter writes to the loop's wake-up descriptor.
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
            os.write(2, _STOPPING)  # the signal may have interrupted a write to a buffered stream

        with _signals_blocked():
            for one in _SIGNALS:
                # Only for its wake-up descriptor; the next line replaces the handler.
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
        """Wait for the signal, at most so many seconds."""
        try:
            await asyncio.wait_for(self._wake.wait(), seconds)
        except TimeoutError:
            return
        if not self.asked:
            # A process forked by a tool writes its own signals to our loop. That may cost one extra round, but not
            # a busy loop.
            self._wake.clear()


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block the signals between two handlers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
