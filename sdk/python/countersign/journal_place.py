"""Where a journal lies: in a file, or in a PostgreSQL database that processes of many machines share.

The password in the address of a database is shown by nothing here: not by `str`, not by `repr`, not in an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from countersign.errors import SettingsError

HOW_TO_WRITE: Final = (
    "write it like postgresql://user:password@host:5432/database, and / ? # @ : in a password as "
    "%2F %3F %23 %40 %3A"
)
_NOT_SHOWN: Final = "postgresql://(not shown)"
_SCHEMES: Final = ("postgresql://", "postgres://")
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_ADDRESS: Final = re.compile(
    r"(?P<user>[^:@/?]*)(?::[^@/?]*)?@(?P<host>[^@/?]*)(?P<rest>/[^@:?/]*)?(?:\?.*)?"
)
_NOBODY: Final = re.compile(r"(?P<host>[^@/?]*)(?P<rest>/[^@:?/]*)?(?:\?[^@]*)?")


@dataclass(frozen=True, slots=True)
class JournalUrl:
    """The address of a journal on PostgreSQL. `secret` is the whole of it; `str` is what may be shown."""

    secret: str = field(repr=False)

    def __str__(self) -> str:
        """User, host and database. An address that is not written as one may hide its password anywhere."""
        address = self.secret.partition("://")[2]
        if (found := _ADDRESS.fullmatch(address)) is not None:
            return f"postgresql://{found['user']}@{found['host']}{found['rest'] or ''}"
        if (found := _NOBODY.fullmatch(address)) is not None:
            return f"postgresql://{found['host']}{found['rest'] or ''}"
        return _NOT_SHOWN


JournalPlace = Path | JournalUrl
"""A file, or a database."""


def journal_place(named: str) -> JournalPlace:
    """What a person wrote as the place of a journal.

    Raises:
        SettingsError: it is an address of something that keeps no journal, or one whose password would be read as
            something else, and told.
    """
    if named.lower().startswith(_SCHEMES):
        url = JournalUrl(named)
        if str(url) == _NOT_SHOWN:
            raise SettingsError(
                f"the journal's address cannot be read; {HOW_TO_WRITE}. It is not shown here, for its password may "
                "stand anywhere in it"
            )
        return url
    if (scheme := _SCHEME.match(named)) is not None:
        raise SettingsError(
            f"a journal is a file or a PostgreSQL database, and {scheme[0]!r} begins the address of neither; write a "
            "path, or postgresql://user:password@host/database"
        )
    return Path(named)
