"""Alarms shown on every page: emergency stops, break-glass releases, and Slack delivery failures.

Every page reads them, so each query uses an index that is almost always empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection, select
from sqlmodel import col

from countersign.contract import TaskKind
from policy_service.domain.person_actions import BREAK_GLASS
from policy_service.identity.agents import OPERATOR, frozen_agents
from policy_service.identity.people import names_of
from policy_service.pap.bundle import Bundle
from policy_service.queries.context import Context
from policy_service.queries.repository import rows, select_at_revisions
from policy_service.queries.stops import Target, list_stops
from policy_service.slack import UNHEALTHY_FAILURES, SlackApp
from policy_service.storage.core import find_one, table
from policy_service.storage.slack_tables import SlackStatusRow, list_failing_places
from policy_service.storage.tables import ReviewRow, TaskRow, VoteRow

BREAK_GLASS_SHOWN_FOR: Final = timedelta(hours=24)
"""How long an opening by two people is shown; one by a single person is shown until it is reviewed."""

_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class StopLine:
    """An emergency stop: its target, start, author and reason."""

    target: Target
    since: datetime
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class BreakGlassLine:
    """An effect released by break-glass. ``task_id`` is set while its review afterwards is open."""

    review_id: str
    tool: str
    agent: str
    at: datetime
    by: tuple[str, ...]
    task_id: str | None


@dataclass(frozen=True, slots=True)
class SlackLine:
    """A Slack outage: since when, and Slack's error code."""

    since: datetime
    error: str
    places: tuple[str, ...] = ()  # the failing channels; empty if all of Slack fails


@dataclass(frozen=True, slots=True)
class Alarms:
    stops: tuple[StopLine, ...] = ()
    opened: tuple[BreakGlassLine, ...] = ()
    slack: SlackLine | None = None


async def alarms(ctx: Context) -> Alarms:
    bundle, now, slack = ctx.active.current, ctx.clock(), ctx.settings.slack

    def read(conn: Connection) -> Alarms:
        return Alarms(tuple(_stops(conn, bundle)), tuple(_opened(conn, now)), _slack(conn, slack))

    return await ctx.db.read(read)


def _slack(conn: Connection, app: SlackApp | None) -> SlackLine | None:
    row = None if app is None else find_one(conn, SlackStatusRow, team_id=app.team_id)
    if row is None:
        return None
    if row.since is not None and row.failures >= UNHEALTHY_FAILURES:
        return SlackLine(row.since, row.last_error or "")
    return _failing_channels(conn)


def _failing_channels(conn: Connection) -> SlackLine | None:
    """Channels that refuse messages while some are waiting for them."""
    found = list_failing_places(conn, UNHEALTHY_FAILURES)
    if not found or found[0].since is None:
        return None
    return SlackLine(found[0].since, found[0].last_error or "", tuple(row.place for row in found))


def _stops(conn: Connection, bundle: Bundle) -> list[StopLine]:
    held = [
        (
            Target("everything") if stop.tool is None else Target("tool", stop.tool),
            stop.since,
            stop.by,
            stop.reason,
        )
        for stop in list_stops(conn)
    ]
    held += [
        (Target("agent", row.name), row.frozen_at, row.frozen_by or "", row.frozen_reason or "")
        for row in frozen_agents(conn)[:_SHOWN]
        if row.frozen_at is not None
    ]
    names = names_of(conn, {by.removeprefix("person:") for _, _, by, _ in held if by.startswith("person:")})
    return [
        StopLine(target, since, actor_display_name(bundle, by, names), reason)
        for target, since, by, reason in held
    ]


def actor_display_name(bundle: Bundle, actor: str, names: dict[str, str]) -> str:
    """The display name of an actor of the audit log."""
    kind, _, name = actor.partition(":")
    if kind == "person":
        return bundle.directory.name_of(name) or names.get(name) or name
    return "an operator" if actor == OPERATOR else name or kind


def _opened(conn: Connection, now: datetime) -> list[BreakGlassLine]:
    owed = _open_break_glass_reviews(conn)
    lately = (
        select(*table(ReviewRow).columns)
        .where(
            col(ReviewRow.break_glass_at).is_not(None),
            col(ReviewRow.break_glass_at) > now - BREAK_GLASS_SHOWN_FOR,
        )
        .order_by(col(ReviewRow.break_glass_at).desc())
        .limit(_SHOWN)
    )
    found = {review.review_id: review for review in rows(conn, ReviewRow, lately)}
    reviewed = _reviewed(conn, [review.effect_id for review in found.values()])
    shown = {key: review for key, review in found.items() if (review.effect_id, review.rev) not in reviewed}
    shown |= {review.review_id: review for review in select_at_revisions(conn, ReviewRow, "effect_id", owed)}
    signed = _signer_names(conn, list(shown))
    return [
        BreakGlassLine(
            review.review_id,
            review.tool,
            review.agent,
            review.break_glass_at or review.opened_at,
            tuple(signed.get(review.review_id, ())),
            owed.get((review.effect_id, review.rev)),
        )
        for review in sorted(shown.values(), key=lambda review: review.review_id, reverse=True)
    ]


def _open_break_glass_reviews(conn: Connection) -> dict[tuple[str, int], str]:
    """Open break-glass reviews by effect and revision."""
    query = (
        select(col(TaskRow.effect_id), col(TaskRow.rev), col(TaskRow.task_id))
        .where(col(TaskRow.kind) == TaskKind.BREAK_GLASS_REVIEW.value, col(TaskRow.state) == "open")
        .order_by(col(TaskRow.task_id))
        .limit(_SHOWN)
    )
    return {(effect_id, rev): task_id for effect_id, rev, task_id in conn.execute(query)}


def _reviewed(conn: Connection, effect_ids: list[str]) -> set[tuple[str, int]]:
    query = select(col(TaskRow.effect_id), col(TaskRow.rev)).where(
        col(TaskRow.effect_id).in_(effect_ids),
        col(TaskRow.kind) == TaskKind.BREAK_GLASS_REVIEW.value,
        col(TaskRow.state) != "open",
    )
    return {(effect_id, rev) for effect_id, rev in conn.execute(query)} if effect_ids else set()


def _signer_names(conn: Connection, review_ids: list[str]) -> dict[str, list[str]]:
    if not review_ids:
        return {}
    query = (
        select(col(VoteRow.review_id), col(VoteRow.name))
        .where(col(VoteRow.review_id).in_(review_ids), col(VoteRow.verdict) == BREAK_GLASS)
        .where(col(VoteRow.late).is_(False))
        .order_by(col(VoteRow.vote_id))
    )
    found: dict[str, list[str]] = {}
    for review_id, name in conn.execute(query):
        found.setdefault(review_id, []).append(name)
    return found
