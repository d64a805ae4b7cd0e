"""What the Slack channel need not remember any more.

A delivery is never repeated after a day; a card whose review was settled long ago is read by nobody; a place that is
owed nothing and holds no card is found again by its name. The log remembers what happened.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from sqlalchemy import Delete, delete, exists

from policy_service.storage.core import table
from policy_service.storage.slack_lanes import WAITS, holds
from policy_service.storage.slack_tables import SlackCardRow, SlackDeliveryRow, SlackPlaceRow
from policy_service.storage.tables import ReviewRow
from policy_service.storage.unit import Tx

DELIVERIES_KEPT: Final = timedelta(days=1)
"""Slack repeats for an hour at most, and a delivery whose signature is older than minutes is not taken."""

CARDS_KEPT: Final = timedelta(days=90)
"""After its review was settled: outcomes, tasks and compensations follow for weeks, and are told in its thread."""

_deliveries, _cards, _places = table(SlackDeliveryRow), table(SlackCardRow), table(SlackPlaceRow)
_reviews = table(ReviewRow).c


def forget_slack(tx: Tx) -> int:
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
    """``not_before`` is the last time that a place was used or wanted: `owing.want_place` moves it in the unit that
    owes a message, so that no place is forgotten while something is on its way to it. A place without one was made for
    what is over by now, or was woken by an operator."""
    long_ago = _places.c.not_before.is_(None) | (_places.c.not_before < tx.now - CARDS_KEPT)
    unused = (long_ago, ~exists().where(_cards.c.place == _places.c.place))
    return delete(_places).where(*unused, ~holds(WAITS))
