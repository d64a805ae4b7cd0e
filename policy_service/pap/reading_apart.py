"""The other process: it reads the bytes of one bundle, and sends what it found in pieces small enough to take in turn.

Rules kept here: it is bounded in memory and processor time, gives way to the service on a busy machine, and writes to
nothing but its answer; every set of policies it sends was taken by the engine here first.
"""

from __future__ import annotations

import copyreg
import json
import os
import pickle
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from cedarpy import policies_to_json_str, pst

from policy_service.pap.bundle import Bundle, assemble, prepare_bundle
from policy_service.pap.cases.guarding import Guarded, guard
from policy_service.pap.checking import Checked, check_files
from policy_service.pap.compile import WrittenSet, WrittenTool, engine_set
from policy_service.pap.problems import BundleError
from policy_service.pap.source import BundleFiles

MAX_MEMORY_BYTES: Final = 4 * 1024**3
"""Address space of the process; 10,000 policies take about an eighth."""

_NICE: Final = 5
_AT_A_TIME: Final = 25  # policies in one piece: what holds up the service at most is the reading of one

# whole at once: without this it is filled after it is made
copyreg.pickle(pst.FrozenMap, lambda frozen: (pst.FrozenMap, (dict(frozen),)))


@dataclass(frozen=True)
class Task:
    """One bundle to read; with ``guarded`` its cases are run, and those of the bundle in force where there is one."""

    files: Mapping[str, bytes]
    allowed_outside: bool
    guarded: bool
    active: Mapping[str, bytes] | None


@dataclass
class Unpacking:
    """What was found, put together again from its pieces."""

    refused: BundleError | None = None
    guarded: Guarded | None = None
    _whole: Checked | None = None
    _lists: dict[str, list[Any]] = field(default_factory=lambda: {"version": [], "tool": [], "policies": []})

    def take(self, piece: tuple[str, Any]) -> None:
        """The next piece."""
        kind, value = piece
        if kind == "refused":
            why, problems = value
            self.refused = BundleError(problems)
            self.refused.why = why
        elif kind == "guarded":
            self.guarded = value
        elif kind == "rest":
            self._whole = value
        else:
            self._lists[kind].append(value)

    def checked(self) -> Checked | None:
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
    task: Task = pickle.load(sys.stdin.buffer)  # noqa: S301  from the service that started this process
    for piece in answers(task):
        raw = pickle.dumps(piece)
        answer.write(len(raw).to_bytes(8, "big") + raw)
    answer.close()


def answers(task: Task) -> Iterator[tuple[str, Any]]:
    """The pieces of the answer to a task."""
    try:
        checked = check_files(task.files, allowed_outside=task.allowed_outside)
        if task.guarded:
            yield "guarded", _guarded(task, checked)
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
    none: tuple[WrittenTool, ...] = ()
    parts = replace(checked.parts, tools=())
    yield "rest", replace(checked, parts=parts, policies={}, tools=none, people=people)


def _guarded(task: Task, checked: Checked) -> Guarded:
    def active() -> Bundle | None:
        return None if task.active is None else prepare_bundle(_files(task.active))

    return guard(assemble(_files(task.files), checked, None), task.active, active)


def _files(files: Mapping[str, bytes]) -> BundleFiles:
    return BundleFiles(files, "", "", "")


def _bodies(checked: Checked) -> dict[str, str]:
    """Each policy as the engine's JSON, without its id; a long chain has none, because it is nested too deep for it."""
    bodies: dict[str, str] = {}
    for name, source in checked.policies.items():
        try:
            (body,) = json.loads(policies_to_json_str(source.text))["staticPolicies"].values()
            bodies[name] = json.dumps(body)
        except (ValueError, RecursionError):
            continue
    return bodies


def _as_json(written: WrittenSet, bodies: Mapping[str, str]) -> WrittenSet:
    """A set as JSON where the engine takes it so, which it then can without holding up anybody; else as it was."""
    if isinstance(written, str) or not written or written.keys() - bodies.keys():
        return written
    inner = ",".join(f"{json.dumps(name)}:{bodies[name]}" for name in written)
    text = f'{{"templates":{{}},"staticPolicies":{{{inner}}},"templateLinks":[]}}'
    try:
        engine_set(text)
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
