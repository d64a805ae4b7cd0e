"""The one server that every process of these tests is forked from; it has imported what they need.

Both kinds of children share it: a process has one fork server, and the last word on what it preloads would win.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_PRELOADED = "pytest uvicorn policy_service.app policy_service.cli countersign.cli".split()
_CONTEXT.set_forkserver_preload(
    [*_PRELOADED, "tests.crash.alone", "tests.crash.agent", "tests.crash.children"]
)


def forked(run: Callable[[Any], object], order: Any) -> BaseProcess:
    """A started process."""
    _ensure_server()
    process = _CONTEXT.Process(target=_run, args=(os.getpid(), run, order))
    process.start()
    return process


def _run(tester: int, run: Callable[[Any], object], order: Any) -> None:
    """The child. It does not outlive the tests, however those end."""
    threading.Thread(target=_end_with, args=(tester,), daemon=True).start()
    run(order)


def _end_with(tester: int) -> None:
    while Path(f"/proc/{tester}").exists():
        time.sleep(1.0)
    os._exit(1)


def _ensure_server() -> None:
    """The fork server imports its preload from PYTHONPATH, not from our sys.path (CPython issue 117378)."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
