"""A disk that fails: `strace` makes chosen system calls of a running process on chosen files answer with an error."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.counterparts import require

WAY_TO_GET = "apt-get install strace"
_START_S = 60.0
_PATIENCE_S = 10.0


@dataclass(frozen=True)
class Fault:
    """The nth of these calls fails; with `on`, every one from then on."""

    call: str
    error: str
    nth: int = 1
    on: bool = False

    def __str__(self) -> str:
        return f"{self.call}-{self.error}-{self.nth}{'+' if self.on else ''}"


@dataclass
class Injected:
    """What was injected."""

    log: Path
    hits: int = 0

    def wait(self) -> None:
        """Let what follows in its own time (the epoch mark, 0.2 s apart) come to its fault, if it ever does."""
        until = time.monotonic() + _PATIENCE_S
        while not self.count() and time.monotonic() < until:
            time.sleep(0.05)

    def count(self) -> int:
        """How many calls were made to fail so far."""
        self.hits = self.log.read_text().count("(INJECTED)")
        return self.hits


@contextmanager
def failing(pid: int, files: tuple[Path, ...], fault: Fault, log: Path) -> Iterator[Injected]:
    """Inject the fault into the calls of that process on these files while the block lasts."""
    strace = require("strace", shutil.which("strace"), WAY_TO_GET)
    when = f"{fault.nth}{'+' if fault.on else ''}"
    paths = [word for file in files for word in ("-P", str(file))]
    process = subprocess.Popen(
        [strace, "-f", "-p", str(pid), "-o", str(log), *paths,
         "-e", f"trace={fault.call}", "-e", f"inject={fault.call}:error={fault.error}:when={when}"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    said = process.stderr.readline()
    assert "attached" in said, f"strace cannot trace a child of ours here: {said}"
    injected = Injected(log)
    try:
        yield injected
    finally:
        process.send_signal(signal.SIGINT)  # it lets go of the process and ends
        try:
            process.communicate(timeout=_START_S)
        except subprocess.TimeoutExpired:  # once in some hundred it hangs between two threads
            process.kill()  # the kernel lets go then
            process.communicate()
        injected.count()
