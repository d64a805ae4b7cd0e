"""Column types that mean the same on SQLite and PostgreSQL.

* A time is aware UTC in Python, always. SQLite has no such type, so it is stored there as fixed-width text
  (``2026-11-21T22:00:00.123456Z``), which sorts and compares as the times do; PostgreSQL uses
  ``timestamptz``.
* A naive time is refused when it is bound, not guessed at: the same number would be another moment elsewhere.
* ``Json`` is for what only this service reads, and is text on both engines: PostgreSQL's ``jsonb`` refuses the
  U+0000 that a reason may quote from somebody's args. Bytes that were voted on are never stored as JSON.
* Text holds no U+0000: PostgreSQL cannot store it, SQLite can, and the answer must not depend on the engine.

Ids for things that are not named by a digest: time-ordered, so that pages and indexes go by key.

``new_id("rev", now)`` is ``rev_`` and 26 characters of Crockford base32: 48 bits of milliseconds, then 80 random bits
(the layout of a ULID). Order within one millisecond is not promised and nothing relies on it.
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
    """The fixed-width text of a moment, as it is stored on SQLite and shown on the wire.

    Raises:
        ValueError: the moment is naive.
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
        """Refuse a naive time; write what the dialect stores."""
        if value is None:
            return None
        text = time_text(value)
        return text if dialect.name == "sqlite" else value.astimezone(UTC)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Read back as aware UTC whatever the session's own zone is."""
        if value is None:
            return None
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        return moment.astimezone(UTC)


# None is SQL NULL, not the JSON word null: one absent value, not two.
Json = sqlalchemy.JSON(none_as_null=True)


def refuse_nul(engine: Engine) -> None:
    """Let no statement of this engine carry text with U+0000; bytes may hold anything."""
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

    No limit of admission applies: an audit body or a view is made here, and may hold more than one request could.
    """
    value: JSON = json.loads(raw)
    return value


_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_RANDOM_BITS = 80
_LENGTH = 26


def new_id(prefix: str, now: datetime) -> str:
    """A fresh id that says its kind and sorts by time of making."""
    number = (int(now.timestamp() * 1000) << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS)
    return f"{prefix}_{_encode(number)}"


def min_id_at(prefix: str, at: datetime) -> str:
    """What every id of that kind made at this moment or later is not less than."""
    return f"{prefix}_{_encode(int(at.timestamp() * 1000) << _RANDOM_BITS)}"


def id_created_at(made: str) -> datetime:
    """When an id of :func:`new_id` was made, to the millisecond."""
    number = 0
    for digit in made.rpartition("_")[2]:
        number = number * 32 + _ALPHABET.index(digit)
    return datetime.fromtimestamp((number >> _RANDOM_BITS) / 1000, UTC)


def _encode(number: int) -> str:
    digits = [_ALPHABET[(number >> (5 * place)) & 31] for place in range(_LENGTH)]
    return "".join(reversed(digits))
