"""What a database transaction would change, row by row: the state diff of a dry run, the same for every database.

A database returns the rows of the touched tables as others see them and as the transaction sees them. They become
changes, named by table and primary key: `orders[7]`, `lines[7,2]`. Rows are compared exactly, because values that
compare equal (1 and 1.0, 'a' and 'A' under a collation) may still be a change. Comparing holds the transaction's locks
and keeps all results in memory, so it has a `DiffBudget` of seconds, rows and bytes; beyond that no diff is given.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from countersign.adapters.protocol import Change

MAX_ROWS: Final = 10_000
"""Rows of one result, and changes of all tables: more are not readable one by one."""

MAX_BYTES: Final = 32 * 1024 * 1024
"""Of all values that are read; in Python's memory they take a few times as much."""

MAX_SECONDS: Final = 10.0
"""Total seconds for comparing."""


class DiffUnavailable(Exception):
    """The changes cannot be determined, or are too many."""


class DiffBudget:
    """The remaining budget for comparing one transaction, over all its tables."""

    def __init__(self, at_most_s: float = MAX_SECONDS) -> None:
        self._ends, self._bytes = time.monotonic() + min(at_most_s, MAX_SECONDS), MAX_BYTES

    @property
    def is_over(self) -> bool:
        """Whether the time has run out."""
        return time.monotonic() >= self._ends

    def milliseconds(self) -> int:
        """The remaining time, never 0: a server interprets 0 as no limit.

        Raises:
            DiffUnavailable: there is none.
        """
        left = int((self._ends - time.monotonic()) * 1000)
        if left <= 0:
            raise DiffUnavailable
        return left

    def rows(self, answer: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of one result, within the budget.

        Raises:
            DiffUnavailable: they are too many, or too large together with earlier ones.
        """
        for number, row in enumerate(answer, start=1):
            self._bytes -= sum(map(_size, row))
            if number > MAX_ROWS or self._bytes < 0:
                raise DiffUnavailable
            yield row


def require_bounded(changes: Sequence[Change]) -> None:
    """Refuse more changes than are readable, of all tables together.

    Raises:
        DiffUnavailable: there are more.
    """
    if len(changes) > MAX_ROWS:
        raise DiffUnavailable


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its key and values for people, and all of it as exact text."""

    key: tuple[Any, ...]
    exact: str
    values: Mapping[str, Any]


Rows = Mapping[str, Row]
"""Rows by the exact text of their keys."""


def changed_rows(table: str, before: Rows, after: Rows) -> list[Change]:
    """The rows of one table that differ, in the order of `before`, new ones last."""
    return [
        _change(table, before.get(key), after.get(key))
        for key in dict.fromkeys((*before, *after))
        if _exact(before.get(key)) != _exact(after.get(key))
    ]


def row_label(table: str, key: Iterable[Any]) -> str:
    """The label of a row: table and key."""
    return f"{table}[{','.join(map(_label_part, key))}]"


def _change(table: str, before: Row | None, after: Row | None) -> Change:
    named = before or after
    return Change(
        row_label(table, () if named is None else named.key),
        None if before is None else before.values,
        None if after is None else after.values,
    )


def _label_part(value: Any) -> str:
    """A part of a key, quoted if it would look like several parts, or like none."""
    text = str(value)
    return text if text and not set(text) & set(',[]"') else json.dumps(text, ensure_ascii=False)


def _exact(row: Row | None) -> str | None:
    return None if row is None else row.exact


def _size(value: Any) -> int:
    """An approximate size: the characters of a text, the digits of a number."""
    return len(value) if isinstance(value, str | bytes) else 8
