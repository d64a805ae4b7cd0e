"""Column types that mean the same on SQLite and PostgreSQL.

* A time is aware UTC in Python, always. SQLite has no such type, so it is stored there as fixed-width text
  (``2026-11-21T22:00:00.123456Z``), which sorts and compares as the times do; PostgreSQL uses
  ``timestamptz``.
* A naive time is refused when it is bound, not guessed at: the same number would be another moment elsewhere.
* ``Json`` is for what only this service reads, and is text on both engines: PostgreSQL's ``jsonb`` refuses the
  U+0000 that a reason may quote from somebody's args. Bytes that were voted on are never stored as JSON.
* Text holds no U+0000: PostgreSQL cannot store it, SQLite can, and the answer must not depend on the engine.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, DateTime, Engine, String, event
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

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
Json = JSON(none_as_null=True)


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
