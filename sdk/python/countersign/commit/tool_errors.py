"""What a tool's exception means, and the text of it that people see."""

from __future__ import annotations

from typing import Final

from countersign.commit.plan import PlannedCall
from countersign.concurrency import ToolTimeoutError
from countersign.errors import CountersignError, NotDone, ToolRaised
from countersign.errors.tracebacks import skip_sdk_frames
from countersign.live.sessions import has_no_arguments
from countersign.texts import text_of
from countersign.tools.rest import RestUnknown
from countersign.tools.results import UnfinishedError

MAX_ERROR: Final = 500  # characters of a tool's exception that people see
_EARLIER: Final = "; an earlier try "
_IN_DOUBT: Final = ", and may have happened"


def describe_error(call: PlannedCall, error: BaseException) -> str:
    """The text people see for a tool's exception. Only its type if the tool has secret arguments."""
    return _describe(error, has_secrets=call.has_secrets)


def describe_block_error(error: BaseException, *, has_secrets: bool) -> str:
    """The text people see for the exception that ended a block. An SDK error that quotes no argument keeps its whole
    text.
    """
    if has_no_arguments(error) and (text := text_of(error)):
        return f"{type(error).__name__}: {text}"
    return _describe(error, has_secrets=has_secrets)


def _describe(error: BaseException, *, has_secrets: bool) -> str:
    kind = type(error).__name__
    text = "" if has_secrets else text_of(error)
    return f"{kind}: {text}"[:MAX_ERROR] if text else kind


def with_earlier_try(message: str, earlier: str) -> str:
    """Combine the text of a last try that did nothing with that of an `earlier` try in doubt. Each keeps its share
    of the limit.
    """
    rest = f"{_EARLIER}{earlier[: MAX_ERROR // 2]}{_IN_DOUBT}"
    return f"{message[: MAX_ERROR - len(rest)]}{rest}"


def last_try_was_not_done(why: str) -> bool:
    """Whether this text describes a call whose last try reported that nothing happened."""
    return _EARLIER in why


def public_cause(call: PlannedCall, error: Exception) -> Exception:
    """The tool's exception as the `__cause__` of the error we raise, with the SDK's own frames removed. A tool with
    secret arguments gets a `ToolRaised` with the location only, because a traceback prints the text of the exception
    and of its causes.
    """
    if call.has_secrets:
        return ToolRaised.of(call.tool.name, error)
    trace = skip_sdk_frames(error.__traceback__)
    if trace is None and not isinstance(error, ToolTimeoutError | UnfinishedError | CountersignError):
        return error  # one of our own tools, as for an MCP server: this may be a bug
    return error.with_traceback(trace)


def redact_exit(call: PlannedCall, leaving: SystemExit) -> SystemExit:
    """The `SystemExit` of a tool, without its text if the tool has secret arguments: Python prints that text. The
    exit code is kept; it is 1 for an exit with a text.
    """
    if not call.has_secrets:
        return leaving
    return SystemExit(leaving.code if isinstance(leaving.code, int | None) else 1)


def is_not_done(call: PlannedCall, error: BaseException) -> bool:
    """Whether the tool reports that nothing happened, by `NotDone` or by its declaration. A `RestUnknown` or a
    timeout is never such a report.
    """
    if isinstance(error, ToolTimeoutError | RestUnknown | UnfinishedError) or not isinstance(
        error, Exception
    ):
        return False  # not reported by the tool, or an exit: the call may have landed
    return isinstance(error, NotDone) or call.tool.failure_means == "not_done"


class TooLateError(NotDone):
    """A call was not made because its permit had expired."""


def is_final(call: PlannedCall, error: BaseException) -> bool:
    """Whether this error reports that nothing happened and no further try follows."""
    if isinstance(error, TooLateError) or not is_not_done(call, error):
        return False
    return isinstance(error, NotDone) or not call.manifest.idempotent
