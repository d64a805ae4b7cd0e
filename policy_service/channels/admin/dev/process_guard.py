"""Run one program and stop it, with all its child processes, when the parent process closes the pipe or dies.

Started by path in its own interpreter (`python -I process_guard.py PROGRAM ...`) without any dependency. Its standard
input is a pipe from the parent. The program gets its own session, so Ctrl-C in the terminal reaches only the parent.
The program is stopped with SIGINT first, which lets a transaction roll back, then SIGTERM, then SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

# The signals in order, and the seconds to wait after each.
STOP_SIGNALS = ((signal.SIGINT, 5.0), (signal.SIGTERM, 2.0), (signal.SIGKILL, 0.0))


def main(words: list[str]) -> int:
    """Run the program and return its exit status, or 128 plus the number of the signal that ended it."""
    # Background jobs of a shell inherit an ignored SIGINT; the program must receive it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    program = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
    threading.Thread(target=_stop_when_stdin_closes, args=(program.pid,), daemon=True).start()
    code = program.wait()
    _signal_group(program.pid, signal.SIGKILL)  # remaining child processes
    return code if code >= 0 else 128 - code


def _stop_when_stdin_closes(group: int) -> None:
    os.read(0, 1)  # nothing is ever written: it returns when the other end is closed
    for number, seconds in STOP_SIGNALS:
        _signal_group(group, number)
        time.sleep(seconds)


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the group is empty
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
