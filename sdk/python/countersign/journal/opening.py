"""Opening a journal's database: which engine a place asks for."""

from __future__ import annotations

from countersign.errors import MisuseError
from countersign.journal.database import Database
from countersign.journal.place import JournalPlace, JournalUrl, journal_place
from countersign.journal.postgres import PostgresDatabase
from countersign.journal.sqlite import SQLiteDatabase


def database_at(place: JournalPlace | str) -> Database:
    """The database at this place; nothing is opened before it is used. `:memory:` is one that nothing survives.

    Raises:
        SettingsError: it is an address of something that keeps no journal, or its driver is not installed.
    """
    if isinstance(place, str) and place != ":memory:":
        place = journal_place(place)
    return PostgresDatabase(place) if isinstance(place, JournalUrl) else SQLiteDatabase(place)


def require_journal(place: JournalPlace) -> None:
    """Look whether there is a journal, and make none.

    Raises:
        MisuseError: there is none.
        JournalError: nobody can tell.
    """
    database = database_at(place)
    try:
        if not database.is_there():
            raise MisuseError(f"there is no journal at {str(place)!r}; name one with --journal")
    finally:
        database.close()
