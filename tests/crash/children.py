"""Real processes, forked from a server that has imported everything, so that a hundred of them take seconds.

The service runs `policy-service serve`, an operator any other verb of that command; the agent runs the SDK with the
tools of `agent.py`. Each may be killed at a given point.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.crash.dying import Death, Passing, watch_agent, watch_service
from tests.crash.forking import forked

START_S = 60.0


@dataclass(frozen=True)
class Command:
    """One run of `policy-service`: its words and its environment. What it says and passes is written in `folder`."""

    words: tuple[str, ...]
    env: Mapping[str, str]
    folder: Path
    death: Death | None = None

    @property
    def said(self) -> Path:
        """Where its output goes."""
        return self.folder / f"{self.words[0]}.out"


def _run_command(command: Command) -> None:
    for name in [name for name in os.environ if name.startswith("COUNTERSIGN_")]:
        del os.environ[name]
    os.environ.update(command.env)
    said = os.open(command.said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(said, stream)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    watch_service(Passing(command.folder / "points.log", command.death))
    if command.words[0] == "verb":  # what every verb of the command line comes down to
        from policy_service.channels.admin.socket import run_admin_command
        from policy_service.settings import load_settings

        run_admin_command(load_settings(), command.words[1], json.loads(command.words[2]))
        return
    from policy_service.cli import app

    app(list(command.words))


class Child:
    """A forked process."""

    def __init__(self, run: Any, order: Any) -> None:
        self.process: BaseProcess = forked(run, order)

    @property
    def pid(self) -> int:
        """Its number."""
        assert self.process.pid is not None
        return self.process.pid

    @property
    def killed(self) -> bool:
        """Whether it has ended by SIGKILL."""
        return self.process.exitcode == -signal.SIGKILL

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.process.exitcode is not None

    def wait_if_dying(self) -> bool:
        """Whether it has ended, or is about to: a connection breaks a moment before its process is gone."""
        self.process.join(0.5)
        return self.ended

    def wait(self, seconds: float = START_S) -> int:
        """Its exit code, once it has ended."""
        self.process.join(seconds)
        code = self.process.exitcode
        assert code is not None, f"process {self.pid} hangs"
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it is there."""
        if not self.ended:
            os.kill(self.pid, number)

    def close(self) -> None:
        """Leave nothing running."""
        self.signal(signal.SIGKILL)
        self.process.join(START_S)
        self.process.close()


class ServiceChild(Child):
    """A `policy-service serve`."""

    def __init__(self, command: Command) -> None:
        self._said = command.said
        self._from = self._said.stat().st_size if self._said.exists() else 0
        super().__init__(_run_command, command)

    def wait_until_open(self) -> bool:
        """Whether it answers; False when it ended instead."""
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            if "listening on" in self.said():
                return True
            if self.ended:
                return False
            time.sleep(0.01)
        raise AssertionError(f"the service does not open: {self.said()[-2000:]}")

    def said(self) -> str:
        """What this run has said so far."""
        if not self._said.exists():
            return ""
        with self._said.open("rb") as file:
            file.seek(self._from)
            return file.read().decode(errors="replace")


def run_command(command: Command) -> int:
    """One verb of the operator's command line to its end; its exit code."""
    child = Child(_run_command, command)
    try:
        return child.wait()
    finally:
        child.close()


def run_agent(life: Any) -> dict[str, Any]:
    """One life of the agent to its end; what it could still say."""
    report: Path = life.folder / "result.json"
    report.unlink(missing_ok=True)
    child = Child(_live, life)
    try:
        code = child.wait()
        if code == -signal.SIGKILL:
            return {"raised": "killed"}
        assert code == 0, f"{life} ended with {code}"
        said: dict[str, Any] = json.loads(report.read_text())
        return said
    finally:
        child.close()


def _live(life: Any) -> None:
    from tests.crash.agent import live

    watch_agent(Passing(life.folder / "agent-points.log", life.death))
    live(life)
