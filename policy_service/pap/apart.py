"""Preparing a bundle without the service feeling it: a small one in a thread, any other in a process of its own.

Rules kept here: a process that ends, hangs or grows while it reads a bundle is a bundle that is refused, and the
service goes on; it sees the bundle's bytes and no secret of the service, asks nobody anything, and yields the
processor to requests; what comes back is taken piece by piece, so that the event loop never waits for long. Checking
in a thread would hold up every request meanwhile: the interpreter runs one thread at a time.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from policy_service.facts.outside import Outside
from policy_service.pap.bundle import Bundle, assemble, prepare_bundle
from policy_service.pap.cases.guarding import Guarded, guard
from policy_service.pap.checking import check_files
from policy_service.pap.problems import BundleError, Problem
from policy_service.pap.reading_apart import Task, Unpacking
from policy_service.pap.source import BundleFiles

SMALL_BYTES: Final = 32 * 1024
"""Rules, manifests and cases up to this are checked in a thread: about 100 policies, some 0.3 s; a process takes
longer to start than that."""

MAX_SECONDS: Final = 180.0
"""For one bundle. The largest that is allowed (10,000 policies) takes about 30 on an idle core."""

_BREATH_S: Final = 0.0005  # between two pieces: whoever waits for the interpreter has it
_SWITCH_S: Final = 0.0005  # a thread is asked for the interpreter after this, not after the usual 5 ms
_BEGIN: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from policy_service.pap.reading_apart import main; main(float(sys.argv[2]))"
)
_KEPT: Final = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")


class EndedError(BundleError):
    """The process that read the bundle ended or took too long. It may do better at the next look."""


@dataclass(frozen=True, slots=True)
class Cases:
    """Which cases a candidate has to pass beside its own: those of the bundle in force, if there is one."""

    active: BundleFiles | None


@dataclass
class Preparer:
    """Prepares bundles for one service; from any thread, one at a time each. Closing it ends what goes on."""

    outside: Outside | None = None
    small_bytes: int = SMALL_BYTES
    max_seconds: float = MAX_SECONDS
    _running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False

    def prepare(self, source: BundleFiles, cases: Cases | None = None) -> tuple[Bundle, Guarded | None]:
        """The bundle, and how many cases it passed where they were asked for. Blocks; belongs in a thread.

        Raises:
            BundleError: everything that is wrong with it; it does not pass its cases; or reading it took too long or
                ended the process that read it.
        """
        held = (
            source.files if cases is None or cases.active is None else {**source.files, **cases.active.files}
        )
        weight = sum(
            len(raw) for name, raw in held.items() if name.endswith((".cedar", ".json", ".yaml", ".yml"))
        )
        if weight <= self.small_bytes:
            return self._here(source, cases)
        return self._apart(source, cases)

    def close(self) -> None:
        """End every process that still reads."""
        with self._lock:
            self._closed = True
            for process in self._running:
                process.kill()

    def _here(self, source: BundleFiles, cases: Cases | None) -> tuple[Bundle, Guarded | None]:
        with _others_first():
            bundle = assemble(source, check_files(source.files, self.outside), self.outside, _breathe)
            if cases is None:
                return bundle, None
            try:
                return bundle, guarded(bundle, cases)
            except BundleError:
                bundle.close()
                raise

    def _apart(self, source: BundleFiles, cases: Cases | None) -> tuple[Bundle, Guarded | None]:
        active = None if cases is None or cases.active is None else dict(cases.active.files)
        task = Task(dict(source.files), self.outside is not None, cases is not None, active)
        answer = Unpacking()
        said = self._ask(task)
        with _others_first():
            for piece in _frames(said):
                answer.take(pickle.loads(piece))  # noqa: S301  our own process, over a pipe nobody else has
                _breathe()
            if answer.refused is not None:
                raise answer.refused
            if (checked := answer.checked()) is None:
                raise _ended("the process that read it answered nothing")
            return assemble(source, checked, self.outside, _breathe), answer.guarded

    def _ask(self, task: Task) -> bytes:
        process = self._start()
        try:
            said, _ = process.communicate(pickle.dumps(task), timeout=self.max_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise _ended(
                f"reading it took longer than {self.max_seconds:g} seconds; make it smaller"
            ) from None
        finally:
            with self._lock:
                self._running.discard(process)
        if process.returncode != 0:
            raise _ended(
                f"the process that read it ended ({_how(process.returncode)}); make it smaller or simpler"
            )
        return said

    def _start(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise _ended("the service is stopping")
            process = subprocess.Popen(
                [sys.executable, "-I", "-c", _BEGIN, json.dumps(sys.path), str(self.max_seconds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _KEPT if name in os.environ},
            )
            self._running.add(process)
            return process


def guarded(bundle: Bundle, cases: Cases) -> Guarded:
    """Run the cases here.

    Raises:
        CasesError: which do not hold.
    """
    active = cases.active
    return guard(
        bundle,
        None if active is None else active.files,
        lambda: None if active is None else prepare_bundle(active),
    )


def _ended(why: str) -> EndedError:
    return EndedError([Problem("bundle", None, f"the bundle could not be read: {why}")])


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _frames(said: bytes) -> Iterator[memoryview]:
    at, whole = 0, memoryview(said)
    while at < len(said):
        size = int.from_bytes(whole[at : at + 8], "big")
        yield whole[at + 8 : at + 8 + size]
        at += 8 + size


def _breathe() -> None:
    time.sleep(_BREATH_S)


@contextmanager
def _others_first() -> Iterator[None]:
    """Within it, threads give way sooner and nothing is collected: a collection stands still with every thread, for as
    long as all that the service holds is large.
    """
    with _COUNT:
        _COUNT.enter()
    try:
        yield
    finally:
        with _COUNT:
            _COUNT.leave()


class _GivingWay:
    """How many threads prepare: the interpreter's switches are the whole process's, so the last one sets them back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = 0
        self._before = 0.0
        self._collecting = True

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def enter(self) -> None:
        """One more."""
        if self._threads == 0:
            self._before, self._collecting = sys.getswitchinterval(), gc.isenabled()
            sys.setswitchinterval(min(_SWITCH_S, self._before))
            gc.disable()
        self._threads += 1

    def leave(self) -> None:
        """One less."""
        self._threads -= 1
        if self._threads == 0:
            sys.setswitchinterval(self._before)
            if self._collecting:
                gc.enable()


_COUNT: Final = _GivingWay()
