"""The service as an operator runs it: a process of its own, started and stopped from the command line."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tests.fakes import warm

REPOSITORY = warm.REPOSITORY
_START_S = 60.0  # a busy machine takes its time to import everything


def environment(data: Path, bundle: Path, port: int, **more: str) -> dict[str, str]:
    """The settings of a service, as its operator exports them."""
    folders = {"COUNTERSIGN_DATA_DIR": str(data), "COUNTERSIGN_BUNDLE_DIR": str(bundle)}
    return folders | {"COUNTERSIGN_PORT": str(port), "COUNTERSIGN_DEV_SIGNIN": "true", **more}


def command(*args: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """One command to its end."""
    words = ["-m", "policy_service.cli", *args]
    return warm.run(words, cwd=REPOSITORY, env=_with_paths(env), timeout=_START_S)


def _with_paths(env: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": warm.PATHS, **env}


class Operated:
    """A running `policy-service serve`."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = dict(env)
        self.url = f"http://127.0.0.1:{env['COUNTERSIGN_PORT']}"
        self.said: list[str] = []
        self._up = threading.Event()
        words = ["-m", "policy_service.cli", "serve"]
        self._process = warm.start(words, cwd=REPOSITORY, env=_with_paths(env), stdout=subprocess.PIPE)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        assert self._up.wait(_START_S), "the service did not start"
        assert self._process.poll() is None, "the service ended at once"
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def link(self, person: str) -> str:
        """The one-time sign-in link it printed for somebody."""
        found = [re.search(rf"sign in as {person}: (\S+)", line) for line in self.said]
        return next(match.group(1) for match in found if match is not None)

    @contextmanager
    def hanging(self) -> Iterator[int]:
        """It neither answers nor ends; its pid."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield self._process.pid
        finally:
            self._process.send_signal(signal.SIGCONT)

    def stop(self, how: signal.Signals = signal.SIGINT) -> int:
        """Ask it to stop, as Ctrl-C does; how it ended."""
        if self._process.poll() is None:
            self._process.send_signal(how)
        code = self._process.wait(_START_S)
        self._reader.join(_START_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def kill(self) -> int:
        """End it without a word."""
        return self.stop(signal.SIGKILL)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(line.decode().rstrip("\n"))
            if len(self.said) > 1 and b"sign in as" in line:
                self._up.set()
        self._up.set()
