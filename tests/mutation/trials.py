"""Run tests against mutants: each in a copy of the repository, in a process forked off one that has the libraries."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.conventions.repository import ROOT, files
from tests.mutation.mutants import Mutant, put_in
from tests.mutation.reach import FOLDER

# Loaded once for all trials. None of our own: each trial loads these from its copy.
LIBRARIES = (
    "pytest alembic anthropic apscheduler authlib cedarpy dulwich fastapi httpx2 hypothesis joserfc jsonschema mcp"
    " openai psycopg pydantic_settings slack_sdk sqlmodel structlog typer uvicorn webauthn yaml"
).split()
QUIET = "-x -q -p no:randomly -p no:cacheprovider -W ignore::pytest.PytestAssertRewriteWarning".split()


@dataclass(frozen=True)
class Trial:
    """One mutant, or none, against some tests in this order, until the first that fails."""

    mutant: Mutant | None
    tests: Sequence[str]
    limit_s: float


@dataclass(frozen=True)
class Result:
    """What came of a trial: the test that failed; `complete` is false where time ran out or nothing could be run."""

    trial: Trial
    failed: str | None
    complete: bool
    seconds: float


@dataclass
class _Running:
    trial: Trial
    copy: Path
    changed: Path | None
    began: float


def load_libraries() -> None:
    """Make every later fork begin with them."""
    for name in LIBRARIES:
        importlib.import_module(name)


def make_copies(count: int) -> list[Path]:
    """Fresh copies of the working tree, one for each trial at a time."""
    copies = []
    for number in range(count):
        copy = FOLDER / f"copy-{number}"
        shutil.rmtree(copy, ignore_errors=True)
        for path in files():
            target = copy / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
        modules = ROOT / "tests/counterparts/node_modules"
        if modules.exists():
            (copy / "tests/counterparts/node_modules").symlink_to(modules)
        subprocess.run(["git", "init", "-q", copy], check=True)  # tests ask git which files there are
        copies.append(copy)
    # Else every mutant would seem to be found, by a collection that fails without it.
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider"]
    paths = os.pathsep.join((str(copies[0]), str(copies[0] / "sdk/python")))
    environment = {**os.environ, "PYTHONPATH": paths}
    subprocess.run(collect, cwd=copies[0], env=environment, check=True, stdout=subprocess.DEVNULL)
    return copies


def run(trials: Iterator[Trial], copies: list[Path]) -> Iterator[Result]:
    """Run trials as they come, one in each copy at a time; results come in the order they end."""
    free, running = list(copies), {}
    source: Iterator[Trial] | None = trials
    while source or running:
        while free and source:
            trial = next(source, None)
            if trial is None:
                source = None
                break
            copy = free.pop()
            one = _Running(trial, copy, _change(trial, copy), time.monotonic())
            running[_fork(one)] = one
        for pid in list(running):
            one = running[pid]
            over = time.monotonic() - one.began > one.trial.limit_s
            if over:
                _kill(pid)
            ended, _ = os.waitpid(pid, 0 if over else os.WNOHANG)
            if ended:
                _kill(pid)  # what it left behind
                del running[pid]
                free.append(one.copy)
                yield _result(one)
        time.sleep(0.02)


def _change(trial: Trial, copy: Path) -> Path | None:
    (copy / "outcome.json").unlink(missing_ok=True)
    if trial.mutant is None:
        return None
    path, text, _ = put_in(trial.mutant, copy)
    path.write_text(text, encoding="utf-8")
    return path


def _result(one: _Running) -> Result:
    if one.changed is not None:
        shutil.copy2(ROOT / one.changed.relative_to(one.copy), one.changed)
    seconds = time.monotonic() - one.began
    with suppress(FileNotFoundError):
        outcome = json.loads((one.copy / "outcome.json").read_text())
        return Result(one.trial, outcome["failed"], outcome["complete"], seconds)
    return Result(one.trial, None, False, seconds)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _fork(one: _Running) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        out = os.open(one.copy / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(one.copy)
        _test(one)
    finally:
        os._exit(0)


def _test(one: _Running) -> None:
    import pytest

    paths = [str(one.copy), str(one.copy / "sdk/python")]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    sys.path[:0] = paths
    for name in [*sys.modules]:
        if name.partition(".")[0] in {"tests", "countersign", "policy_service"}:
            del sys.modules[name]
    watch = _Watch(one.copy / "outcome.json")
    words = [*QUIET, "--timeout", "60", f"--rootdir={one.copy}", *one.trial.tests]
    status = pytest.main(words, plugins=[watch])
    # A suite that cannot be collected has found the fault too.
    exits = pytest.ExitCode
    broken = status in {exits.INTERRUPTED, exits.INTERNAL_ERROR, exits.USAGE_ERROR}
    watch.write(watch.failed or ("collection" if broken else None), complete=True)


class _Watch:
    def __init__(self, out: Path) -> None:
        self.out = out
        self.failed: str | None = None

    def pytest_runtest_logreport(self, report: object) -> None:
        if getattr(report, "failed", False) and self.failed is None:
            self.failed = str(getattr(report, "nodeid", ""))
            self.write(self.failed, complete=True)  # a later test may hang

    def write(self, failed: str | None, *, complete: bool) -> None:
        self.out.write_text(json.dumps({"failed": failed, "complete": complete}))
