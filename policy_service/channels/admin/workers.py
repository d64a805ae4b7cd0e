"""The supervisor of ``serve --workers N``: N processes that accept connections from one socket.

Each worker is a whole service with its own leases, as a replica is. A worker that dies is replaced, after a pause if
it dies again and again. A worker that cannot start ends the service, unless the service has opened and another worker
still serves. A worker that would serve with another version, other settings or other keys than the first ones ends the
service, so that its process manager starts all of them anew. Workers stop when their supervisor is gone. uvicorn's
supervisor does none of these: it restarts without a pause and for ever, and its workers outlive it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import structlog

from policy_service import metrics
from policy_service.channels.admin.socket import is_embedded
from policy_service.channels.admin.worker_channel import OTHER_GENERATION, READY, STOP_S
from policy_service.errors import StartError
from policy_service.settings import Settings

_STEADY_S = 60.0  # a worker that served for longer is replaced without a pause
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_LOOK_S = 1.0  # between looks without a signal

log = structlog.get_logger(__name__)


def require_database_server(settings: Settings, count: int) -> None:
    """Refuse several workers on an embedded database.

    Raises:
        StartError: an embedded database belongs to one process.
    """
    if count > 1 and is_embedded(settings):
        raise StartError(
            f"{count} workers need PostgreSQL, because an SQLite database belongs to one process: "
            "set COUNTERSIGN_DATABASE_URL to postgresql://... (docs/how-to/postgresql.md), or use one worker"
        )


def pause_before_restart(deaths: int) -> float:
    """Seconds to wait after so many deaths in a row: none after the first, then doubled each time."""
    return 0.0 if deaths <= 1 else min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(deaths - 2, 16))


def run_workers(settings: Settings, count: int, welcome: Callable[[], None], generation: bytes) -> int:
    """Serve with ``count`` workers until a signal or a refused start. ``welcome`` runs once all of them serve.
    ``generation`` is the digest that each of them must have.

    A signal that stopped the service is raised again once every worker has ended. Returns the exit status.

    Raises:
        StartError: the address is in use.
    """
    with contextlib.ExitStack() as stack:
        received = stack.enter_context(_captured_signals())
        listener = stack.enter_context(_bound(settings.host, settings.port))
        # private to this user (mode 0700), and empty: the files of an earlier run would be counted again
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="countersign-metrics-"))
        return _Supervisor(count, listener, Path(folder), received, welcome, generation).run()


@dataclass
class _Slot:
    """One worker's place: its process now, and when the next one may start."""

    number: int
    process: subprocess.Popen[bytes] | None = None
    channel: socket.socket | None = (
        None  # the worker reports on it, and sees it close when this process is gone
    )
    ready: bool = False
    started_at: float = 0.0
    due_at: float = 0.0
    deaths: int = 0


@dataclass
class _Signals:
    wakeup: socket.socket  # readable after each signal
    numbers: list[int]


class _Supervisor:
    def __init__(
        self,
        count: int,
        listener: socket.socket,
        folder: Path,
        received: _Signals,
        welcome: Callable[[], None],
        digest: bytes,
    ) -> None:
        self._generation = digest
        self._slots = [_Slot(number + 1) for number in range(count)]
        self._listener, self._folder, self._welcome = listener, folder, welcome
        self._received, self._forwarded = received, 0
        self._opened = False
        self._status = 0
        self._stop_by: float | None = None

    def run(self) -> int:
        try:
            while True:
                self._pass_signals_on()
                for slot in self._slots:
                    self._look(slot)
                running = [slot for slot in self._slots if slot.process is not None]
                if self._stop_by is None:
                    self._start_due()
                    self._open()
                elif not running:
                    return self._status
                elif time.monotonic() > self._stop_by:
                    self._signal_all(signal.SIGKILL)
                self._wait()
        finally:
            self._signal_all(signal.SIGKILL)  # of an error here; after a stop there is none
            for slot in self._slots:
                if slot.process is not None:
                    slot.process.wait()

    def _pass_signals_on(self) -> None:
        new = self._received.numbers[self._forwarded :]
        self._forwarded += len(new)
        for number in new:
            if self._stop_by is None:
                self._stop()
            elif number == signal.SIGINT:  # the second one ends running requests, as without workers
                self._signal_all(signal.SIGINT)

    def _stop(self) -> None:
        self._stop_by = time.monotonic() + STOP_S
        self._signal_all(signal.SIGTERM)

    def _signal_all(self, number: signal.Signals) -> None:
        for slot in self._slots:
            if slot.process is not None:
                slot.process.send_signal(number)

    def _start_due(self) -> None:
        """Start what is due. The first worker starts alone: what it refuses is reported once."""
        first = self._slots[0]
        alone = not self._opened and not first.ready
        for slot in [first] if alone else self._slots:
            if slot.process is None and slot.due_at <= time.monotonic():
                self._start(slot)

    def _start(self, slot: _Slot) -> None:
        slot.channel, theirs = socket.socketpair()
        slot.channel.send(self._generation)  # not in the arguments or the environment: it covers passwords
        slot.channel.setblocking(False)
        handles = (self._listener.fileno(), theirs.fileno())
        words = [sys.executable, "-P", "-m", "policy_service.cli", "serve-worker", str(slot.number)]
        with theirs:
            slot.process = subprocess.Popen(
                [*words, *map(str, handles), str(self._folder)],
                pass_fds=handles,
                env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(self._folder)},  # read at its first import
                process_group=0,  # a terminal sends Ctrl-C to this process only, which passes on one signal
            )
        slot.ready, slot.started_at = False, time.monotonic()

    def _look(self, slot: _Slot) -> None:
        """Note that a worker serves, or that it has ended."""
        if slot.process is None or slot.channel is None:
            return
        with contextlib.suppress(OSError):  # nothing to read yet
            slot.ready = slot.channel.recv(1) == READY or slot.ready
        status = slot.process.poll()
        if status is None:
            return
        metrics.forget_worker(self._folder, slot.process.pid)
        slot.channel.close()
        slot.process = slot.channel = None
        if self._stop_by is None:
            self._ended(slot, status)

    def _ended(self, slot: _Slot, status: int) -> None:
        now, was_ready = time.monotonic(), slot.ready
        slot.ready = False
        others = self._opened and any(other.ready for other in self._slots)
        if status == OTHER_GENERATION:
            log.error("workers_differ", worker=slot.number)
            self._status = 1
            self._stop()
            return
        if not was_ready and status > 0 and not others:
            self._status = status  # it has printed why
            self._stop()
            return
        slot.deaths = 1 if was_ready and now - slot.started_at > _STEADY_S else slot.deaths + 1
        pause = pause_before_restart(slot.deaths)
        slot.due_at = now + pause
        log.error("worker_ended", worker=slot.number, status=status, restart_in_s=pause)

    def _open(self) -> None:
        if not self._opened and all(slot.ready for slot in self._slots):
            self._opened = True
            self._welcome()

    def _wait(self) -> None:
        now, wakeup = time.monotonic(), self._received.wakeup
        starting = [slot.channel for slot in self._slots if slot.channel is not None and not slot.ready]
        due = [slot.due_at - now for slot in self._slots if slot.process is None and slot.due_at > now]
        if wakeup in select.select([wakeup, *starting], [], [], min([_LOOK_S, *due]))[0]:
            wakeup.recv(4096)


@contextlib.contextmanager
def _captured_signals() -> Iterator[_Signals]:
    """Collect SIGTERM and SIGINT, and raise them again at the end, so that the process ends as without workers."""
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    received = _Signals(reader, [])

    def note(number: int, _: FrameType | None) -> None:
        if number != signal.SIGCHLD:  # that one only ends the wait
            received.numbers.append(number)

    with reader, writer:
        handled = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
        before = {number: signal.signal(number, note) for number in handled}
        wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield received
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
    for captured in reversed(received.numbers):
        signal.raise_signal(captured)


@contextlib.contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """The socket that the workers share. It listens as soon as the first of them does."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if listener.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # as without workers
        try:
            listener.bind((host, port))
        except OSError as error:
            raise StartError(f"cannot listen on {host}:{port}: {error.strerror}; set another port") from error
        yield listener
