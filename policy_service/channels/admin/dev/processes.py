"""Child processes of a dev session, each under `process_guard.py`, so that none outlives it."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_PROCESS_GUARD = str(Path(__file__).with_name("process_guard.py"))
SCRIPT_RUNNER = str(Path(__file__).with_name("script_runner.py"))
"""Runs the script whose path is its first argument."""


async def start_guarded(words: Sequence[str], env: Mapping[str, str], *, captured: bool = False) -> Process:
    """Start a program of this interpreter under the guard; its output is inherited unless it is captured."""
    out = PIPE if captured else None
    command = (sys.executable, "-I", _PROCESS_GUARD, sys.executable, *words)
    return await asyncio.create_subprocess_exec(
        *command, env=env, stdin=PIPE, stdout=out, stderr=out, start_new_session=True
    )


async def stop_process(process: Process) -> int:
    """Close the guard's pipe and wait until the program and its children have ended. Returns its exit status."""
    if process.stdin is not None:
        process.stdin.close()
    return await process.wait()


async def run_process(words: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a program to its end with inherited output. A cancellation stops the program first."""
    process = await start_guarded(words, env)
    try:
        return await process.wait()
    finally:
        await stop_process(process)


async def capture_process(
    words: Sequence[str], env: Mapping[str, str], *, seconds: float
) -> tuple[int, str, str]:
    """Run a program and return its exit status, standard output and standard error.

    Raises:
        TimeoutError: it took longer and was stopped.
    """
    process = await start_guarded(words, env, captured=True)
    try:
        async with asyncio.timeout(seconds):
            # Not communicate(): that would close the guard's pipe.
            out, err, code = await asyncio.gather(
                _read_all(process.stdout), _read_all(process.stderr), process.wait()
            )
        return code, out, err
    finally:
        await stop_process(process)


async def _read_all(stream: asyncio.StreamReader | None) -> str:
    return "" if stream is None else (await stream.read()).decode(errors="replace")


class Script:
    """The agent's script, at most one run at a time."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str], ended: Callable[[int], None]) -> None:
        self._words = words
        self._env = env
        self._ended = ended
        self._process: Process | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """Whether the script is running."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Run it, after stopping the current run."""
        await self.stop()
        self._process = await start_guarded(self._words, self._env)
        self._watch = asyncio.create_task(self._notify_exit(self._process))

    async def stop(self) -> None:
        """Stop it without reporting its exit."""
        if self._watch is not None:
            self._watch.cancel()
        if self._process is not None:
            await stop_process(self._process)
        self._process = self._watch = None

    async def _notify_exit(self, process: Process) -> None:
        self._ended(await process.wait())
