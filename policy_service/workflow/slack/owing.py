"""What Slack is owed: messages in the outbox, in the lane of their place, in the unit that makes them owed.

A message holds ids; what it says is read when it is sent. It is named for what made it owed, so that the same thing
owes it once, whoever follows the log and however often.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from sqlalchemy import select, update

from policy_service.storage import outbox
from policy_service.storage.core import insert_unless_taken, table
from policy_service.storage.plumbing import OutboxRow
from policy_service.storage.slack_lanes import WAITS, lane_of
from policy_service.storage.slack_tables import SlackCardRow, SlackPlaceRow
from policy_service.storage.unit import Tx

CARD: Final = "slack_card"
REPLY: Final = "slack_reply"
EPHEMERAL: Final = "slack_ephemeral"

OFFERED_FOR: Final = timedelta(days=30)  # longer than any outage somebody would still want to be told of

ANSWER_FOR: Final = timedelta(minutes=10)
"""An answer to a press is worth nothing later."""

MOST_ANSWERS: Final = 5
"""That wait for one person: whoever presses faster than they can be answered has been told why already."""

_ANEW_FOR: Final = timedelta(days=1)
_ANEW: Final = "_again"

_outbox = table(OutboxRow).c
_places = table(SlackPlaceRow)


def want_place(tx: Tx, place: str) -> None:
    """Have a place to write to, in the unit that owes it something; it is not forgotten meanwhile (`forgetting`)."""
    if not insert_unless_taken(tx.conn, SlackPlaceRow(place=place)):
        unused = (_places.c.not_before.is_(None)) | (_places.c.not_before < tx.now)
        tx.conn.execute(update(_places).where(_places.c.place == place, unused).values(not_before=tx.now))


def owe_card(tx: Tx, card: SlackCardRow, why: str) -> None:
    """Bring a card, or the digest that holds it, up to date; once for each ``why``."""
    named = card.digest_id or card.card_id
    _put(tx, f"slk_{why}_{named}", CARD, {"card_id": named}, card.place)


def owe_line(tx: Tx, index: int, card: SlackCardRow, *, said: bool) -> None:
    """Bring a card up to date after a line of the log; ``said``: and say the line in its thread."""
    owe_card(tx, card, f"{index:016x}_1")
    if said:
        payload = {"card_id": card.card_id, "index": index}
        _put(tx, f"slk_{index:016x}_2_{card.card_id}", REPLY, payload, card.place)


def owe_anew(tx: Tx, card: SlackCardRow, message: outbox.Message) -> None:
    """Somebody took the message away: people are still asked, so there is another one; not for ever."""
    if not message.outbox_id.endswith(_ANEW):
        _put(tx, message.outbox_id + _ANEW, CARD, {"card_id": card.card_id}, card.place, _ANEW_FOR)


def owe_answer(
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
    mine = (_outbox.lane == lane_of(place), WAITS, _outbox.kind == EPHEMERAL)
    waiting = tx.conn.execute(select(_outbox.outbox_id).where(*mine).limit(MOST_ANSWERS)).all()
    if len(waiting) == MOST_ANSWERS:
        return
    want_place(tx, place)
    payload = {"user": user_id, "channel": channel, "sentence": sentence, "url": url}
    _put(tx, outbox_id, EPHEMERAL, payload, place, ANSWER_FOR)


def _put(
    tx: Tx, outbox_id: str, kind: str, payload: dict[str, Any], place: str, wait: timedelta = OFFERED_FOR
) -> None:
    outbox.put_once(tx, outbox_id, kind, payload, lane=lane_of(place), give_up_at=tx.now + wait)
