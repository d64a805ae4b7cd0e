"""The location of a journal: a file, or a PostgreSQL database that processes on many machines share.

The password in a database address is never shown: not by `str`, not by `repr`, not in an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from countersign.errors import SettingsError

KEY_SUFFIX: Final = ".key"
"""The suffix of the default key file."""
LOCATION_HELP: Final = (
    "write it like postgresql://user:password@host:5432/database, and / ? # @ : in a password as "
    "%2F %3F %23 %40 %3A"
)
_SCHEMES: Final = ("postgresql://", "postgres://")
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_ADDRESS: Final = re.compile(
    r"(?:(?P<user>[^:@/?]*)(?::[^@/?]*)?@)?(?P<host>[^@/?]*)(?P<database>/[^@:?/]*)?(?:\?[^@]*)?"
)


@dataclass(frozen=True, slots=True)
class JournalUrl:
    """The address of a journal on PostgreSQL. `secret` is the whole address; `str` is what may be shown.

    Raises:
        SettingsError: it is not a valid address, so a part of its password could be parsed, and shown, as something
            else.
    """

    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        if self._parts() is None:
            raise SettingsError(
                f"the journal's address cannot be read; {LOCATION_HELP}. It is not shown here, because its "
                "password may be anywhere in it"
            )

    def __str__(self) -> str:
        """User, host and database."""
        user, host, database = self._parts() or ("", "", "")
        return f"postgresql://{user}{'@' if user else ''}{host}{database}"

    def _parts(self) -> tuple[str, str, str] | None:
        scheme, mark, address = self.secret.partition("://")
        if f"{scheme.lower()}{mark}" not in _SCHEMES or (found := _ADDRESS.fullmatch(address)) is None:
            return None
        return found["user"] or "", found["host"], found["database"] or ""


JournalLocation = Path | JournalUrl
"""A file, or a database."""


def parse_location(named: str) -> JournalLocation:
    """Parse the location of a journal as a person writes it.

    Raises:
        SettingsError: it has another scheme, or is not a valid address.
    """
    if named.lower().startswith(_SCHEMES):
        return JournalUrl(named)
    if (scheme := _SCHEME.match(named)) is not None:
        raise SettingsError(
            f"a journal is a file or a PostgreSQL database, and {scheme[0]!r} begins the address of neither; write a "
            "path, or postgresql://user:password@host/database"
        )
    return Path(named)


def default_key_path(place: JournalLocation) -> Path | None:
    """The default key file: next to the journal's file. A shared database has none."""
    return place.with_name(place.name + KEY_SUFFIX) if isinstance(place, Path) else None
