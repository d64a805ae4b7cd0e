"""A file of recorded calls, as the author's verbs read one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from policy_service.errors import InvalidRequestError
from policy_service.pap.bundle import Bundle
from policy_service.pap.changes.calls import BadLine, Call, read_calls, without_strange_meters


def read_recorded(file: Path, bundles: Sequence[Bundle]) -> tuple[list[Call], list[BadLine]]:
    """The calls of a file for these bundles, and the lines that are none.

    Raises:
        InvalidRequestError: there is no such file.
    """
    try:
        with file.open("rb") as lines:
            calls, bad = read_calls(lines)
    except OSError as error:
        raise InvalidRequestError(
            f"{file} cannot be read: {error.strerror}; name a file of JSON lines"
        ) from None
    calls, strange = without_strange_meters(calls, bundles)
    return calls, sorted([*bad, *strange], key=lambda each: each.number)


def said_of_bad_lines(bad: Sequence[BadLine]) -> list[str]:
    """Each bad line by its number."""
    return [f"line {each.number} is no call and was left out: {each.why}" for each in bad]
