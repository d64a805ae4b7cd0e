"""The lanes of the outbox that lead to Slack: one for each place, so that one that takes nothing holds up no other."""

from __future__ import annotations

from typing import Final

from sqlalchemy import ColumnElement, Connection, Select, select

from policy_service.storage.core import rows_of, table
from policy_service.storage.plumbing import OutboxRow
from policy_service.storage.slack_tables import SlackPlaceRow

_PREFIX: Final = "slack "
_NAMED: Final = 20
"""Places that are named where several take nothing."""

_outbox, _places = table(OutboxRow).c, table(SlackPlaceRow)

WAITS: Final = _outbox.state == "waiting"


def lane_of(place: str) -> str:
    """The lane of a place."""
    return _PREFIX + place


def lanes() -> Select[tuple[str]]:
    """The lanes of all places. By name, so that the index of lanes serves: what begins alike does not stand together
    in every collation."""
    return select(_PREFIX + _places.c.place)


def holds(*such: ColumnElement[bool]) -> ColumnElement[bool]:
    """In a query over places: whether the place's lane holds such a message."""
    return select(_outbox.outbox_id).where(_outbox.lane == _PREFIX + _places.c.place, *such).exists()


def resting(conn: Connection, failures: int = 1) -> tuple[SlackPlaceRow, ...]:
    """Places that failed so often in a row and have something waiting, those that failed first before the others."""
    failed = (_places.c.failures >= failures, _places.c.since.is_not(None), holds(WAITS))
    query = select(*_places.columns).where(*failed).order_by(_places.c.since, _places.c.place)
    return tuple(rows_of(SlackPlaceRow, conn.execute(query.limit(_NAMED))))
