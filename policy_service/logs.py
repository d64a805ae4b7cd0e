"""Logging: one JSON object a line on stderr, without secrets or personal data.

An exception is logged by its class, its code and where it was raised. Its message is left out, because it may quote
data, and so are local variables, which structlog prints by default. Lines of other libraries keep their format string
without its arguments. The log locates an error in the code and holds no secret.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO

import structlog

_FRAMES = 12  # of each exception, the innermost
_CHAIN = 5  # chained exceptions


def set_up_logs(file: TextIO | None = None, worker: int | None = None) -> None:
    """Configure structlog, to a file or to stderr, unless the embedding program has configured it.

    With ``worker``, every line has this number.
    """
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            *([] if worker is None else [_numbered(worker)]),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            strip_exception_messages,
            structlog.processors.JSONRenderer(default=_kind),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(file or sys.stderr),
    )


def set_up_foreign_logs(file: TextIO | None = None, worker: int | None = None) -> None:
    """Format what other libraries log in the same way, from level warning; only for a process of this service alone."""
    handler = logging.StreamHandler(file or sys.stderr)
    handler.setFormatter(_JsonLines(worker))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    # logging prints a line that it cannot write with all its arguments.
    logging.raiseExceptions = False
    logging.captureWarnings(True)


def log_loop_exception(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an exception that was never awaited. asyncio's own handler would quote its message."""
    structlog.get_logger(__name__).error(
        "fault_of_the_loop", what=context["message"], exc_info=context.get("exception")
    )


def strip_exception_messages(
    _: Any, __: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Replace the exception of a log line by classes and locations."""
    found = event.pop("exc_info", None)
    if found is True:
        found = sys.exc_info()[1]
    elif isinstance(found, tuple):
        found = found[1]
    if isinstance(found, BaseException):
        event["exception"] = exception_chain(found)
    return event


def exception_chain(error: BaseException) -> list[dict[str, Any]]:
    """An exception and its causes, the last first: class, code if it has one, and stack frames."""
    chain: list[dict[str, Any]] = []
    at: BaseException | None = error
    while at is not None and len(chain) < _CHAIN:
        chain.append({"kind": _kind(at), **_code(at), "at": _frames(at.__traceback__)})
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
    return chain


def _kind(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _code(error: BaseException) -> dict[str, str]:
    """The error's code: ours, the operating system's, or the database's."""
    driver = getattr(error, "orig", None) or error
    found = (
        getattr(getattr(error, "code", None), "value", None)
        or getattr(driver, "sqlite_errorname", None)
        or getattr(driver, "sqlstate", None)
        or (error.strerror if isinstance(error, OSError) else None)
    )
    return {"code": found} if isinstance(found, str) else {}


def _frames(trace: TracebackType | None) -> list[str]:
    places = []
    while trace is not None:
        code = trace.tb_frame.f_code
        module = trace.tb_frame.f_globals.get("__name__", "?")
        places.append(f"{module}:{trace.tb_lineno} {code.co_qualname}")
        trace = trace.tb_next
    return places[-_FRAMES:]


def _numbered(worker: int) -> structlog.typing.Processor:
    """A processor, because the context variables of a request do not reach every thread."""

    def add(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return {**event, "worker": worker}

    return add


class _JsonLines(logging.Formatter):
    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._worker = {} if worker is None else {"worker": worker}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "event": record.msg if isinstance(record.msg, str) else _kind(record.msg),
            "logger": record.name,
            **self._worker,
            "level": record.levelname.lower(),
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = exception_chain(record.exc_info[1])
        return json.dumps(line)
