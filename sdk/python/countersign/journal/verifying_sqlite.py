"""Verifying a journal in a SQLite file: the file itself, and the schema it holds (steps 1 and 2 of verifying.py)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from countersign.errors import MisuseError
from countersign.journal.damage import Damage, Look, compare_schemas
from countersign.journal.database import Unit
from countersign.journal.schema import APPLICATION_ID, VERSION, prepare

_MOST_OF_FILE: Final = 20  # what SQLite says of a file that is broken all over
_SCHEMA: Final = (
    "SELECT name, type, tbl_name || ' ' || coalesce(sql, '') FROM sqlite_master "
    "WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
)


class SQLiteStore:
    """A journal file, damaged or not."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise MisuseError(f"there is no journal at {str(path)!r}; name one with --journal")
        self._path = path

    @contextmanager
    def opened(self) -> Iterator[Unit]:
        """A connection that writes nothing, in one transaction."""
        uri = f"{self._path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
            db.row_factory = sqlite3.Row
            # flipped bytes are compared, not raised
            db.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
            for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "busy_timeout=5000"):
                db.execute(f"PRAGMA {pragma}")
            db.execute("BEGIN")
            yield db

    @contextmanager
    def errors_found(self, look: Look) -> Iterator[None]:
        """What SQLite cannot read is damage."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # names of columns are decoded by sqlite3 itself
            look.found(Damage.FILE, f"SQLite cannot read it: {error}")

    def look_at_file(self, db: Unit, look: Look) -> None:
        """Every page and index."""
        said = [str(row[0]) for row in db.execute(f"PRAGMA integrity_check({_MOST_OF_FILE})")]
        for what in said if said != ["ok"] else ():
            look.legible = False
            look.found(Damage.FILE, what)

    def look_at_schema(self, db: Unit, look: Look) -> None:
        """Its marks, and everything that has a name."""
        marks = (
            db.execute("PRAGMA application_id").fetchone()[0],
            db.execute("PRAGMA user_version").fetchone()[0],
        )
        if marks != (APPLICATION_ID, VERSION):
            look.found(
                Damage.SCHEMA, f"it is marked {marks[0]:#x}, version {marks[1]}: no journal of this SDK"
            )
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
            prepare(fresh)
            ours = {row[0]: (row[1], row[2]) for row in fresh.execute(_SCHEMA)}
        theirs = {row[0]: (row[1], row[2]) for row in db.execute(_SCHEMA)}
        compare_schemas(look, ours, theirs)
