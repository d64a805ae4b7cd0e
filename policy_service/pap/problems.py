"""Problems of a bundle, each with its file and line, so that an author can fix all of them at once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Literal

Level = Literal["error", "warning", "note"]
"""An error prevents activation; a warning looks wrong; a note is information."""

RejectionReason = Literal["invalid", "unreachable", "gone", "force_push", "unsigned", "cases"]
"""Why the newest bytes of a source are not active, for programs."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem in one place. `code` is a stable name of its kind; `line` is None when unknown."""

    file: str
    line: int | None
    message: str
    code: str = "invalid"
    level: Level = "error"

    def as_finding(self, code: str, level: Level = "warning") -> Problem:
        """The same problem as a finding that does not prevent activation."""
        return replace(self, code=code, level=level)

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.message}"


_LINE = re.compile(r"\bline (\d+)")


def parse_problem(file: str, error: Exception) -> Problem:
    """A parser's error as a problem, at the line the parser names, if any."""
    message = str(error)
    at = _LINE.search(message)
    return Problem(file, None if at is None else int(at.group(1)), message)


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """The most similar known word as a question; other advice if there is none."""
    close = get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else otherwise


class BundleError(Exception):
    """A bundle that may not become active. The text has one line for each problem."""

    why: RejectionReason = "invalid"

    def __init__(self, problems: Iterable[Problem], why: RejectionReason | None = None) -> None:
        self.problems = tuple(problems)
        self.why = why or self.why
        super().__init__("\n".join(str(problem) for problem in self.problems))


def invalid_bundle(file: str, message: str) -> BundleError:
    """An error with one problem."""
    return BundleError([Problem(file, None, message)])


class HeadError(BundleError):
    """A head that may not follow the active commit, or cannot be fetched. Its bundle may still be valid."""

    def __init__(self, origin: str, message: str, why: RejectionReason) -> None:
        super().__init__([Problem(origin, None, message)], why)
