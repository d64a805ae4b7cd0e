"""What Slack is sent next, and what came of it.

One process at a time sends, by lease; in each place one message after the other, in the order of the log, not faster
than Slack takes them. What came of a call decides who rests:

- Slack asks for patience, or the place is gone: the place rests, and its messages wait;
- the app is not let in any more, or Slack does not answer: everything rests, and is tried again;
- a message is refused for what it says: it is set aside and told, because it would be refused for ever;
- nobody knows why it failed: its place rests, and after many attempts the message is set aside and told.

A place that rests keeps its order: a message that failed goes back to where it stood.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final

from sqlalchemy import Connection, select

from policy_service.audit.log import append
from policy_service.identity.agents import OPERATOR
from policy_service.slack import LATE_FAILURES, SlackApp
from policy_service.storage import leases, outbox
from policy_service.storage.core import change, find_one, rows_of, table
from policy_service.storage.database import Tx
from policy_service.storage.outbox import Message, Retry
from policy_service.storage.plumbing import OutboxRow
from policy_service.storage.slack_tables import SlackCardRow, SlackPlaceRow, SlackStandingRow
from policy_service.workflow.context import Context
from policy_service.workflow.slack.following import CARD, EPHEMERAL, OFFERED_FOR, REPLY, lane_of, want_place

PACE: Final = timedelta(seconds=1.1)
"""Between two messages in one place: Slack takes about one a second in a channel, and bursts only now and then."""

ANSWER_FOR: Final = timedelta(minutes=10)
"""An answer to a press is worth nothing later."""

MOST_ANSWERS: Final = 5
"""That wait for one person: whoever presses faster than they can be answered has been told why already."""

_LEASE: Final = "slack"
_LEASE_FOR: Final = timedelta(seconds=60)  # outlasts all calls of a message that was taken under it
_CLAIM: Final = Retry(claim_s=90)
_REST: Final = Retry(backoff_s=1, max_backoff_s=60)  # for Slack as a whole
_REST_OF_A_PLACE: Final = Retry(backoff_s=5, max_backoff_s=300)
_LONGEST_REST: Final = timedelta(hours=1)  # that Slack may ask for
_AT_ONCE: Final = 20  # places in one round
_AGAIN: Final = "_again"

_outbox = table(OutboxRow)
_places = table(SlackPlaceRow)


class Came(Enum):
    """What came of a message."""

    SENT = "sent"
    NOTHING_TO_SAY = "nothing_to_say"
    PATIENCE = "patience"  # Slack names a time
    PLACE = "place"  # the channel is archived, gone, or the app is not in it
    APP = "app"  # the token is not taken any more
    WORLD = "world"  # no answer, or one that says nothing of the message
    REFUSED = "refused"  # for what it says
    GONE = "gone"  # the message that was to change is not there any more
    LOST = "lost"  # an answer to a press: nobody knows whether it was shown, and it is not said twice


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one message, and where it stands now. ``error`` is Slack's code, never its words."""

    came: Came
    error: str | None = None
    rest: timedelta | None = None
    channel: str | None = None
    ts: str | None = None
    drawn: str | None = None
    at: datetime | None = None  # when what it shows was read
    unsent: bool = False  # Slack has certainly not acted on it
    dark: bool = False  # nobody knows why, and it may be so for ever


async def due_places(ctx: Context, app: SlackApp, busy: Sequence[str] = ()) -> list[SlackPlaceRow]:
    """Where something may be sent now, those that have waited longest first, without the ``busy`` ones; nowhere while
    everything rests."""
    now = ctx.clock()
    return await ctx.db.read(lambda conn: _due(conn, app, now, busy))


def _due(conn: Connection, app: SlackApp, now: datetime, busy: Sequence[str]) -> list[SlackPlaceRow]:
    standing = find_one(conn, SlackStandingRow, team_id=app.team_id)
    if standing is None or (standing.not_before is not None and now < standing.not_before):
        return []
    lane, waits = _outbox.c, _outbox.c.state == "waiting"
    mine = lane.lane == "slack " + _places.c.place
    awake = (_places.c.not_before.is_(None)) | (_places.c.not_before <= now)
    some = select(lane.outbox_id).where(mine, waits, lane.next_at <= now).exists()
    free = _places.c.place.not_in(busy)
    query = (
        select(*_places.columns)
        .where(awake, some, free)
        .order_by(_places.c.not_before.nulls_first(), _places.c.place)
    )
    return rows_of(SlackPlaceRow, conn.execute(query.limit(_AT_ONCE)))


async def take(ctx: Context, place: str, holder: str) -> Message | None:
    """The next message of a place, claimed for this process; None while another one sends."""
    return await ctx.db.write(lambda tx: _take(tx, place, holder))


def _take(tx: Tx, place: str, holder: str) -> Message | None:
    if leases.acquire(tx, _LEASE, holder, _LEASE_FOR) is None:
        return None
    lane = lane_of(place)
    outbox.drop_late(tx, lane, EPHEMERAL)
    outbox.give_up(tx, lane)
    return outbox.claim_first(tx, _CLAIM, lane)


async def leads(ctx: Context, holder: str) -> bool:
    """Whether this process is the one that sends; asked once for all places of a round."""
    return await ctx.db.write(lambda tx: leases.acquire(tx, _LEASE, holder, _LEASE_FOR) is not None)


async def let_go(ctx: Context, holder: str) -> None:
    """This process sends no more; another one need not wait for the end of the lease."""
    await ctx.db.write(lambda tx: leases.release(tx, _LEASE, holder))


async def found(ctx: Context, place: str, channel: str) -> None:
    """Slack's own id of a place."""
    await ctx.db.write(lambda tx: change(tx.conn, SlackPlaceRow, {"place": place}, {"channel": channel}))


async def note(ctx: Context, app: SlackApp, place: str, message: Message, outcome: Outcome) -> None:
    """Write down what came of a message."""
    spread = random.uniform(0.75, 1)  # noqa: S311  so that replicas and places do not come back together
    await ctx.db.write(lambda tx: _note(tx, app, place, message, outcome, spread))


def _note(tx: Tx, app: SlackApp, place: str, message: Message, outcome: Outcome, spread: float) -> None:
    came = outcome.came
    if not _settle(tx, message, outcome):
        return  # this process was away for longer than its claim: who took the message since says what came of it
    if message.kind != EPHEMERAL and (came in (Came.SENT, Came.GONE) or outcome.ts is not None):
        _keep_card(tx, message, outcome)
    elif message.kind == CARD and outcome.error is not None and (message.attempt > 1 or not outcome.unsent):
        # Slack may show what this attempt drew, or one before it: nobody may take it for what was drawn last
        change(tx.conn, SlackCardRow, {"card_id": message.payload["card_id"]}, {"drawn": None})
    if came in (Came.SENT, Came.GONE, Came.REFUSED):
        change(tx.conn, SlackPlaceRow, {"place": place}, _WELL | {"not_before": tx.now + PACE})
        change(tx.conn, SlackStandingRow, {"team_id": app.team_id}, _WELL | {"not_before": None})
    elif came is Came.PATIENCE:
        rest = min(outcome.rest or PACE, _LONGEST_REST)
        change(tx.conn, SlackPlaceRow, {"place": place}, {"not_before": tx.now + rest})
    elif came is Came.PLACE:
        _place_failed(tx, place, outcome, spread)
    elif came not in (Came.NOTHING_TO_SAY, Came.LOST):
        _slack_failed(tx, app, outcome, spread)


def _settle(tx: Tx, message: Message, outcome: Outcome) -> bool:
    """Whether this attempt was the last one begun, as whose outcome this is written down."""
    outbox_id, attempt = message.outbox_id, message.attempt
    if outcome.came in (Came.SENT, Came.NOTHING_TO_SAY, Came.GONE, Came.LOST):
        return outbox.mark_sent(tx, outbox_id, attempt)
    if outcome.came is Came.REFUSED:
        return outbox.set_aside(tx, outbox_id, outcome.error, attempt)
    return outbox.put_back(tx, outbox_id, outcome.error, untried=outcome.unsent, attempt=attempt)


_WELL: Final[dict[str, object]] = {"failures": 0, "last_error": None, "since": None}


def _place_failed(tx: Tx, place: str, outcome: Outcome, spread: float) -> None:
    row = find_one(tx.conn, SlackPlaceRow, place=place)
    if row is not None:
        failed = _failed(tx, row, outcome, _REST_OF_A_PLACE, spread)
        change(tx.conn, SlackPlaceRow, {"place": place}, failed)


def _slack_failed(tx: Tx, app: SlackApp, outcome: Outcome, spread: float) -> None:
    row = find_one(tx.conn, SlackStandingRow, team_id=app.team_id)
    if row is not None:
        failed = _failed(tx, row, outcome, _REST, spread)
        if outcome.came is Came.APP:
            failed["failures"] = max(row.failures + 1, LATE_FAILURES)
        change(tx.conn, SlackStandingRow, {"team_id": app.team_id}, failed)


def _failed(
    tx: Tx, row: SlackPlaceRow | SlackStandingRow, outcome: Outcome, retry: Retry, spread: float
) -> dict[str, object]:
    rest = max(outcome.rest or timedelta(), retry.pause(row.failures + 1) * spread)
    return {
        "failures": row.failures + 1,
        "not_before": tx.now + min(rest, _LONGEST_REST),
        "last_error": outcome.error,
        "since": row.since or tx.now,
    }


def _keep_card(tx: Tx, message: Message, outcome: Outcome) -> None:
    """Where a card stands now: what was posted stands there, even where it could not be brought up to date."""
    card = find_one(tx.conn, SlackCardRow, card_id=message.payload["card_id"])
    if card is not None and message.kind == REPLY:
        if outcome.came is not Came.GONE:
            return  # its thread tells nothing of where it stands
        card = card if card.digest_id is None else find_one(tx.conn, SlackCardRow, card_id=card.digest_id)
    if card is None:
        return
    stands: dict[str, Any] = {"channel": outcome.channel, "ts": outcome.ts, "drawn": outcome.drawn}
    if outcome.came is Came.GONE:
        stands = {"channel": None, "ts": None, "drawn": None, "posted_at": None}
        _post_anew(tx, message, card)
    else:
        stands["posted_at"] = card.posted_at or outcome.at or tx.now
    change(tx.conn, SlackCardRow, {"card_id": card.card_id}, stands)


def _post_anew(tx: Tx, message: Message, card: SlackCardRow) -> None:
    """Somebody took the message away: people are still asked, so there is another one; not for ever."""
    if not message.outbox_id.endswith(_AGAIN):
        named, until = message.outbox_id + _AGAIN, tx.now + timedelta(days=1)
        payload = {"card_id": card.card_id}
        outbox.put_once(tx, named, CARD, payload, lane=lane_of(card.place), give_up_at=until)


async def answered(ctx: Context, app: SlackApp, outcome: Outcome) -> None:
    """Slack was asked how it is, where no message told."""
    await ctx.db.write(lambda tx: _answered(tx, app, outcome))


def _answered(tx: Tx, app: SlackApp, outcome: Outcome) -> None:
    if outcome.came is Came.SENT:
        change(tx.conn, SlackStandingRow, {"team_id": app.team_id}, _WELL | {"not_before": None})
    else:
        _slack_failed(tx, app, outcome, 1.0)


async def lost(ctx: Context, app: SlackApp, error: str) -> None:
    """Slack says that the app is not let in any more. It is tried again all the same: somebody may let it in."""
    outcome = Outcome(Came.APP, error)
    await ctx.db.write(lambda tx: _slack_failed(tx, app, outcome, 1.0))


# -- answers to what somebody pressed ----------------------------------------------------------------------------------


def owe_answer(
    tx: Tx,
    outbox_id: str,
    *,
    user_id: str,
    channel: str,
    thread_ts: str | None,
    sentence: str,
    url: str | None,
) -> None:
    """Words for one person alone, where they pressed: sent at once, in a lane of their own."""
    place = f"@{user_id}"
    mine = (_outbox.c.lane == lane_of(place), _outbox.c.state == "waiting", _outbox.c.kind == EPHEMERAL)
    waiting = tx.conn.execute(select(_outbox.c.outbox_id).where(*mine).limit(MOST_ANSWERS)).all()
    if len(waiting) == MOST_ANSWERS:
        return
    want_place(tx, place)
    payload = {"user": user_id, "channel": channel, "thread_ts": thread_ts, "sentence": sentence, "url": url}
    until = tx.now + ANSWER_FOR
    outbox.put_once(tx, outbox_id, EPHEMERAL, payload, lane=lane_of(place), give_up_at=until)


def _owed(conn: Connection) -> list[str]:
    """Places where something waits or was set aside, but for answers to a press, which are worth nothing now."""
    mine, kinds = _outbox.c.lane == "slack " + _places.c.place, _outbox.c.kind != EPHEMERAL
    owed = (_outbox.c.state == "waiting") | ((_outbox.c.state == "dead") & kinds)
    some = select(_outbox.c.outbox_id).where(mine, owed).exists()
    return list(conn.scalars(select(_places.c.place).where(some).order_by(_places.c.place)))


def try_again(tx: Tx, app: SlackApp) -> int:
    """Whatever rests is awake, and what was set aside may leave after all; how many messages that were. A name is
    looked up anew: another channel may have it by now."""
    change(tx.conn, SlackStandingRow, {"team_id": app.team_id}, _WELL | {"not_before": None})
    until, revived = tx.now + OFFERED_FOR, 0
    for place in _owed(tx.conn):
        anew = {"channel": None} if place.startswith("#") else {}
        change(tx.conn, SlackPlaceRow, {"place": place}, _WELL | {"not_before": None} | anew)
        revived += outbox.try_again(tx, lane_of(place), until, but=EPHEMERAL, attempts=1)
    append(tx, "slack_retried", actor=OPERATOR, body={"team": app.team_id, "messages": revived})
    return revived
