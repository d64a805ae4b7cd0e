"""Holds one program on a leash: when whoever started it closes the leash, or dies, the program and all it began end.

Run by path in an interpreter of its own (`python -I keeper.py PROGRAM ...`), because it must outlive nothing and depend
on nothing. Its standard input is the leash. The program gets a session of its own, so that Ctrl-C in the terminal
reaches only the one that holds the leash, who then ends things in order: asked first (Ctrl-C, which a transaction
unwinds from), told next, killed last.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

# How it is ended, and how many seconds it has to comply.
STOP_SIGNALS = ((signal.SIGINT, 5.0), (signal.SIGTERM, 2.0), (signal.SIGKILL, 0.0))


def main(words: list[str]) -> int:
    """Run the program to its end and answer its exit status, 128 and the number for one that a signal ended."""
    # A shell's background jobs ignore Ctrl-C and hand that on; whoever is asked by it must hear it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    program = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
    threading.Thread(target=_stop_when_stdin_closes, args=(program.pid,), daemon=True).start()
    code = program.wait()
    _signal_group(program.pid, signal.SIGKILL)  # what it left behind
    return code if code >= 0 else 128 - code


def _stop_when_stdin_closes(group: int) -> None:
    os.read(0, 1)  # nothing is ever written there: it returns when the other end is closed
    for number, seconds in STOP_SIGNALS:
        _signal_group(group, number)
        time.sleep(seconds)


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left in it
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
