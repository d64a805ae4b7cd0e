"""The tables of the Slack channel, and queries over its delivery lanes.

Constraints: an account of a workspace belongs to one person; an invitation is found by the hash of its secret and used
once; a review has one message per place; an interaction is processed once.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ColumnElement,
    Connection,
    Index,
    Select,
    UniqueConstraint,
    select,
)
from sqlmodel import Field

from policy_service.storage.core import Row, rows_of, table
from policy_service.storage.system_tables import OutboxRow
from policy_service.storage.types import UtcDateTime


class SlackLinkRow(Row, table=True):
    """A Slack account linked to a person, who confirmed it while signed in."""

    __tablename__: ClassVar[Any] = "slack_links"
    __table_args__ = (Index("ix_slack_links_person", "iss", "sub"),)

    team_id: str = Field(primary_key=True)
    user_id: str = Field(primary_key=True)
    iss: str
    sub: str
    assurance: str  # of the sign-in that linked it; votes through it have at most this one
    trust: str | None = None  # the provider's settings at that time, as a digest
    account: str  # the account's display name at that time
    direct: bool = False  # also send reviews as direct messages
    linked_at: datetime = Field(sa_type=UtcDateTime)
    linked_by: str  # the session it was linked in, by its hash; the person's other sessions show a notice
    # their provider ended all their sessions; suspended until they sign in again
    signed_out_at: datetime | None = Field(default=None, sa_type=UtcDateTime)

    @property
    def person(self) -> str:
        """``iss|sub`` of its person."""
        return f"{self.iss}|{self.sub}"


class SlackInvitationRow(Row, table=True):
    """An invitation shown to one account only. It links the account to the person who opens and confirms it, once."""

    __tablename__: ClassVar[Any] = "slack_invitations"
    __table_args__ = (Index("ix_slack_invitations_over", "expires_at"),)

    secret_hash: str = Field(primary_key=True)
    team_id: str
    user_id: str
    account: str
    email: str | None = None  # of the account, compared with the person's; never used to find them
    created_at: datetime = Field(sa_type=UtcDateTime)
    expires_at: datetime = Field(sa_type=UtcDateTime)
    used_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class SlackCardRow(Row, table=True):
    """A message about a review in one place, or a digest of many reviews."""

    __tablename__: ClassVar[Any] = "slack_cards"
    __table_args__ = (
        UniqueConstraint("review_id", "place", name="uq_slack_cards_review"),
        CheckConstraint("kind IN ('card', 'digest')", name="slack_card_kind_known"),
        Index("ix_slack_cards_effect", "effect_id"),
        Index("ix_slack_cards_digest", "digest_id"),
        Index("ix_slack_cards_place", "place", "kind", "card_id"),
    )

    card_id: str = Field(primary_key=True)
    kind: str = "card"
    place: str  # as configured: '#name', or the id of a channel or a person
    review_id: str | None = None  # of a card
    effect_id: str | None = None
    rev: int | None = None
    digest_id: str | None = None  # the digest that contains it instead of a message of its own
    channel: str | None = None  # Slack's id of the channel
    ts: str | None = None  # the message there
    drawn: str | None = None  # digest of the content last sent
    created_at: datetime = Field(sa_type=UtcDateTime)
    posted_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class SlackPlaceRow(Row, table=True):
    """A channel or a person messages are sent to: its rate limit and its failures."""

    __tablename__: ClassVar[Any] = "slack_places"

    place: str = Field(primary_key=True)
    channel: str | None = None  # Slack's id, once looked up
    not_before: datetime | None = Field(default=None, sa_type=UtcDateTime)
    failures: int = 0  # in a row
    last_error: str | None = None
    since: datetime | None = Field(default=None, sa_type=UtcDateTime)  # the first of those failures


class SlackStatusRow(Row, table=True):
    """How far the audit log was projected to Slack, and the failures of the app as a whole."""

    __tablename__: ClassVar[Any] = "slack_standing"

    team_id: str = Field(primary_key=True)
    upto: int = Field(sa_type=BigInteger)  # index of the last projected audit line
    not_before: datetime | None = Field(default=None, sa_type=UtcDateTime)
    failures: int = 0
    last_error: str | None = None
    since: datetime | None = Field(default=None, sa_type=UtcDateTime)


class SlackDeliveryRow(Row, table=True):
    """An interaction that was processed; a repeat is ignored."""

    __tablename__: ClassVar[Any] = "slack_deliveries"

    delivery: str = Field(primary_key=True)
    at: datetime = Field(sa_type=UtcDateTime, index=True)


_PREFIX: Final = "slack "
_MAX_LISTED: Final = 20
"""Failing places listed by name."""

_outbox, _places = table(OutboxRow).c, table(SlackPlaceRow)

IS_WAITING: Final = _outbox.state == "waiting"


def lane_of(place: str) -> str:
    """The lane of a place."""
    return _PREFIX + place


def all_lanes() -> Select[tuple[str]]:
    """The lanes of all places. Compared by name so that the index of lanes is used: a common prefix is not one range
    in every collation.
    """
    return select(_PREFIX + _places.c.place)


def has_message(*such: ColumnElement[bool]) -> ColumnElement[bool]:
    """In a query over places: whether the place's lane holds such a message."""
    return select(_outbox.outbox_id).where(_outbox.lane == _PREFIX + _places.c.place, *such).exists()


def list_failing_places(conn: Connection, failures: int = 1) -> tuple[SlackPlaceRow, ...]:
    """Places that failed so often in a row and have something waiting, those that failed first before the others."""
    failed = (_places.c.failures >= failures, _places.c.since.is_not(None), has_message(IS_WAITING))
    query = select(*_places.columns).where(*failed).order_by(_places.c.since, _places.c.place)
    return tuple(rows_of(SlackPlaceRow, conn.execute(query.limit(_MAX_LISTED))))
