"""A developer at a terminal with `policy-service dev`: types, saves, reads what it says."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import signal
import subprocess
import threading
import time
import tty
from pathlib import Path
from typing import Any, Self

from examples.local_service import free_port
from examples.person import Person
from tests.fakes import warm
from tests.fakes.warm import PATHS

_SECONDS = 90.0  # a busy machine takes its time to import everything


class Sitting:
    """One `policy-service dev my_agent.py`. ``said`` is everything the terminal shows so far."""

    def __init__(self, folder: Path, *arguments: str, port: int | None = None, **env: str) -> None:
        self.folder = folder
        self.said = ""
        self._read = 0
        self._news = threading.Condition()
        words = ["-m", "policy_service.cli", "dev", "--port", str(port or free_port())]
        # A terminal, as at a desk: both programs write whole lines to it.
        self._terminal, slave = os.openpty()
        tty.setraw(slave)
        screen = os.fdopen(slave, "wb", 0)
        env = os.environ | {"PYTHONPATH": PATHS, "TERM": "dumb"} | env
        ends: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": screen, "stderr": subprocess.STDOUT}
        words = [*words, "my_agent.py", *arguments]
        self.process = warm.start(words, cwd=folder, env=env, start_new_session=True, **ends)
        screen.close()
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.end()

    def waits_for(self, pattern: str) -> re.Match[str]:
        """The next place where the terminal says this; what was read before is not looked at again.

        Only whole lines are looked at: a pattern that ends in ``(.*)`` must not take half of one.
        """
        until = time.monotonic() + _SECONDS
        with self._news:
            while (found := re.search(pattern, self._lines())) is None:
                alive = self.process.poll() is None or self._reader.is_alive()
                assert alive and self._news.wait(until - time.monotonic()), f"no {pattern!r} in:\n{self.said}"
            self._read += found.end()
            return found

    def _lines(self) -> str:
        return self.said[self._read : self.said.rfind("\n") + 1]

    def types(self, line: str) -> None:
        """A line at the keyboard."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def saves(self, text: str, name: str = "my_agent.py") -> None:
        """A file, as an editor saves it."""
        draft = self.folder / f".{Path(name).name}.draft"
        draft.write_text(text)
        draft.replace(self.folder / name)

    def approves(self, link: str, url: str) -> None:
        """The developer in their browser."""
        with Person(url.partition("/reviews")[0]) as me:
            me.sign_in(link)
            me.approve(url)

    def end(self) -> int:
        """How it ended."""
        code = self.process.wait(_SECONDS)
        self._reader.join(_SECONDS)
        if self.process.stdin is not None:
            self.process.stdin.close()
        return code

    def _listen(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        with contextlib.suppress(OSError):  # EIO: the last program has closed the terminal
            while chunk := os.read(self._terminal, 65_536):
                with self._news:
                    self.said += decoder.decode(chunk)
                    self._news.notify_all()
        os.close(self._terminal)
        with self._news:
            self._news.notify_all()


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_gone(pid: int) -> bool:
    """Whether a process ends within the time its keeper gives it."""
    until = time.monotonic() + 20
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return not is_alive(pid)
