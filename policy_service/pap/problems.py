"""What is wrong with a bundle: every problem with its file and line, so that an author mends all of them at
once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

Level = Literal["error", "warning", "note"]
"""An error keeps a bundle from becoming active; a warning looks wrong; a note is worth knowing."""

RejectionReason = Literal["invalid", "unreachable", "gone", "force_push", "unsigned", "cases"]
"""Why the newest bytes of a source are not in force, for programs."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in one place; `line` where the file has lines we know, `code` a stable name of what it is."""

    file: str
    line: int | None
    message: str
    code: str = "invalid"
    level: Level = "error"

    def as_finding(self, code: str, level: Level = "warning") -> Problem:
        """The same, as something that does not keep the bundle from being used."""
        return replace(self, code=code, level=level)

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.message}"


_LINE = re.compile(r"\bline (\d+)")


def parse_problem(file: str, error: Exception) -> Problem:
    """A file that a parser refused, at the line the parser names, if it names one."""
    said = str(error)
    at = _LINE.search(said)
    return Problem(file, None if at is None else int(at.group(1)), said)


class BundleError(Exception):
    """A bundle that may not become active, and why. The text is one line for each problem."""

    why: RejectionReason = "invalid"

    def __init__(self, problems: Iterable[Problem], why: RejectionReason | None = None) -> None:
        self.problems = tuple(problems)
        self.why = why or self.why
        super().__init__("\n".join(str(problem) for problem in self.problems))


class HeadError(BundleError):
    """A head that may not follow the commit in force, or that cannot be had at all; the bundle in it may be good."""

    def __init__(self, origin: str, message: str, why: RejectionReason) -> None:
        super().__init__([Problem(origin, None, message)], why)
