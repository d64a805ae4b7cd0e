"""What a live tool may say to PostgreSQL, and what it gets back.

A statement that would end the transaction it runs in, or a savepoint of its session, is refused: it could not be
undone. What a statement returns can be read and leads nowhere: with a cursor in its hands a tool would have the whole
connection.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from countersign.errors import MisuseError

if TYPE_CHECKING:
    import psycopg

_TRANSACTION_ENDS: Final = frozenset(
    "abort begin commit deallocate discard end prepare release rollback savepoint start".split()
)
_NOT_YET: Final = re.compile(r"[\s;]+|--[^\r\n]*")
_WORD: Final = re.compile(r"[a-z]*", re.IGNORECASE)


class StatementResult:
    """What one statement answered."""

    def __init__(self, cursor: psycopg.Cursor[Any]) -> None:
        self._cursor = cursor

    def fetchone(self) -> Any:
        """The next row; None behind the last."""
        return self._cursor.fetchone()

    def fetchmany(self, size: int = 1) -> list[Any]:
        """So many rows, or what is left."""
        return self._cursor.fetchmany(size)

    def fetchall(self) -> list[Any]:
        """The rows that are left."""
        return self._cursor.fetchall()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._cursor)

    @property
    def rowcount(self) -> int:
        """How many rows were found or changed."""
        return self._cursor.rowcount

    @property
    def description(self) -> Sequence[psycopg.Column] | None:
        """The columns; None of a statement that answers no rows."""
        return self._cursor.description

    @property
    def statusmessage(self) -> str | None:
        """The server's own word for what it did, like `UPDATE 1`."""
        return self._cursor.statusmessage


def require_no_transaction_end(statement: str) -> None:
    """A live tool may not end the transaction it runs in.

    Raises:
        MisuseError: this statement would.
    """
    word = _first_word(statement)
    if word in _TRANSACTION_ENDS:
        raise MisuseError(f"a live tool may not say {word.upper()}: its transaction decides that")


def _first_word(statement: str) -> str:
    """Behind empty statements and comments: those of a line end at a line feed or a carriage return, others nest."""
    at = 0
    while True:
        if statement.startswith("/*", at):
            at = _after_comment(statement, at)
        elif (skipped := _NOT_YET.match(statement, at)) is not None:
            at = skipped.end()
        else:
            found = _WORD.match(statement, at)
            return "" if found is None else found[0].lower()


def _after_comment(statement: str, at: int) -> int:
    depth = 0
    for mark in re.finditer(r"/\*|\*/", statement[at:]):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return at + mark.end()
    return len(statement)
