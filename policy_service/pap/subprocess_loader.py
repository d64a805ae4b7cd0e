"""Load a bundle without delaying requests: a small one in a thread, any other in a subprocess.

A subprocess that ends, hangs or grows while it checks a bundle means a refused bundle, and the service continues. It
gets the bundle's bytes and no secret of the service, opens no connection, and is bounded in memory and processor time.
Every policy set it sends was accepted by its engine first. The result is received in pieces, so that the event loop
never waits for long. Checking a large bundle in a thread would delay every request, because the interpreter runs one
thread at a time.
"""

from __future__ import annotations

import copyreg
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from cedarpy import policies_to_json_str, pst

from policy_service.facts.allowlist import Allowlist
from policy_service.pap.bundle import Bundle, assemble_bundle
from policy_service.pap.check import CheckedBundle, check_files
from policy_service.pap.compile import PolicySetSource, ToolRulesSource, compile_policy_set
from policy_service.pap.policy_tests.activation_check import CaseCheck, require_cases_pass
from policy_service.pap.problems import BundleError, Problem
from policy_service.pap.source import BundleFiles

MAX_MEMORY_BYTES: Final = 4 * 1024**3
"""Address space of the subprocess; 10,000 policies take about an eighth."""

_NICE: Final = 5
_AT_A_TIME: Final = 25  # policies in one piece: decoding one piece is the longest pause of the service

# Pickle a FrozenMap with its contents; the default protocol would fill it after construction.
copyreg.pickle(pst.FrozenMap, lambda frozen: (pst.FrozenMap, (dict(frozen),)))


@dataclass(frozen=True)
class LoadRequest:
    """One bundle to check; with ``guarded`` its cases are run, and those of the active bundle if there is one."""

    files: Mapping[str, bytes]
    allowed_outside: bool
    guarded: bool
    active: Mapping[str, bytes] | None


def _assembled(pieces: Mapping[str, list[Any]]) -> CheckedBundle:
    """The result of the subprocess, from its pieces by kind."""
    for why, problems in pieces["refused"]:
        raise BundleError(problems, why)
    if not pieces["rest"]:
        raise _failed("the process that read it answered nothing")
    rest: CheckedBundle = pieces["rest"][0]
    parts = replace(rest.parts, tools=tuple(pieces["version"]))
    policies = {name: source for some in pieces["policies"] for name, source in some}
    return replace(rest, parts=parts, policies=policies, tools=tuple(pieces["tool"]))


def main(seconds: float) -> None:
    """Read one request from standard input and write its result to standard output."""
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of a parser must not corrupt the result
    _bound(seconds)
    request: LoadRequest = pickle.load(sys.stdin.buffer)  # noqa: S301  from the service that started this process
    for piece in load_in_pieces(request):
        raw = pickle.dumps(piece)
        answer.write(len(raw).to_bytes(8, "big") + raw)
    answer.close()


def load_in_pieces(request: LoadRequest) -> Iterator[tuple[str, Any]]:
    """Check the requested bundle and yield the result in pieces."""
    try:
        checked = check_files(request.files, allowed_outside=request.allowed_outside)
        if request.guarded:
            active = None if request.active is None else _files(request.active)
            yield "guarded", require_cases_pass(assemble_bundle(_files(request.files), checked, None), active)
    except BundleError as error:
        yield "refused", (error.why, error.problems)
        return
    bodies = _bodies(checked)
    for version in checked.parts.tools:
        yield "version", version
    for tool in checked.tools:
        guards, everything = _as_json(tool.guards, bodies), _as_json(tool.everything, bodies)
        yield "tool", replace(tool, guards=guards, everything=everything)
    policies = iter(checked.policies.items())
    while some := list(islice(policies, _AT_A_TIME)):
        yield "policies", some
    people = {action: _as_json(written, bodies) for action, written in checked.people.items()}
    none: tuple[ToolRulesSource, ...] = ()
    parts = replace(checked.parts, tools=())
    yield "rest", replace(checked, parts=parts, policies={}, tools=none, people=people)


def _files(files: Mapping[str, bytes]) -> BundleFiles:
    return BundleFiles(files, "", "", "")


def _bodies(checked: CheckedBundle) -> dict[str, str]:
    """Each policy as the engine's JSON, without its id. A long chain is nested too deep for JSON and is left out."""
    bodies: dict[str, str] = {}
    for name, source in checked.policies.items():
        try:
            (body,) = json.loads(policies_to_json_str(source.text))["staticPolicies"].values()
            bodies[name] = json.dumps(body)
        except (ValueError, RecursionError):
            continue
    return bodies


def _as_json(written: PolicySetSource, bodies: Mapping[str, str]) -> PolicySetSource:
    """A set as JSON if the engine accepts it, because JSON is parsed without the interpreter lock; else unchanged."""
    if isinstance(written, str) or not written or written.keys() - bodies.keys():
        return written
    inner = ",".join(f"{json.dumps(name)}:{bodies[name]}" for name in written)
    text = f'{{"templates":{{}},"staticPolicies":{{{inner}}},"templateLinks":[]}}'
    try:
        compile_policy_set(text)
    except ValueError:
        return written
    return text


def _bound(seconds: float) -> None:
    try:
        import resource  # not available on every system
    except ImportError:
        return
    os.nice(_NICE)
    for what, limit in ((resource.RLIMIT_AS, MAX_MEMORY_BYTES), (resource.RLIMIT_CPU, int(seconds) + 1)):
        hard = resource.getrlimit(what)[1]
        resource.setrlimit(what, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


SMALL_BYTES: Final = 32 * 1024
"""Rules, manifests and cases up to this size are checked in a thread: about 100 policies in 0.3 s, which is less than
a subprocess takes to start."""

MAX_LOAD_S: Final = 180.0
"""For one bundle. The largest allowed (10,000 policies) takes about 30 on an idle core."""

_PAUSE_S: Final = 0.0005  # sleep between two pieces, so that other threads get the interpreter
_SWITCH_S: Final = 0.0005  # switch interval while loading; Python's default is 5 ms
_BEGIN: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from policy_service.pap.subprocess_loader import main; main(float(sys.argv[2]))"
)
_KEPT: Final = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")


class LoaderFailedError(BundleError):
    """The subprocess that checked the bundle ended or took too long. The next attempt may succeed."""


@dataclass(frozen=True, slots=True)
class RequiredCases:
    """The cases a candidate must pass: its own, and those of the active bundle if there is one."""

    active: BundleFiles | None


@dataclass
class BundleLoader:
    """Loads bundles for one service, from any thread. Closing it ends running loads."""

    outside: Allowlist | None = None
    small_bytes: int = SMALL_BYTES
    max_seconds: float = MAX_LOAD_S
    _running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False

    def prepare(
        self, source: BundleFiles, cases: RequiredCases | None = None
    ) -> tuple[Bundle, CaseCheck | None]:
        """The bundle, and how many cases it passed if cases are required. Blocks; belongs in a thread.

        Raises:
            BundleError: all problems of it; it does not pass its cases; or checking it took too long or ended the
                subprocess.
        """
        held = (
            source.files if cases is None or cases.active is None else {**source.files, **cases.active.files}
        )
        weight = sum(
            len(raw) for name, raw in held.items() if name.endswith((".cedar", ".json", ".yaml", ".yml"))
        )
        if weight <= self.small_bytes:
            return self._in_thread(source, cases)
        return self._in_subprocess(source, cases)

    def close(self) -> None:
        """End every running subprocess."""
        with self._lock:
            self._closed = True
            for process in self._running:
                process.kill()

    def _in_thread(self, source: BundleFiles, cases: RequiredCases | None) -> tuple[Bundle, CaseCheck | None]:
        with _yielding_threads():
            bundle = assemble_bundle(source, check_files(source.files, self.outside), self.outside, _pause)
            if cases is None:
                return bundle, None
            try:
                return bundle, require_cases_pass(bundle, cases.active)
            except BundleError:
                bundle.close()
                raise

    def _in_subprocess(
        self, source: BundleFiles, cases: RequiredCases | None
    ) -> tuple[Bundle, CaseCheck | None]:
        active = None if cases is None or cases.active is None else dict(cases.active.files)
        request = LoadRequest(dict(source.files), self.outside is not None, cases is not None, active)
        raw = self._run(request)
        pieces: defaultdict[str, list[Any]] = defaultdict(list)
        with _yielding_threads():
            for frame in _frames(raw):
                kind, value = pickle.loads(frame)  # noqa: S301  from our own subprocess, over a private pipe
                pieces[kind].append(value)
                _pause()
            bundle = assemble_bundle(source, _assembled(pieces), self.outside, _pause)
            return bundle, next(iter(pieces["guarded"]), None)

    def _run(self, request: LoadRequest) -> bytes:
        process = self._start()
        try:
            raw, _ = process.communicate(pickle.dumps(request), timeout=self.max_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise _failed(
                f"reading it took longer than {self.max_seconds:g} seconds; make it smaller"
            ) from None
        finally:
            with self._lock:
                self._running.discard(process)
        if process.returncode != 0:
            raise _failed(
                f"the process that read it ended ({_exit_text(process.returncode)}); make it smaller or simpler"
            )
        return raw

    def _start(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise _failed("the service is stopping")
            process = subprocess.Popen(
                [sys.executable, "-I", "-c", _BEGIN, json.dumps(sys.path), str(self.max_seconds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _KEPT if name in os.environ},
            )
            self._running.add(process)
            return process


def _failed(why: str) -> LoaderFailedError:
    return LoaderFailedError([Problem("bundle", None, f"the bundle could not be read: {why}")])


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _frames(raw: bytes) -> Iterator[memoryview]:
    at, whole = 0, memoryview(raw)
    while at < len(raw):
        size = int.from_bytes(whole[at : at + 8], "big")
        yield whole[at + 8 : at + 8 + size]
        at += 8 + size


def _pause() -> None:
    time.sleep(_PAUSE_S)


@contextmanager
def _yielding_threads() -> Iterator[None]:
    """Shorten the switch interval and pause garbage collection, which would stop all threads in a large heap."""
    with _Switches.lock:
        if _Switches.preparing == 0:
            _Switches.before = sys.getswitchinterval(), gc.isenabled()
            sys.setswitchinterval(min(_SWITCH_S, sys.getswitchinterval()))
            gc.disable()
        _Switches.preparing += 1
    try:
        yield
    finally:
        with _Switches.lock:
            _Switches.preparing -= 1
            if _Switches.preparing == 0:
                interval, collecting = _Switches.before
                sys.setswitchinterval(interval)
                if collecting:
                    gc.enable()


class _Switches:
    """The number of loading threads. These settings are global to the process, so the last thread restores them."""

    lock = threading.Lock()
    preparing = 0
    before = (0.0, True)
