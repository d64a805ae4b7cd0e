"""Read the content of a message when it is sent, as every member of the channel may see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection

from policy_service.channels.slack.blocks.card import DigestLine
from policy_service.channels.slack.projection import CARD_KINDS
from policy_service.identity.people import is_revoked, names_of, slack_link
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.effects import effect_sentence
from policy_service.queries.review_context import Quarantine
from policy_service.queries.review_models import EventLine, ReviewPage
from policy_service.queries.reviews import read_review_page
from policy_service.queries.timeline import event_line, person_of
from policy_service.queries.view_digest import SLACK_RENDERER, view_of
from policy_service.queries.vote_eligibility import Voter
from policy_service.storage.core import find, find_one
from policy_service.storage.outbox import Message
from policy_service.storage.slack_tables import SlackCardRow
from policy_service.storage.system_tables import AuditRow
from policy_service.storage.tables import CommentRow, EffectRow, VoteRow
from policy_service.storage.types import parse_stored_json
from policy_service.workflow.slack.enqueue import CARD, REPLY

CHANNEL_READER: Final = Voter("", "", "", "oidc")
"""An anonymous reader of a channel, who may not decide anything."""

_CLOCK_TOLERANCE: Final = timedelta(seconds=5)
"""A row may be written while the card is rendered, and replicas' clocks differ. In doubt it is posted in the thread."""

DIGEST_LINES: Final = 20


@dataclass(frozen=True, slots=True)
class CardContent:
    """A review as its card shows it, and the digest of that view."""

    card: SlackCardRow
    page: ReviewPage
    view_digest: str


@dataclass(frozen=True, slots=True)
class DigestContent:
    """Reviews that share a message, open ones first; ``more``: open ones that only the web queue lists."""

    card: SlackCardRow
    lines: tuple[DigestLine, ...]
    more: int


@dataclass(frozen=True, slots=True)
class ReplyContent:
    """An audit row to post in the thread of a message, with the text that a person or agent wrote."""

    carrier: SlackCardRow  # the thread's message: the card, or the digest that contains it
    review_id: str
    rev: int
    line: EventLine
    words: str | None


MessageContent = CardContent | DigestContent | ReplyContent


def read_content(conn: Connection, ctx: Context, message: Message, now: datetime) -> MessageContent | None:
    """The content of a message; None if there is nothing left to post."""
    card = find_one(conn, SlackCardRow, card_id=message.payload["card_id"])
    if card is None or not _is_wanted(conn, ctx, card):
        return None
    if message.kind == CARD:
        return _digest(conn, ctx, card) if card.kind == "digest" else read_card(conn, ctx, card, now)
    return _reply(conn, ctx, card, message.payload["index"]) if message.kind == REPLY else None


def _is_wanted(conn: Connection, ctx: Context, card: SlackCardRow) -> bool:
    """Whether a direct message is still wanted: its person may have unlinked, been revoked, or disabled it."""
    app = ctx.settings.slack
    if app is None or not card.place.startswith(("U", "W")):
        return True
    row = slack_link(conn, app.team_id, card.place)
    return row is not None and row.direct and not is_revoked(conn, row.iss, row.sub)


def read_card(conn: Connection, ctx: Context, card: SlackCardRow, now: datetime) -> CardContent | None:
    """A review as its card shows it."""
    review = None if card.review_id is None else repository.review_by_id(conn, card.review_id)
    if review is None:
        return None
    with Quarantine(review):
        page = read_review_page(conn, ctx, CHANNEL_READER, review.review_id, now)
        return None if page is None else CardContent(card, page, view_of(page, SLACK_RENDERER).digest)
    return None


def _digest(conn: Connection, ctx: Context, card: SlackCardRow) -> DigestContent | None:
    held = find(conn, SlackCardRow, digest_id=card.card_id)
    found = repository.reviews_by_id(conn, [row.review_id for row in held if row.review_id is not None])
    reviews = sorted(found, key=lambda review: (review.state != "open", review.review_id))
    shown, rest = reviews[:DIGEST_LINES], reviews[DIGEST_LINES:]
    named = [(review.effect_id, review.rev) for review in shown]
    effects = {
        (effect.effect_id, effect.rev): effect
        for effect in repository.select_at_revisions(conn, EffectRow, "effect_id", named)
    }
    lines = []
    for review in shown:
        with Quarantine(review):
            effect = effects[review.effect_id, review.rev]
            sentence = effect_sentence(ctx.active.current, effect)
            lines.append(DigestLine(review.review_id, sentence, review.state, review.answer_by))
    more = sum(review.state == "open" for review in rest)
    return DigestContent(card, tuple(lines), more) if lines else None


def _reply(conn: Connection, ctx: Context, card: SlackCardRow, index: int) -> ReplyContent | None:
    row = find_one(conn, AuditRow, idx=index)
    carrier = card if card.digest_id is None else find_one(conn, SlackCardRow, card_id=card.digest_id)
    if (
        row is None
        or carrier is None
        or carrier.posted_at is None
        or card.review_id is None
        or card.rev is None
    ):
        return None
    if row.kind in CARD_KINDS and row.at < carrier.posted_at - _CLOCK_TOLERANCE:
        return None  # the message was posted later and shows it
    key = person_of(row)
    line = event_line(ctx.active.current, row, names_of(conn, [key] if key is not None else []))
    body = parse_stored_json(row.body)
    if line is None or not isinstance(body, dict):
        return None
    return ReplyContent(carrier, card.review_id, card.rev, line, _written_text(conn, row.kind, body))


def _written_text(conn: Connection, kind: str, body: Mapping[str, Any]) -> str | None:
    """The written text: people's reasons and comments, and an agent's answer, which is unverified."""
    if kind in ("vote_recorded", "break_glass_signed"):
        vote = find_one(conn, VoteRow, vote_id=body["vote_id"])
        return None if vote is None else vote.reason
    if kind in ("comment_written", "question_asked", "question_answered"):
        comment = find_one(conn, CommentRow, comment_id=body["comment_id"])
        if comment is None:
            return None
        return comment.answer if kind == "question_answered" else comment.text
    return None
