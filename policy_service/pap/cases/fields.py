"""One mapping of a cases file, read key by key: every key has a kind, and what is left over is a problem."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, TypeVar

from policy_service.domain.values import parse_duration
from policy_service.facts.config import moment_of
from policy_service.pap.cases.yaml import Table
from policy_service.pap.problems import Problem

T = TypeVar("T")


class Fields:
    """The keys of one table. A value of the wrong kind is told and read as the default."""

    def __init__(self, file: str, table: Table, what: str, problems: list[Problem]) -> None:
        self.table = table
        self._file = file
        self._what = what
        self._problems = problems
        self._known: set[str] = set()

    def refuse(self, key: str | None, message: str) -> None:
        """Put a problem on record, at the key's line."""
        line = self.table.line if key is None else self.table.line_of(key)
        self._problems.append(Problem(self._file, line, message))

    def take(self, key: str, read: Callable[[Any], T], default: T) -> T:
        """The key's value as `read` makes it; the default where it is missing or wrong."""
        self._known.add(key)
        if key not in self.table:
            return default
        try:
            return read(self.table[key])
        except ValueError as error:
            self.refuse(key, f"{key}: {error}")
            return default

    def need(self, key: str, read: Callable[[Any], T], default: T) -> T:
        """The same for a key that must be there."""
        if key not in self.table:
            self.refuse(None, f"{self._what} needs `{key}:`")
        return self.take(key, read, default)

    def finish(self) -> None:
        """Name every key that nothing reads: a misspelt one must not look like an expectation that holds."""
        for key in self.table:
            if key in self._known:
                continue
            close = get_close_matches(key, self._known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted(self._known))}"
            self.refuse(key, f"{key!r} is nothing {self._what} has; {hint}")


def text(value: Any) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{value!r} is not a text")
    return value


def texts(value: Any) -> frozenset[str]:
    """A list of texts."""
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is not a list; write it like [one, two]")
    return frozenset(text(item) for item in value)


def some_texts(value: Any) -> frozenset[str]:
    """A list of at least one text."""
    found = texts(value)
    if not found:
        raise ValueError("an empty list expects nothing; leave it out")
    return found


def flag(value: Any) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise ValueError(f"{value!r} is not true or false")
    return value


def one_of(*words: str) -> Callable[[Any], str]:
    """One of these words."""

    def read(value: Any) -> str:
        if value not in words:
            close = get_close_matches(str(value), words, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"write {' or '.join(words)}"
            raise ValueError(f"{value!r} is none of these; {hint}")
        return str(value)

    return read


def number(least: int) -> Callable[[Any], int]:
    """A whole number, no less than `least`."""

    def read(value: Any) -> int:
        if type(value) is not int or value < least:
            raise ValueError(f"{value!r} is not a whole number from {least}")
        return value

    return read


def moment(value: Any) -> datetime:
    """A time with its zone."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a time with a zone; write it like 2026-01-31T12:00:00Z")
    return moment_of(value)


def duration(value: Any) -> timedelta:
    """A length of time like 30m."""
    return parse_duration(text(value))


def table(value: Any) -> Table:
    """A mapping."""
    if not isinstance(value, Table):
        raise ValueError(f"{value!r} is not a mapping; write it like {{ key: value }}")
    return value


def tables(value: Any) -> list[Table]:
    """A list of at least one mapping."""
    if not isinstance(value, list) or not value:
        raise ValueError("this is not a list of mappings; write one `- ...` for each")
    return [table(item) for item in value]
