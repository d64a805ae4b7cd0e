"""Guarded programs end with their parent, including their child processes."""

import asyncio
import os
import textwrap

import pytest

from policy_service.channels.admin.dev import processes
from tests.fakes.sitting import is_alive, is_gone

ENV = dict(os.environ)
PARENT = (
    "import os, subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "print(os.getpid(), child.pid, flush=True)\n"
)


async def pids(process: asyncio.subprocess.Process) -> tuple[int, int]:
    assert process.stdout is not None
    one, other = (await process.stdout.readline()).split()
    return int(one), int(other)


async def test_closing_the_pipe_interrupts_the_program_first() -> None:
    # inside the try from the start: the interrupt may come as soon as the pids are printed
    body = textwrap.indent(PARENT + "time.sleep(600)\n", "    ")
    code = f"try:\n{body}except KeyboardInterrupt: print('undone', flush=True)\n"
    process = await processes.start_guarded(["-c", code], ENV, captured=True)
    parent, child = await pids(process)
    assert await processes.stop_process(process) == 0
    assert process.stdout is not None and await process.stdout.read() == b"undone\n"
    assert is_gone(parent) and is_gone(child)


async def test_child_processes_end_with_the_program() -> None:
    process = await processes.start_guarded(["-c", PARENT], ENV, captured=True)
    _, child = await pids(process)
    assert await process.wait() == 0
    assert is_gone(child)


async def test_a_program_that_ignores_signals_is_killed() -> None:
    deaf = "import signal; [signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)]\n"
    process = await processes.start_guarded(["-c", deaf + PARENT + "time.sleep(600)"], ENV, captured=True)
    parent, child = await pids(process)
    assert await processes.stop_process(process) == 128 + 9
    assert is_gone(parent) and is_gone(child)


async def test_a_guarded_program_has_no_input_and_a_time_limit() -> None:
    code, out, err = await processes.capture_process(["-c", "print(repr(input()))"], ENV, seconds=60)
    assert (code, out) == (1, "") and "EOFError" in err
    with pytest.raises(TimeoutError):
        await processes.capture_process(["-c", "import time; time.sleep(600)"], ENV, seconds=0.5)


async def test_an_exit_is_reported_unless_the_script_was_stopped() -> None:
    ends: list[int] = []
    output = asyncio.Event()

    def ended(status: int) -> None:
        ends.append(status)
        output.set()

    script = processes.Script(["-c", "raise SystemExit(3)"], ENV, ended)
    await script.start()
    await output.wait()
    assert ends == [3] and not script.running
    slow = processes.Script(["-c", "import time; time.sleep(600)"], ENV, ended)
    await slow.start()
    await slow.stop()
    assert ends == [3] and not slow.running


async def test_the_guard_returns_128_plus_the_signal() -> None:
    assert is_alive(os.getpid())
    ended = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    assert await processes.run_process(["-c", ended], ENV) == 128 + 15
