"""A worker's connection to its supervisor: it reports readiness, and stops the worker once the supervisor is gone."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Final

READY: Final = b"r"
STOP_S: Final = 30.0  # longer than a stop takes: running requests have 5 seconds, then the log is finished


class WorkerChannel:
    """A worker's connection to its supervisor."""

    def __init__(self, handle: int, folder: Path) -> None:
        os.set_inheritable(handle, False)
        self._channel, self._folder = socket.socket(fileno=handle), folder
        threading.Thread(target=self._follow, name="supervisor", daemon=True).start()

    def report_ready(self) -> None:
        """Tell the supervisor that this worker serves."""
        with contextlib.suppress(OSError):  # it is gone; `_follow` stops this process
            self._channel.send(READY)

    def _follow(self) -> None:
        """Stop this process once the supervisor is gone, however it ended."""
        with contextlib.suppress(OSError):
            self._channel.recv(1)
        shutil.rmtree(self._folder, ignore_errors=True)  # nothing else cleans it then
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(STOP_S)
        os._exit(1)
