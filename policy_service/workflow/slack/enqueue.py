"""What Slack is owed: messages in the outbox, in the lane of their place, in the unit that makes them owed.

A message holds ids; what it says is read when it is sent. It is named for what made it owed, so that the same thing
owes it once, whoever follows the log and however often.

What somebody did in Slack is acted on once, whichever way and however often it is delivered.

A delivery is known by what it says was done, by whom and when, so that it has one name over both ways. Names are kept
for a day: a signature holds for five minutes, and Slack delivers nothing again after an hour.

What the Slack channel need not remember any more.

A delivery is never repeated after a day; a card whose review was settled long ago is read by nobody; a place that is
owed nothing and holds no card is found again by its name. The log remembers what happened.
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
"""The kind of the line about a review whose only place an operator gave up (`admin.drop`)."""

MESSAGE_LIFETIME: Final = timedelta(days=30)  # longer than any outage somebody would still want to be told of

EPHEMERAL_LIFETIME: Final = timedelta(minutes=10)
"""An answer to a press is worth nothing later."""

MAX_PENDING_EPHEMERALS: Final = 5
"""That wait for one person: whoever presses faster than they can be answered has been told why already."""

_ANEW_FOR: Final = timedelta(days=1)
_ANEW: Final = "_again"

_outbox = table(OutboxRow).c
_places = table(SlackPlaceRow)


def ensure_place(tx: Tx, place: str) -> None:
    """Have a place to write to, in the unit that owes it something; it is not forgotten meanwhile (`forget_slack`)."""
    if not insert_row_or_ignore(tx.conn, SlackPlaceRow(place=place)):
        unused = (_places.c.not_before.is_(None)) | (_places.c.not_before < tx.now)
        tx.conn.execute(update(_places).where(_places.c.place == place, unused).values(not_before=tx.now))


def enqueue_card(tx: Tx, card: SlackCardRow, why: str) -> None:
    """Bring a card, or the digest that holds it, up to date; once for each ``why``."""
    named = card.digest_id or card.card_id
    _put(tx, f"slk_{why}_{named}", CARD, {"card_id": named}, card.place)


def enqueue_log_line(tx: Tx, index: int, card: SlackCardRow, *, said: bool) -> None:
    """Bring a card up to date after a line of the log; ``said``: and say the line in its thread."""
    enqueue_card(tx, card, f"{index:016x}_1")
    if said:
        payload = {"card_id": card.card_id, "index": index}
        _put(tx, f"slk_{index:016x}_2_{card.card_id}", REPLY, payload, card.place)


def enqueue_replacement(tx: Tx, card: SlackCardRow, message: outbox.Message) -> None:
    """Somebody took the message away: people are still asked, so there is another one; not for ever."""
    if not message.outbox_id.endswith(_ANEW):
        _put(tx, message.outbox_id + _ANEW, CARD, {"card_id": card.card_id}, card.place, _ANEW_FOR)


def enqueue_ephemeral(
    tx: Tx,
    outbox_id: str,
    *,
    user_id: str,
    channel: str,
    sentence: str,
    url: str | None,
) -> None:
    """Words for one person alone, where they pressed: sent at once, in a lane of their own."""
    place = f"@{user_id}"
    mine = (_outbox.lane == lane_of(place), IS_WAITING, _outbox.kind == EPHEMERAL)
    waiting = tx.conn.execute(select(_outbox.outbox_id).where(*mine).limit(MAX_PENDING_EPHEMERALS)).all()
    if len(waiting) == MAX_PENDING_EPHEMERALS:
        return
    ensure_place(tx, place)
    payload = {"user": user_id, "channel": channel, "sentence": sentence, "url": url}
    _put(tx, outbox_id, EPHEMERAL, payload, place, EPHEMERAL_LIFETIME)


def _put(
    tx: Tx, outbox_id: str, kind: str, payload: dict[str, Any], place: str, wait: timedelta = MESSAGE_LIFETIME
) -> None:
    outbox.enqueue_once(tx, outbox_id, kind, payload, lane=lane_of(place), give_up_at=tx.now + wait)


def delivery_id(*parts: str) -> str:
    """The name of one thing somebody did: a digest, since Slack's ids say more than we need to keep."""
    return hashlib.sha256("\n".join(parts).encode("utf-8", "replace")).hexdigest()


async def is_processed(ctx: Context, delivery: str) -> bool:
    """Whether it was acted on."""
    return await ctx.db.read(lambda conn: find_one(conn, SlackDeliveryRow, delivery=delivery) is not None)


async def mark_processed(ctx: Context, delivery: str) -> bool:
    """Write down that it is acted on; whether it was not before. Of two at once, one is the first."""
    return await ctx.db.write(lambda tx: record_delivery(tx, delivery))


def record_delivery(tx: Tx, delivery: str) -> bool:
    """The same in a unit that is open."""
    return insert_row_or_ignore(tx.conn, SlackDeliveryRow(delivery=delivery, at=tx.now))


DELIVERIES_KEPT: Final = timedelta(days=1)
"""Slack repeats for an hour at most, and a delivery whose signature is older than minutes is not taken."""

CARDS_KEPT: Final = timedelta(days=90)
"""After its review was settled: outcomes, tasks and compensations follow for weeks, and are told in its thread."""

_deliveries, _cards = table(SlackDeliveryRow), table(SlackCardRow)
_reviews = table(ReviewRow).c


def delete_expired_slack_rows(tx: Tx) -> int:
    """Forget deliveries, cards, digests and places that are over; how many rows. In this order: what is forgotten by
    one lets go of what the next one holds."""
    over = (_deliveries_over(tx), _cards_over(tx), _digests_over(tx), _places_over(tx))
    return sum(tx.conn.execute(statement).rowcount for statement in over)


def _deliveries_over(tx: Tx) -> Delete:
    return delete(_deliveries).where(_deliveries.c.at < tx.now - DELIVERIES_KEPT)


def _cards_over(tx: Tx) -> Delete:
    settled = (_reviews.review_id == _cards.c.review_id, _reviews.settled_at < tx.now - CARDS_KEPT)
    return delete(_cards).where(_cards.c.kind == "card", exists().where(*settled))


def _digests_over(tx: Tx) -> Delete:
    held = _cards.alias()
    old = (_cards.c.kind == "digest", _cards.c.created_at < tx.now - CARDS_KEPT)
    return delete(_cards).where(*old, ~exists().where(held.c.digest_id == _cards.c.card_id))


def _places_over(tx: Tx) -> Delete:
    """``not_before`` is the last time that a place was used or wanted: `want_place` moves it in the unit that
    owes a message, so that no place is forgotten while something is on its way to it. A place without one was made for
    what is over by now, or was woken by an operator."""
    long_ago = _places.c.not_before.is_(None) | (_places.c.not_before < tx.now - CARDS_KEPT)
    unused = (long_ago, ~exists().where(_cards.c.place == _places.c.place))
    return delete(_places).where(*unused, ~has_message(IS_WAITING))
