"""The references of SQLite that wait for the COMMIT, looked at before it.

SQLite has no SET CONSTRAINTS: a reference that is DEFERRED and still broken makes the COMMIT fail, and by then staged
effects have fired. All others it has looked at by the end of each statement. So only tables with a reference that waits
are read, and of those only what was written to, or refers to what was. Where tables themselves were changed, all that
have such a reference are read, for one may have another name now.

Rows that were broken before are refused like new ones: which they are, nobody has written down.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final

from countersign.adapters.sqlite_changes import Touched

_REFERENCES: Final = (
    'SELECT m.name, m.sql, f."table" FROM {}.sqlite_master AS m, pragma_foreign_key_list(m.name, ?) AS f'
    " WHERE m.type = 'table'"
)
_OF_TABLES: Final = frozenset({"sqlite_master", "sqlite_temp_master"})


def require_references(connection: sqlite3.Connection, touched: Touched, *, all_wait: bool) -> None:
    """`all_wait`: a tool may have put off those that the schema does not.

    Raises:
        sqlite3.IntegrityError: a COMMIT would, for what it names.
    """
    connection.row_factory, connection.text_factory = None, str  # whatever the tools have set
    if connection.execute("PRAGMA foreign_keys").fetchone() != (1,):
        return
    for database in {database for database, _ in touched}:
        names = {name.lower() for one, name in touched if one == database}
        for table in sorted(set(_waiting(connection, database, names, all_wait=all_wait))):
            _require_whole(connection, database, table)


def _waiting(
    connection: sqlite3.Connection, database: str, touched: set[str], *, all_wait: bool
) -> Iterator[str]:
    found = connection.execute(_REFERENCES.format(_quoted(database)), (database,))
    for table, sql, parent in found.fetchall():
        # The word may stand for something else, and then one table too many is read; left out it cannot be.
        waits = all_wait or "deferred" in sql.lower()
        if waits and (touched & {table.lower(), parent.lower()} or touched & _OF_TABLES):
            yield table


def _require_whole(connection: sqlite3.Connection, database: str, table: str) -> None:
    broken = connection.execute(f"PRAGMA {_quoted(database)}.foreign_key_check({_quoted(table)})").fetchone()
    if broken is not None:
        _, number, parent, _ = broken
        raise sqlite3.IntegrityError(
            f"FOREIGN KEY constraint failed: row {number} of {table} refers to what is not in {parent}"
        )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
