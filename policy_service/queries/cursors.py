"""Page cursors of lists ordered by time and key: ``TIME~KEY``."""

from __future__ import annotations

from datetime import UTC, datetime

from policy_service.errors import InvalidRequestError


def parse_cursor(cursor: str | None) -> tuple[datetime, str] | None:
    """The time and key of a cursor; None without one.

    Raises:
        InvalidRequestError: the cursor is invalid.
    """
    if cursor is None:
        return None
    at, _, key = cursor.partition("~")
    try:
        moment = datetime.fromisoformat(at)
        # A time without zone, or out of range in UTC, is not a cursor of ours.
        aware = None if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        aware = None
    if aware is None or not key:
        raise InvalidRequestError(f"the cursor {cursor!r} is not one of ours; start without one")
    return aware, key


def format_cursor(at: datetime, key: str) -> str:
    """The cursor of a page that ends at this time and key."""
    return f"{at.isoformat()}~{key}"
