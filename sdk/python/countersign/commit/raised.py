"""What a tool's exception says of the world, and what of it may be told to those who read it or catch it."""

from __future__ import annotations

from typing import Final

from typing_extensions import TypeIs

from countersign.commit.plan import PlannedCall
from countersign.errors import CountersignError, NotDone, ToolRaised
from countersign.errors.traces import beyond_ours
from countersign.live.telling import holds_no_argument
from countersign.texts import text_of
from countersign.threads import ToolTimeoutError
from countersign.tools.rest import RestUnknown
from countersign.tools.unfinished import UnfinishedError
from countersign.waiting import Raised

MAX_ERROR: Final = 500  # characters of a tool's exception that people get to read
_EARLIER: Final = "; an earlier try "
_IN_DOUBT: Final = ", and may have happened"


def describe_error(call: PlannedCall, error: BaseException) -> str:
    """What people get to read of a tool's exception; only its kind where the tool has secret arguments."""
    return _described(error, has_secrets=call.has_secrets)


def describe_ending(error: BaseException, *, has_secrets: bool) -> str:
    """What people get to read of the exception that ended a block: as of a tool's. An error of ours that holds no
    argument keeps all its storable text.
    """
    if holds_no_argument(error) and (text := text_of(error)):
        return f"{type(error).__name__}: {text}"
    return _described(error, has_secrets=has_secrets)


def _described(error: BaseException, *, has_secrets: bool) -> str:
    kind = type(error).__name__
    text = "" if has_secrets else text_of(error)
    return f"{kind}: {text}"[:MAX_ERROR] if text else kind


def beside_earlier(told: str, earlier: str) -> str:
    """Of a call whose last try knows that nothing happened, and whose `earlier` one did not: both, neither of which is
    cut off for the other's length.
    """
    rest = f"{_EARLIER}{earlier[: MAX_ERROR // 2]}{_IN_DOUBT}"
    return f"{told[: MAX_ERROR - len(rest)]}{rest}"


def last_try_knew(why: str) -> bool:
    """Whether this is told of a call whose last try knew that nothing happened: its author did say so."""
    return _EARLIER in why


def told_cause(call: PlannedCall, error: Exception) -> Exception:
    """The tool's exception, as the one that is raised names its cause: its trace begins in the tool. Where the tool has
    secret arguments its place alone: a traceback prints its text, and the text of what it was raised from.
    """
    if call.has_secrets:
        return ToolRaised.of(call.tool.name, error)
    trace = beyond_ours(error.__traceback__)
    if trace is None and not isinstance(error, ToolTimeoutError | UnfinishedError | CountersignError):
        return error  # a tool that is ours, as one of an MCP server: this may be a bug
    return error.with_traceback(trace)


def silenced(call: PlannedCall, leaving: SystemExit) -> SystemExit:
    """A tool's exit, as the program ends by it: Python prints its text. Where the tool has secret arguments its code
    alone, which is 1 of an exit with a text.
    """
    if not call.has_secrets:
        return leaving
    return SystemExit(leaving.code if isinstance(leaving.code, int | None) else 1)


def exits(answer: object) -> TypeIs[Raised]:
    """Whether a tool ended its program (`sys.exit`) instead of itself."""
    return isinstance(answer, Raised) and not isinstance(answer.error, Exception)


def says_not_done(call: PlannedCall, error: BaseException) -> bool:
    """Whether the tool itself says that nothing happened, by `NotDone` or by how it was declared. `RestApi` knows
    better, where it says that something may have been done.
    """
    if isinstance(error, ToolTimeoutError | RestUnknown | UnfinishedError) or not isinstance(
        error, Exception
    ):
        return False  # not the tool's word; or it ends the program: the call may have landed
    return isinstance(error, NotDone) or call.tool.failure_means == "not_done"
