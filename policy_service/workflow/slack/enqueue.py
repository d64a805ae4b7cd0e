"""Enqueue messages to Slack, record processed deliveries, and delete old Slack records.

A message is written to the outbox lane of its place, in the unit that causes it. It holds ids; its text is read when it
is sent. Its outbox id names its cause, so one cause enqueues it once, on any replica.

A delivery from Slack is processed once. Its id is derived from what was done, by which account and when, so it is the
same over both transports. Ids are kept for a day: Slack stops repeating after an hour, and a signature is valid for
minutes.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Delete, delete, exists, select, update

from policy_service.queries.context import Context
from policy_service.storage import outbox
from policy_service.storage.core import find_one, insert_row_or_ignore, table
from policy_service.storage.slack_tables import (
    IS_WAITING,
    SlackCardRow,
    SlackDeliveryRow,
    SlackPlaceRow,
    has_message,
    lane_of,
)
from policy_service.storage.system_tables import OutboxRow
from policy_service.storage.tables import ReviewRow
from policy_service.storage.unit_of_work import Tx

CARD: Final = "slack_card"
REPLY: Final = "slack_reply"
EPHEMERAL: Final = "slack_ephemeral"

ASKED_NOWHERE: Final = "slack_asked_nowhere"
"""The audit kind about a review whose only place an operator dropped (`admin.drop_place`)."""

MESSAGE_LIFETIME: Final = timedelta(days=30)  # longer than any outage after which a message is still useful

EPHEMERAL_LIFETIME: Final = timedelta(minutes=10)
"""A response to a press is useless after that."""

MAX_PENDING_EPHEMERALS: Final = 5
"""Responses waiting for one person. Someone who presses faster has been shown the reason already."""

_RETRY_WINDOW: Final = timedelta(days=1)
_RETRY_SUFFIX: Final = "_again"

_outbox = table(OutboxRow).c
_places = table(SlackPlaceRow)


def ensure_place(tx: Tx, place: str) -> None:
    """Create the row of a place, or refresh it so that `delete_expired_slack_rows` keeps it."""
    if not insert_row_or_ignore(tx.conn, SlackPlaceRow(place=place)):
        unused = (_places.c.not_before.is_(None)) | (_places.c.not_before < tx.now)
        tx.conn.execute(update(_places).where(_places.c.place == place, unused).values(not_before=tx.now))


def enqueue_card(tx: Tx, card: SlackCardRow, why: str) -> None:
    """Enqueue an update of a card, or of the digest that contains it; once for each ``why``."""
    named = card.digest_id or card.card_id
    _enqueue(tx, f"slk_{why}_{named}", CARD, {"card_id": named}, card.place)


def enqueue_log_line(tx: Tx, index: int, card: SlackCardRow, *, said: bool) -> None:
    """Enqueue an update of a card after an audit row. ``said``: and a reply about the row in its thread."""
    enqueue_card(tx, card, f"{index:016x}_1")
    if said:
        payload = {"card_id": card.card_id, "index": index}
        _enqueue(tx, f"slk_{index:016x}_2_{card.card_id}", REPLY, payload, card.place)


def enqueue_replacement(tx: Tx, card: SlackCardRow, message: outbox.Message) -> None:
    """Enqueue a replacement of a deleted message, once: people must still be asked."""
    if not message.outbox_id.endswith(_RETRY_SUFFIX):
        _enqueue(
            tx, message.outbox_id + _RETRY_SUFFIX, CARD, {"card_id": card.card_id}, card.place, _RETRY_WINDOW
        )


def enqueue_ephemeral(
    tx: Tx,
    outbox_id: str,
    *,
    user_id: str,
    channel: str,
    sentence: str,
    url: str | None,
) -> None:
    """Enqueue a response that only one person sees, where they pressed, in a lane of its own."""
    place = f"@{user_id}"
    mine = (_outbox.lane == lane_of(place), IS_WAITING, _outbox.kind == EPHEMERAL)
    waiting = tx.conn.execute(select(_outbox.outbox_id).where(*mine).limit(MAX_PENDING_EPHEMERALS)).all()
    if len(waiting) == MAX_PENDING_EPHEMERALS:
        return
    ensure_place(tx, place)
    payload = {"user": user_id, "channel": channel, "sentence": sentence, "url": url}
    _enqueue(tx, outbox_id, EPHEMERAL, payload, place, EPHEMERAL_LIFETIME)


def _enqueue(
    tx: Tx, outbox_id: str, kind: str, payload: dict[str, Any], place: str, wait: timedelta = MESSAGE_LIFETIME
) -> None:
    outbox.enqueue_once(tx, outbox_id, kind, payload, lane=lane_of(place), give_up_at=tx.now + wait)


def delivery_id(*parts: str) -> str:
    """The id of a delivery: a digest, because Slack's own ids hold more than we need to keep."""
    return hashlib.sha256("\n".join(parts).encode("utf-8", "replace")).hexdigest()


async def is_processed(ctx: Context, delivery: str) -> bool:
    """Whether a delivery was processed."""
    return await ctx.db.read(lambda conn: find_one(conn, SlackDeliveryRow, delivery=delivery) is not None)


async def mark_processed(ctx: Context, delivery: str) -> bool:
    """Record that a delivery is processed; whether it was not before. Of two at once, one is first."""
    return await ctx.db.write(lambda tx: record_delivery(tx, delivery))


def record_delivery(tx: Tx, delivery: str) -> bool:
    """Record a delivery within a unit; whether it was not recorded before."""
    return insert_row_or_ignore(tx.conn, SlackDeliveryRow(delivery=delivery, at=tx.now))


DELIVERIES_KEPT: Final = timedelta(days=1)
"""Slack repeats for at most an hour, and deliveries with an older signature are refused."""

CARDS_KEPT: Final = timedelta(days=90)
"""After the review has settled: outcomes, tasks and compensations are posted in the thread for weeks."""

_deliveries, _cards = table(SlackDeliveryRow), table(SlackCardRow)
_reviews = table(ReviewRow).c


def delete_expired_slack_rows(tx: Tx) -> int:
    """Delete expired deliveries, cards, digests and places; returns how many. Each step frees rows for the next."""
    over = (_expired_deliveries(tx), _expired_cards(tx), _expired_digests(tx), _unused_places(tx))
    return sum(tx.conn.execute(statement).rowcount for statement in over)


def _expired_deliveries(tx: Tx) -> Delete:
    return delete(_deliveries).where(_deliveries.c.at < tx.now - DELIVERIES_KEPT)


def _expired_cards(tx: Tx) -> Delete:
    settled = (_reviews.review_id == _cards.c.review_id, _reviews.settled_at < tx.now - CARDS_KEPT)
    return delete(_cards).where(_cards.c.kind == "card", exists().where(*settled))


def _expired_digests(tx: Tx) -> Delete:
    held = _cards.alias()
    old = (_cards.c.kind == "digest", _cards.c.created_at < tx.now - CARDS_KEPT)
    return delete(_cards).where(*old, ~exists().where(held.c.digest_id == _cards.c.card_id))


def _unused_places(tx: Tx) -> Delete:
    """Places without cards and messages that were not used recently.

    ``not_before`` is the last time a place was used: `ensure_place` sets it in the unit that enqueues a message, so no
    place is deleted while a message is on its way. Old places and resumed ones have none.
    """
    long_ago = _places.c.not_before.is_(None) | (_places.c.not_before < tx.now - CARDS_KEPT)
    unused = (long_ago, ~exists().where(_cards.c.place == _places.c.place))
    return delete(_places).where(*unused, ~has_message(IS_WAITING))
