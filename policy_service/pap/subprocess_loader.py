"""Prepare a bundle without delaying requests: a small one in a thread, any other in a process of its own.

Rules kept here: a process that ends, hangs or grows while it reads a bundle means a refused bundle, and the
service goes on; it gets the bundle's bytes and no secret of the service, opens no connection, and is bounded in memory
and processor time; every set of policies it sends was accepted by the engine there first. The result is taken piece by
piece, so that the event loop never waits for long. Checking in a thread would delay every request: the interpreter
runs one thread at a time.
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
"""Address space of the process; 10,000 policies take about an eighth."""

_NICE: Final = 5
_AT_A_TIME: Final = 25  # policies in one piece: what holds up the service at most is the reading of one

# whole at once: without this it is filled after it is made
copyreg.pickle(pst.FrozenMap, lambda frozen: (pst.FrozenMap, (dict(frozen),)))


@dataclass(frozen=True)
class LoadRequest:
    """One bundle to read; with ``guarded`` its cases are run, and those of the bundle in force where there is one."""

    files: Mapping[str, bytes]
    allowed_outside: bool
    guarded: bool
    active: Mapping[str, bytes] | None


@dataclass
class LoadResponse:
    """What was found, put together again from its pieces."""

    refused: BundleError | None = None
    guarded: CaseCheck | None = None
    _whole: CheckedBundle | None = None
    _lists: dict[str, list[Any]] = field(default_factory=lambda: {"version": [], "tool": [], "policies": []})

    def take(self, piece: tuple[str, Any]) -> None:
        """The next piece."""
        kind, value = piece
        if kind == "refused":
            why, problems = value
            self.refused = BundleError(problems, why)
        elif kind == "guarded":
            self.guarded = value
        elif kind == "rest":
            self._whole = value
        else:
            self._lists[kind].append(value)

    def checked(self) -> CheckedBundle | None:
        """All of it; None where its end is missing."""
        if self._whole is None:
            return None
        policies = {name: source for some in self._lists["policies"] for name, source in some}
        parts = replace(self._whole.parts, tools=tuple(self._lists["version"]))
        return replace(self._whole, parts=parts, policies=policies, tools=tuple(self._lists["tool"]))


def main(seconds: float) -> None:
    """Read one task from standard input and answer it on standard output."""
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a parser prints is no answer
    _bound(seconds)
    task: LoadRequest = pickle.load(sys.stdin.buffer)  # noqa: S301  from the service that started this process
    for piece in load_in_pieces(task):
        raw = pickle.dumps(piece)
        answer.write(len(raw).to_bytes(8, "big") + raw)
    answer.close()


def load_in_pieces(task: LoadRequest) -> Iterator[tuple[str, Any]]:
    """The pieces of the answer to a task."""
    try:
        checked = check_files(task.files, allowed_outside=task.allowed_outside)
        if task.guarded:
            active = None if task.active is None else _files(task.active)
            yield "guarded", require_cases_pass(assemble_bundle(_files(task.files), checked, None), active)
    except BundleError as error:
        yield "refused", (error.why, error.problems)
        return
    bodies = _bodies(checked)
    for version in checked.parts.tools:
        yield "version", version
    for tool in checked.tools:
        guards, written = _as_json(tool.guards, bodies), _as_json(tool.written, bodies)
        yield "tool", replace(tool, guards=guards, written=written)
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
    """Each policy as the engine's JSON, without its id; a long chain has none, because it is nested too deep for it."""
    bodies: dict[str, str] = {}
    for name, source in checked.policies.items():
        try:
            (body,) = json.loads(policies_to_json_str(source.text))["staticPolicies"].values()
            bodies[name] = json.dumps(body)
        except (ValueError, RecursionError):
            continue
    return bodies


def _as_json(written: PolicySetSource, bodies: Mapping[str, str]) -> PolicySetSource:
    """A set as JSON where the engine takes it so, which it then can without holding up anybody; else as it was."""
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
        import resource  # not on every system
    except ImportError:
        return
    os.nice(_NICE)
    for what, limit in ((resource.RLIMIT_AS, MAX_MEMORY_BYTES), (resource.RLIMIT_CPU, int(seconds) + 1)):
        hard = resource.getrlimit(what)[1]
        resource.setrlimit(what, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


SMALL_BYTES: Final = 32 * 1024
"""Rules, manifests and cases up to this are checked in a thread: about 100 policies, some 0.3 s; a process takes
longer to start than that."""

MAX_LOAD_S: Final = 180.0
"""For one bundle. The largest that is allowed (10,000 policies) takes about 30 on an idle core."""

_BREATH_S: Final = 0.0005  # between two pieces: whoever waits for the interpreter has it
_SWITCH_S: Final = 0.0005  # a thread is asked for the interpreter after this, not after the usual 5 ms
_BEGIN: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from policy_service.pap.subprocess_loader import main; main(float(sys.argv[2]))"
)
_KEPT: Final = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")


class LoaderFailedError(BundleError):
    """The process that read the bundle ended or took too long. It may do better at the next look."""


@dataclass(frozen=True, slots=True)
class RequiredCases:
    """Which cases a candidate has to pass beside its own: those of the bundle in force, if there is one."""

    active: BundleFiles | None


@dataclass
class BundleLoader:
    """Prepares bundles for one service; from any thread, one at a time each. Closing it ends what goes on."""

    outside: Allowlist | None = None
    small_bytes: int = SMALL_BYTES
    max_seconds: float = MAX_LOAD_S
    _running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False

    def prepare(
        self, source: BundleFiles, cases: RequiredCases | None = None
    ) -> tuple[Bundle, CaseCheck | None]:
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

    def _here(self, source: BundleFiles, cases: RequiredCases | None) -> tuple[Bundle, CaseCheck | None]:
        with _others_first():
            bundle = assemble_bundle(source, check_files(source.files, self.outside), self.outside, _breathe)
            if cases is None:
                return bundle, None
            try:
                return bundle, require_cases_pass(bundle, cases.active)
            except BundleError:
                bundle.close()
                raise

    def _apart(self, source: BundleFiles, cases: RequiredCases | None) -> tuple[Bundle, CaseCheck | None]:
        active = None if cases is None or cases.active is None else dict(cases.active.files)
        task = LoadRequest(dict(source.files), self.outside is not None, cases is not None, active)
        answer = LoadResponse()
        said = self._ask(task)
        with _others_first():
            for piece in _frames(said):
                answer.take(pickle.loads(piece))  # noqa: S301  our own process, over a pipe nobody else has
                _breathe()
            if answer.refused is not None:
                raise answer.refused
            if (checked := answer.checked()) is None:
                raise _ended("the process that read it answered nothing")
            return assemble_bundle(source, checked, self.outside, _breathe), answer.guarded

    def _ask(self, task: LoadRequest) -> bytes:
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


def _ended(why: str) -> LoaderFailedError:
    return LoaderFailedError([Problem("bundle", None, f"the bundle could not be read: {why}")])


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
    """How many threads prepare: the interpreter's switches are the whole process's, so the last one sets them back."""

    lock = threading.Lock()
    preparing = 0
    before = (0.0, True)
