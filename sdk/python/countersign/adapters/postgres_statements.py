"""The statements that a live tool may run on PostgreSQL, and their results.

A statement that would end the transaction, or a savepoint of its session, is refused: it could not be undone. A result
can only be read: a cursor would give a tool the whole connection.
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
    """The result of one statement."""

    def __init__(self, cursor: psycopg.Cursor[Any]) -> None:
        self._cursor = cursor

    def fetchone(self) -> Any:
        """The next row, or None at the end."""
        return self._cursor.fetchone()

    def fetchmany(self, size: int = 1) -> list[Any]:
        """The next rows, at most `size`."""
        return self._cursor.fetchmany(size)

    def fetchall(self) -> list[Any]:
        """The remaining rows."""
        return self._cursor.fetchall()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._cursor)

    @property
    def rowcount(self) -> int:
        """How many rows were found or changed."""
        return self._cursor.rowcount

    @property
    def description(self) -> Sequence[psycopg.Column] | None:
        """The columns, or None if the statement returns no rows."""
        return self._cursor.description

    @property
    def statusmessage(self) -> str | None:
        """The server's command tag, like `UPDATE 1`."""
        return self._cursor.statusmessage


def require_no_transaction_end(statement: str) -> None:
    """Refuse a statement that would end the transaction.

    Raises:
        MisuseError: this statement would.
    """
    word = _first_word(statement)
    if word in _TRANSACTION_ENDS:
        raise MisuseError(f"a live tool may not run {word.upper()}: its transaction decides that")


def _first_word(statement: str) -> str:
    """The first word after empty statements and comments. Line comments end at a line feed or a carriage return; block
    comments nest.
    """
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
