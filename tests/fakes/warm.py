"""Programs of this repository in processes of their own, without the seconds that each spends on imports.

A process that has imported everything waits for orders and forks. `start` and `run` take the place of those of
`subprocess` for `python -m MODULE ...` and `python FILE ...`.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TypedDict

REPOSITORY = Path(__file__).parents[2]
PATHS = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "sdk/python")])
_IMPORTED = ("policy_service.app", "policy_service.cli", "countersign.cli.app", "pytest", "_pytest.pytester")
_NUMBER = struct.Struct("!i")


class _Order(TypedDict):
    words: list[str]
    cwd: str
    env: dict[str, str]
    session: bool


class Process:
    """A program that runs: the part of `subprocess.Popen` that the tests use."""

    def __init__(
        self,
        words: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        stdin: int,
        stdout: int | IO[bytes],
        stderr: int | IO[bytes],
        start_new_session: bool,
    ) -> None:
        self.args = words
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        with Path(os.devnull).open("r+b", buffering=0) as nothing:
            theirs = [nothing.fileno()] * 3
            opened = []
            if stdin == subprocess.PIPE:
                theirs[0], mine = os.pipe()
                self.stdin = os.fdopen(mine, "wb", 0)
                opened.append(theirs[0])
            if stdout == subprocess.PIPE:
                mine, theirs[1] = os.pipe()
                self.stdout = os.fdopen(mine, "rb", 0)
                opened.append(theirs[1])
            elif not isinstance(stdout, int):
                theirs[1] = stdout.fileno()
            if stderr == subprocess.STDOUT:
                theirs[2] = theirs[1]
            elif not isinstance(stderr, int):
                theirs[2] = stderr.fileno()
            self._control, far = socket.socketpair()
            socket.send_fds(_server(), [b"!"], [*theirs, far.fileno()])
        far.close()
        for one in opened:
            os.close(one)
        order = {"words": words, "cwd": str(cwd), "env": dict(env), "session": start_new_session}
        self._control.sendall(json.dumps(order).encode() + b"\n")
        (self.pid,) = _NUMBER.unpack(self._control.recv(_NUMBER.size, socket.MSG_WAITALL))

    def poll(self) -> int | None:
        """Its exit status, or None while it runs; a signal's number is negative."""
        if self.returncode is None:
            try:
                (self.returncode,) = _NUMBER.unpack(self._control.recv(_NUMBER.size, socket.MSG_DONTWAIT))
            except BlockingIOError:
                return None
            self._control.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, once it has ended.

        Raises:
            subprocess.TimeoutExpired: it still runs after that many seconds.
        """
        begun = time.monotonic()
        while self.poll() is None:
            if timeout is not None and time.monotonic() - begun > timeout:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.005)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """A signal for it, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


def start(
    words: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdin: int = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] = subprocess.DEVNULL,
    start_new_session: bool = False,
) -> Process | subprocess.Popen[bytes]:
    """The program WORDS, forked; a new interpreter where coverage records what each process runs."""
    if "COVERAGE_PROCESS_CONFIG" in os.environ:
        return subprocess.Popen(
            [sys.executable, *words], cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr,
            start_new_session=start_new_session,
        )  # fmt: skip
    return Process(words, cwd, env, stdin, stdout, stderr, start_new_session)


def run(
    words: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """A program to its end, with what it wrote.

    Raises:
        subprocess.TimeoutExpired: it takes longer than that many seconds.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        code = start(words, cwd=cwd, env=env, stdout=out, stderr=err).wait(timeout)
        said = []
        for one in (out, err):
            one.seek(0)
            said.append(one.read().decode())
    return subprocess.CompletedProcess(words, code, *said)


@functools.cache
def _server() -> socket.socket:
    """The end of the socket on which the process that forks takes its orders; it ends with this process."""
    here, there = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.warm", str(there.fileno())],
        cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": PATHS}, pass_fds=[there.fileno()], start_new_session=True,
    )  # fmt: skip
    there.close()

    def end() -> None:
        here.close()
        process.wait()

    atexit.register(end)
    return here


def _serve(orders: socket.socket) -> _Order:
    """Take orders until the other end is gone. It comes back in a child only, with what that child is to do."""
    while True:
        _reap()
        message, files, _, _ = socket.recv_fds(orders, 1, 4)
        if not message:
            sys.exit()
        if os.fork() == 0:
            orders.close()
            return _between(files)
        for one in files:
            os.close(one)


def _reap() -> None:
    """Wait for those that have ended: their processor time counts as that of this process."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _between(files: list[int]) -> _Order:
    """In a child of the server: fork the program, tell its pid and, once it has ended, how."""
    control = socket.socket(fileno=files[3])
    order: _Order = json.loads(control.makefile("rb").readline())
    pid = os.fork()
    if pid == 0:
        if order["session"]:
            os.setsid()
        control.close()
        for target, one in enumerate(files[:3]):
            os.dup2(one, target)
        for one in files[:3]:
            os.close(one)
        return order
    for one in files[:3]:
        os.close(one)
    control.sendall(_NUMBER.pack(pid))
    control.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
    os._exit(0)


def _become(order: _Order) -> None:
    """Be the program of an order, as `python -m MODULE ...` or `python FILE ...` would be it."""
    words = order["words"]
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    time.tzset()
    sys.argv = words[1:] if words[0] == "-m" else words
    sys.path[:0] = [order["cwd"], *order["env"].get("PYTHONPATH", "").split(os.pathsep)]
    for stream in (sys.stdout, sys.stderr):
        by_line = stream.isatty() or "PYTHONUNBUFFERED" in order["env"]
        stream.reconfigure(line_buffering=by_line)  # type: ignore[union-attr]
    if words[0] != "-m":
        runpy.run_path(words[0], run_name="__main__")
        return
    sys.modules.pop(words[1], None)
    runpy.run_module(words[1], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # a child shares these pages as long as no process writes to them
    _become(_serve(socket.socket(fileno=int(sys.argv[1]))))
