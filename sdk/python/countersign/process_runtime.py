"""The runtime that a process uses where none is named."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from countersign.runtime import Runtime

_default: Runtime | None = None


_default_lock = threading.Lock()


def default_runtime() -> Runtime:
    """The process's runtime, made from the environment at first use.

    Raises:
        SettingsError: the environment lacks a setting, or a file's mode is too open.
    """
    global _default  # noqa: PLW0603 - one per process is intended
    with _default_lock:
        if _default is None:
            _default = Runtime.from_env()
        return _default


@contextmanager
def use_runtime(runtime: Runtime) -> Iterator[Runtime]:
    """Use this runtime as the process's runtime inside the block."""
    global _default  # noqa: PLW0603 - one per process is intended
    with _default_lock:
        before, _default = _default, runtime
    try:
        yield runtime
    finally:
        with _default_lock:
            _default = before
