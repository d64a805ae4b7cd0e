"""Column types with the same meaning on SQLite and PostgreSQL, and time-ordered ids.

* A time is always aware UTC in Python. SQLite stores it as fixed-width text (``2026-11-21T22:00:00.123456Z``), which
  sorts as the times do. PostgreSQL uses ``timestamptz``.
* A naive time is refused when it is bound, because its zone would be a guess.
* ``Json`` is for what only this service reads. It is text on both engines: PostgreSQL's ``jsonb`` refuses U+0000,
which
  a reason may quote from arguments. Bytes that were voted on are never stored as JSON.
* Text holds no U+0000: PostgreSQL cannot store it, SQLite can, and the response must not depend on the engine.

``new_id("rev", now)`` is ``rev_`` and 26 characters of Crockford base32: 48 bits of milliseconds, then 80 random bits
(the layout of a ULID). Pages and indexes use the key order. Order within one millisecond is not guaranteed.
"""

from __future__ import annotations

import json
import secrets
from datetime import UTC, datetime
from typing import Any

import sqlalchemy
from sqlalchemy import DateTime, Engine, String, event
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

from countersign.contract import JSON
from policy_service.errors import InvalidRequestError

TIME_TEXT_LENGTH = 27  # characters of 2026-11-21T22:00:00.123456Z


def time_text(moment: datetime) -> str:
    """The fixed-width text of a time, as stored on SQLite and sent in responses.

    Raises:
        ValueError: the time is naive.
    """
    if moment.tzinfo is None:
        raise ValueError(f"time {moment.isoformat()!r} has no zone; pass an aware UTC datetime")
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    return moment.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC datetime."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Text on SQLite, ``timestamptz`` elsewhere."""
        if dialect.name == "sqlite":
            return dialect.type_descriptor(String(TIME_TEXT_LENGTH))
        return dialect.type_descriptor(DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """Refuse a naive time; convert to what the dialect stores."""
        if value is None:
            return None
        text = time_text(value)
        return text if dialect.name == "sqlite" else value.astimezone(UTC)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Convert to aware UTC, independent of the session's time zone."""
        if value is None:
            return None
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        return moment.astimezone(UTC)


# None is SQL NULL, not JSON null: one absent value, not two.
Json = sqlalchemy.JSON(none_as_null=True)


def refuse_nul(engine: Engine) -> None:
    """Refuse text with U+0000 in any statement of this engine; bytes may hold anything."""
    event.listen(engine, "before_cursor_execute", _require_no_nul)


def _require_no_nul(
    _conn: object, _cursor: object, _statement: str, parameters: Any, _context: object, many: bool
) -> None:
    for row in parameters if many else (parameters,):
        for value in row.values() if isinstance(row, dict) else row:
            if type(value) is str and "\0" in value:
                raise InvalidRequestError("text may not hold U+0000 (NUL); leave it out")


def parse_stored_json(raw: bytes) -> JSON:
    """The value of canonical bytes from our own tables.

    Admission limits do not apply: an audit body or a view is made here and may hold more than one request could.
    """
    value: JSON = json.loads(raw)
    return value


_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_RANDOM_BITS = 80
_LENGTH = 26


def new_id(prefix: str, now: datetime) -> str:
    """A new id: its prefix, then a part that sorts by creation time."""
    number = (int(now.timestamp() * 1000) << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS)
    return f"{prefix}_{_encode(number)}"


def min_id_at(prefix: str, at: datetime) -> str:
    """The lower bound of the ids with this prefix created at this time or later."""
    return f"{prefix}_{_encode(int(at.timestamp() * 1000) << _RANDOM_BITS)}"


def id_created_at(made: str) -> datetime:
    """The creation time of an id from :func:`new_id`, to the millisecond."""
    number = 0
    for digit in made.rpartition("_")[2]:
        number = number * 32 + _ALPHABET.index(digit)
    return datetime.fromtimestamp((number >> _RANDOM_BITS) / 1000, UTC)


def _encode(number: int) -> str:
    digits = [_ALPHABET[(number >> (5 * place)) & 31] for place in range(_LENGTH)]
    return "".join(reversed(digits))
