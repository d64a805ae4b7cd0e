"""What a database transaction would change, row by row: the state diff of a dry run, the same for every database.

A database answers the rows of the tables that were touched as they are for everybody else and as the transaction sees
them; here they become changes, named by table and primary key: `orders[7]`, `lines[7,2]`. Rows are compared as exact
text, for values that compare equal (1 and 1.0, 'a' and 'A' under a collation) may still be a change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from countersign.adapters.protocol import Change

MOST_ROWS: Final = 10_000
"""More changed rows than this are not told one by one: the adapter then says that it cannot tell."""

LONGEST_S: Final = 10.0
"""Seconds that comparing may take in all."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its key and its values as people read them, and the whole as exact text."""

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


def _change(table: str, before: Row | None, after: Row | None) -> Change:
    named = before or after
    key = "" if named is None else ",".join(map(_part, named.key))
    return Change(
        f"{table}[{key}]", None if before is None else before.values, None if after is None else after.values
    )


def _part(value: Any) -> str:
    """A part of a key as it stands, or quoted where it would read as several, or as none."""
    text = str(value)
    return text if text and not set(text) & set(',[]"') else json.dumps(text, ensure_ascii=False)


def _exact(row: Row | None) -> str | None:
    return None if row is None else row.exact
