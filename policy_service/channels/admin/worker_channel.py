"""A worker's connection to its supervisor: it reports readiness, and stops the worker once the supervisor is gone.

A replaced worker reads the code, the settings and the keys anew. Workers of two generations must not serve next to each
other, so the supervisor sends the digest of its own, and a worker with another one ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Final

import structlog

from policy_service.settings import Settings
from policy_service.tokens.keys import read_keys

READY: Final = b"r"
OTHER_GENERATION: Final = 3  # exit status of a worker whose digest is not that of its supervisor
STOP_S: Final = 30.0  # longer than a stop takes: running requests have 5 seconds, then the log is finished


log = structlog.get_logger(__name__)


def generation(settings: Settings, version: str) -> bytes:
    """The digest of what all workers must have in common: the version, the settings and the signing keys.

    Raises:
        StartError: the keys cannot be read.
    """
    keys = [key.kid for key in read_keys(settings.key_dir).published]
    return hashlib.sha256(json.dumps([version, settings.model_dump_json(), keys]).encode()).digest()


def require_generation(settings: Settings, version: str, expected: bytes) -> None:
    """End this process if its version, settings or keys are not those that its supervisor started with."""
    if generation(settings, version) != expected:
        log.error("worker_of_another_generation", version=version)
        raise SystemExit(OTHER_GENERATION)


class WorkerChannel:
    """A worker's connection to its supervisor."""

    def __init__(self, handle: int, folder: Path) -> None:
        os.set_inheritable(handle, False)
        self._channel, self._folder = socket.socket(fileno=handle), folder
        self.generation = self._channel.recv(hashlib.sha256().digest_size, socket.MSG_WAITALL)
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
