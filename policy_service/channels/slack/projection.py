"""Project the audit log to outbox messages for Slack.

The cursor and the messages are written in one unit of work, so no message is lost or duplicated, even with several
replicas. Rules:

- A review has a card in each channel its gates name, in the default channel if a gate names none, and in a direct
  message to each eligible person who has enabled them.
- Every later row about its effect updates the card. Rows that matter to people are also posted in its thread.
- If many cards wait for a place, further ones share one message, a digest.
- A review whose only place was dropped by an operator is posted elsewhere.

A message holds only ids; its content is read when it is sent. A new app starts at the end of the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Select, func, select

from policy_service.audit.log import Entry, entries_after, highest_index
from policy_service.domain.gates import MergedGate
from policy_service.errors import ForbiddenError
from policy_service.queries.context import Context
from policy_service.queries.repository import select_at_revisions, select_in
from policy_service.queries.review_context import Quarantine, ReviewContext, read_review_context
from policy_service.queries.vote_eligibility import vote_refusal
from policy_service.slack import SlackApp
from policy_service.storage.core import (
    find,
    find_one,
    insert_row,
    insert_row_or_ignore,
    rows_of,
    table,
    update_rows,
)
from policy_service.storage.database import Tx
from policy_service.storage.slack_tables import (
    IS_WAITING,
    SlackCardRow,
    SlackLinkRow,
    SlackStatusRow,
    lane_of,
)
from policy_service.storage.system_tables import OutboxRow
from policy_service.storage.tables import ReviewRow
from policy_service.storage.types import new_id
from policy_service.workflow.slack.enqueue import ASKED_NOWHERE, CARD, enqueue_log_line, ensure_place
from policy_service.workflow.slack.interactions import voter_for_account


def direct_recipients(
    conn: Connection, ctx: Context, app: SlackApp, case: ReviewContext, now: datetime
) -> list[str]:
    """The user ids of eligible people who have enabled direct messages."""
    wanting = find(conn, SlackLinkRow, team_id=app.team_id, direct=True)
    return sorted(row.user_id for row in wanting if _is_eligible(conn, ctx, app, case, row, now))


def _is_eligible(
    conn: Connection, ctx: Context, app: SlackApp, case: ReviewContext, row: SlackLinkRow, now: datetime
) -> bool:
    try:
        linked = voter_for_account(conn, ctx, app, row.team_id, row.user_id, now)
    except ForbiddenError:
        return False
    bundle = ctx.active.current
    return vote_refusal(ctx, bundle, case.agent, case.review, case.gates, linked.voter, now) is None


_LINES_PER_READ: Final = 200  # audit rows in one read
_MESSAGES_PER_UNIT: Final = 300  # messages written in one unit of work

_TARGETING_KINDS: Final = frozenset(
    {
        "review_opened",
        "review_reopened",
        "review_reminded",
        "review_escalated",
        "decision_made",
        ASKED_NOWHERE,
    }
)
"""Rows that may require cards in further places: a later gate names another channel, an escalation adds people, and a
review that was opened before Slack was configured is posted at its reminder."""

CARD_KINDS: Final = frozenset(
    """
    review_reopened vote_recorded break_glass_signed break_glass_opened effect_released effect_review effect_denied
    effect_expired effect_withdrawn effect_fired effect_failed effect_unused effect_unknown effect_compensating
    effect_compensated effect_compensation_failed
    """.split()
)
"""Kinds that are posted in the thread and also visible on the card. A card posted after them shows them, so they are
not posted again. Comments and reminders are not on the card."""

THREAD_KINDS: Final = CARD_KINDS | frozenset(
    """
    review_reminded review_escalated comment_written question_asked question_answered proposal_opened
    proposal_accepted proposal_declined task_opened task_settled outcome_contradicted
    """.split()
)
"""Kinds of rows that are posted in the thread."""

DIGEST_THREAD_KINDS: Final = frozenset(
    """
    review_reminded review_escalated effect_unknown effect_compensation_failed task_opened outcome_contradicted
    """.split()
)
"""Those that are also posted in a digest's thread."""

_outbox, _card = table(OutboxRow).c, table(SlackCardRow).c


@dataclass(frozen=True, slots=True)
class _ReviewTargets:
    """The places of one review's cards, as of one audit row."""

    review_id: str
    effect_id: str
    rev: int
    places: tuple[str, ...]


def gate_channels(app: SlackApp, asked: Sequence[MergedGate]) -> list[str]:
    """The channels that the gates name; the default channel if a gate names none."""
    named = [gate.channels or (app.default_channel,) for gate in asked]
    return list(dict.fromkeys(channel for channels in named for channel in channels))


async def project_log(ctx: Context, app: SlackApp) -> bool:
    """Enqueue messages for new audit rows. Returns whether there were any."""
    news = await ctx.db.read(lambda conn: _read_batch(conn, ctx, app))
    if news is None:
        await ctx.db.write(lambda tx: _start_cursor(tx, app))
        return True
    if not news.lines:
        return False
    return await ctx.db.write(lambda tx: _enqueue_batch(tx, app, news))


@dataclass(frozen=True, slots=True)
class _LogBatch:
    """New audit rows and their reviews, read in advance to keep the unit of work short. ``cards`` only estimates its
    size."""

    upto: int
    lines: Sequence[Entry]
    asked: Mapping[int, _ReviewTargets]
    cards: Mapping[str, Sequence[SlackCardRow]]


def _read_batch(conn: Connection, ctx: Context, app: SlackApp) -> _LogBatch | None:
    status = find_one(conn, SlackStatusRow, team_id=app.team_id)
    if status is None:
        return None
    lines = entries_after(conn, status.upto, _LINES_PER_READ)
    return _LogBatch(status.upto, lines, _review_targets(conn, ctx, app, lines), _cards_of(conn, lines))


def _cards_of(conn: Connection, lines: Sequence[Entry]) -> dict[str, list[SlackCardRow]]:
    """The cards of these rows' effects, by effect."""
    effects = sorted({line.effect_id for line in lines if line.effect_id is not None})
    cards: dict[str, list[SlackCardRow]] = {effect_id: [] for effect_id in effects}
    for card in select_in(conn, SlackCardRow, table(SlackCardRow).c.effect_id, effects):
        cards[str(card.effect_id)].append(card)
    return cards


def _review_targets(
    conn: Connection, ctx: Context, app: SlackApp, lines: Sequence[Entry]
) -> dict[int, _ReviewTargets]:
    """The places of the rows' reviews; none for a review that has ended or is corrupt, which the web shows."""
    asking = {line.index: line for line in lines if line.kind in _TARGETING_KINDS}
    about = {index: (line.effect_id or "", line.rev or 0) for index, line in asking.items()}
    reviews = select_at_revisions(conn, ReviewRow, "effect_id", sorted(set(about.values())))
    found = {}
    for review in reviews:
        with Quarantine(review):
            if review.state == "open":
                case = read_review_context(conn, review.review_id)
                direct = tuple(direct_recipients(conn, ctx, app, case, ctx.clock()))
                found[review.effect_id, review.rev] = review, case, direct
    return {
        index: _targets_of_line(app, asking[index], *found[named])
        for index, named in about.items()
        if named in found
    }


def _targets_of_line(
    app: SlackApp, line: Entry, review: ReviewRow, case: ReviewContext, direct: tuple[str, ...]
) -> _ReviewTargets:
    channels = gate_channels(app, case.asked)
    if line.kind == ASKED_NOWHERE:
        given_up = line.body["place"]
        left = [place for place in channels if place != given_up] or [app.default_channel]
        channels = [place for place in left if place != given_up]
        direct = tuple(place for place in direct if place != given_up)
    return _ReviewTargets(review.review_id, review.effect_id, review.rev, (*channels, *direct))


def _start_cursor(tx: Tx, app: SlackApp) -> None:
    insert_row_or_ignore(tx.conn, SlackStatusRow(team_id=app.team_id, upto=highest_index(tx.conn)))


def _enqueue_batch(tx: Tx, app: SlackApp, news: _LogBatch) -> bool:
    lines = _lines_of_one_unit(news)
    reached = {"upto": lines[-1].index}
    if not update_rows(tx.conn, SlackStatusRow, {"team_id": app.team_id, "upto": news.upto}, reached):
        return False  # another replica has advanced the cursor
    cards = _cards_of(tx.conn, lines)  # read again: an operator may have dropped a place meanwhile
    for line in lines:
        if (about := news.asked.get(line.index)) is not None:
            _create_cards(tx, app, about, cards[about.effect_id])
        for card in cards.get(line.effect_id or "", ()):
            if line.rev in (None, card.rev):
                enqueue_log_line(
                    tx,
                    line.index,
                    card,
                    said=line.kind in (THREAD_KINDS if card.digest_id is None else DIGEST_THREAD_KINDS),
                )
    return True


def _lines_of_one_unit(news: _LogBatch) -> Sequence[Entry]:
    """As many rows as one unit of work may process, at least one. Votes wait while it runs."""
    messages = 0
    for place, line in enumerate(news.lines):
        about = news.asked.get(line.index)
        asked = () if about is None else about.places
        messages += len(asked) + 2 * max(len(asked), len(news.cards.get(line.effect_id or "", ())))
        if messages > _MESSAGES_PER_UNIT and place:
            return news.lines[:place]
    return news.lines


def _create_cards(tx: Tx, app: SlackApp, about: _ReviewTargets, cards: list[SlackCardRow]) -> None:
    """Create missing cards and append them to ``cards``."""
    known = {card.place for card in cards if card.review_id == about.review_id}
    for place in about.places:
        if place not in known:
            digest = _digest_of(tx, app, place)
            row = SlackCardRow(
                card_id=new_id("card", tx.now),
                place=place,
                review_id=about.review_id,
                effect_id=about.effect_id,
                rev=about.rev,
                digest_id=None if digest is None else digest.card_id,
                created_at=tx.now,
            )
            ensure_place(tx, place)
            insert_row(tx.conn, row)
            cards.append(row)


def _digest_of(tx: Tx, app: SlackApp, place: str) -> SlackCardRow | None:
    """The digest for a further card of this place, created if needed; None while few cards wait."""
    if not _many_wait(tx, app, place):
        return None
    unposted = (_card.place == place, _card.kind == "digest", _card.ts.is_(None))
    found = tx.conn.execute(select(*table(SlackCardRow).columns).where(*unposted).limit(1))
    if (digest := next(iter(rows_of(SlackCardRow, found)), None)) is not None:
        return digest
    row = SlackCardRow(card_id=new_id("card", tx.now), kind="digest", place=place, created_at=tx.now)
    insert_row(tx.conn, row)
    return row


def _many_wait(tx: Tx, app: SlackApp, place: str) -> bool:
    """Whether many reviews wait to be posted there. Messages alone do not say so, because a review has several. Cards
    alone do not either, because a refused card is posted only after a new event."""
    most = app.digest_above
    waiting = (_outbox.lane == lane_of(place), IS_WAITING, _outbox.kind == CARD)
    messages = select(_outbox.outbox_id).where(*waiting, _outbox.next_at <= tx.now).limit(most)
    unposted = (_card.place == place, _card.kind == "card", _card.digest_id.is_(None), _card.ts.is_(None))
    cards = select(_card.card_id).where(*unposted).limit(most)
    return all(_count(tx.conn, some) >= most for some in (messages, cards))


def _count(conn: Connection, some: Select[Any]) -> int:
    return int(conn.execute(select(func.count()).select_from(some.subquery())).scalar_one())
