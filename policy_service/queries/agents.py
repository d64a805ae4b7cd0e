"""The list of agents and an agent's page: identity, newest effects, submission rate, denials.

Everybody who is signed in sees every agent. A page reads the newest effects through an index and counts only
those, so its cost does not grow with the agent's history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Any, Final

from sqlalchemy import Connection, select
from sqlmodel import col

from countersign.contract import EffectState
from policy_service.identity.agents import find_agent, list_keys
from policy_service.identity.people import names_of
from policy_service.pap.bundle import Bundle
from policy_service.queries.alarms import StopLine, actor_display_name
from policy_service.queries.context import Context
from policy_service.queries.effects import Piece, effect_sentence
from policy_service.queries.repository import rows, select_at_revisions
from policy_service.queries.stops import Target
from policy_service.storage.core import table
from policy_service.storage.credential_tables import AgentKeyRow
from policy_service.storage.tables import AgentRow, DecisionRow, EffectRow, ReviewRow, TransactionRow, VoteRow

RECENT: Final = 50  # effects on an agent's page
_HOURS: Final = 24
_COUNTED: Final = 10_000  # submissions of a day; more are shown as "10,000+"
_KEYS: Final = 50


@dataclass(frozen=True, slots=True)
class AgentLine:
    """An agent in the list."""

    name: str
    owner: str | None
    roles: tuple[str, ...]
    enrolled_at: datetime
    frozen_at: datetime | None
    seen_at: datetime | None  # last submission


@dataclass(frozen=True, slots=True)
class AgentList:
    """A page of agents ordered by name."""

    rows: tuple[AgentLine, ...]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class KeyLine:
    """A key of an agent and its state."""

    kid: str
    added_at: datetime
    state: str  # live, revoked, over
    issuer: str | None
    until: datetime | None


@dataclass(frozen=True, slots=True)
class EffectLine:
    """One of an agent's newest effects; ``why`` is the reason of a denial."""

    effect_id: str
    sentence: tuple[Piece, ...]
    tool: str
    state: str
    at: datetime
    review_id: str | None
    why: str


@dataclass(frozen=True, slots=True)
class AgentPage:
    """An agent in full. ``hours`` counts submissions for each of the last 24 hours, oldest first."""

    agent: AgentLine
    teams: tuple[str, ...]
    frozen: StopLine | None
    keys: tuple[KeyLine, ...]
    states: tuple[tuple[str, int], ...]
    effects: tuple[EffectLine, ...]
    hours: tuple[int, ...]
    capped: bool
    decided_in: timedelta | None  # the median time people took


async def agent_list(ctx: Context, cursor: str | None, limit: int) -> AgentList:
    """A page of agents after a name."""
    bundle = ctx.active.current
    return await ctx.db.read(lambda conn: _list(conn, bundle, cursor, limit))


async def agent_page(ctx: Context, name: str) -> AgentPage | None:
    """One agent; None if it is not enrolled."""
    bundle, now = ctx.active.current, ctx.clock()
    return await ctx.db.read(lambda conn: _page(conn, bundle, name, now))


def _list(conn: Connection, bundle: Bundle, cursor: str | None, limit: int) -> AgentList:
    query = select(*table(AgentRow).columns).order_by(col(AgentRow.name)).limit(limit + 1)
    if cursor is not None:
        query = query.where(col(AgentRow.name) > cursor)
    found = rows(conn, AgentRow, query)
    shown = found[:limit]
    seen = _last_submissions(conn, [row.name for row in shown])
    return AgentList(
        tuple(_line(bundle, row, seen.get(row.name)) for row in shown),
        shown[-1].name if len(found) > limit else None,
    )


def _last_submissions(conn: Connection, names: Sequence[str]) -> dict[str, datetime | None]:
    """When each of these agents submitted last: one index lookup each, in one query."""
    mine, agent = table(TransactionRow).c, table(AgentRow).c
    newest = (
        select(mine.submitted_at).where(mine.agent == agent.name).order_by(mine.submitted_at.desc()).limit(1)
    )
    query = select(agent.name, newest.scalar_subquery()).where(agent.name.in_(names))
    return dict(tuple(row) for row in conn.execute(query))


def _line(bundle: Bundle, row: AgentRow, seen_at: datetime | None) -> AgentLine:
    return AgentLine(
        name=row.name,
        owner=None if row.owner is None else bundle.directory.name_of(row.owner) or row.owner,
        roles=tuple(row.roles),
        enrolled_at=row.enrolled_at,
        frozen_at=row.frozen_at,
        seen_at=seen_at,
    )


def _page(conn: Connection, bundle: Bundle, name: str, now: datetime) -> AgentPage | None:
    row = find_agent(conn, name)
    if row is None:
        return None
    effects = _newest(conn, name)
    reviews = _reviews_of(conn, effects)
    hours, capped = _hours(conn, name, now)
    states = Counter(effect.state for effect in effects)
    return AgentPage(
        agent=_line(bundle, row, _last_submissions(conn, [name]).get(name)),
        teams=tuple(row.teams),
        frozen=_frozen(conn, bundle, row),
        keys=tuple(_key(key, now) for key in reversed(list_keys(conn, name)[-_KEYS:])),
        states=tuple(sorted(states.items(), key=lambda each: (-each[1], each[0]))),
        effects=_lines(conn, bundle, effects, reviews),
        hours=hours,
        capped=capped,
        decided_in=_decided_in(list(reviews.values())),
    )


def _frozen(conn: Connection, bundle: Bundle, row: AgentRow) -> StopLine | None:
    if row.frozen_at is None:
        return None
    by = row.frozen_by or ""
    names = names_of(conn, {by.removeprefix("person:")} if by.startswith("person:") else set())
    return StopLine(
        Target("agent", row.name),
        row.frozen_at,
        actor_display_name(bundle, by, names),
        row.frozen_reason or "",
    )


def _key(key: AgentKeyRow, now: datetime) -> KeyLine:
    over = key.expires_at is not None and now >= key.expires_at
    state = "revoked" if key.revoked_at is not None else "over" if over else "live"
    return KeyLine(key.kid, key.added_at, state, key.issuer, key.expires_at)


def _newest(conn: Connection, name: str) -> list[EffectRow]:
    """Found through its transactions, which have an index by agent and time."""
    newest = (
        select(col(TransactionRow.txn), col(TransactionRow.rev))
        .where(col(TransactionRow.agent) == name)
        .order_by(col(TransactionRow.submitted_at).desc())
        .limit(RECENT)
    )
    wanted = [(txn, rev) for txn, rev in conn.execute(newest)]
    if not wanted:
        return []
    found = select_at_revisions(conn, EffectRow, "txn", wanted)
    place = {key: n for n, key in enumerate(wanted)}
    return sorted(found, key=lambda effect: (place[effect.txn, effect.rev], effect.seq))[:RECENT]


def _reviews_of(conn: Connection, effects: list[EffectRow]) -> dict[tuple[str, int], ReviewRow]:
    named = [(effect.effect_id, effect.rev) for effect in effects]
    return {(row.effect_id, row.rev): row for row in select_at_revisions(conn, ReviewRow, "effect_id", named)}


def _lines(
    conn: Connection, bundle: Bundle, effects: list[EffectRow], reviews: dict[tuple[str, int], ReviewRow]
) -> tuple[EffectLine, ...]:
    denied = [effect for effect in effects if effect.state == EffectState.DENIED.value]
    why = _why_denied(conn, denied, reviews)
    return tuple(
        EffectLine(
            effect_id=effect.effect_id,
            sentence=effect_sentence(bundle, effect),
            tool=effect.tool,
            state=effect.state,
            at=effect.changed_at,
            review_id=None
            if (review := reviews.get((effect.effect_id, effect.rev))) is None
            else review.review_id,
            why=why.get((effect.effect_id, effect.rev), ""),
        )
        for effect in effects
    )


def _why_denied(
    conn: Connection, denied: list[EffectRow], reviews: dict[tuple[str, int], ReviewRow]
) -> dict[tuple[str, int], str]:
    """The reasons of the policy, replaced by a person's denial where there is one."""
    if not denied:
        return {}
    decisions = select(*table(DecisionRow).columns).where(
        col(DecisionRow.decision_id).in_([effect.decision_id for effect in denied])
    )
    said = {row.decision_id: _reasons(row.reasons) for row in rows(conn, DecisionRow, decisions)}
    why = {(effect.effect_id, effect.rev): said.get(effect.decision_id, "") for effect in denied}
    asked = {review.review_id: key for key, review in reviews.items() if key in why}
    votes = select(*table(VoteRow).columns).where(
        col(VoteRow.review_id).in_(list(asked)), col(VoteRow.verdict) == "deny", col(VoteRow.late).is_(False)
    )
    for vote in rows(conn, VoteRow, votes) if asked else ():
        why[asked[vote.review_id]] = f"{vote.name}: {vote.reason or ''}"
    return why


def _reasons(reasons: list[dict[str, Any]]) -> str:
    return "; ".join(str(reason.get("text", "")) for reason in reasons)


def _hours(conn: Connection, name: str, now: datetime) -> tuple[tuple[int, ...], bool]:
    """Submissions in each of the last hours."""
    since = now - timedelta(hours=_HOURS)
    mine = (col(TransactionRow.agent) == name, col(TransactionRow.submitted_at) > since)
    query = select(col(TransactionRow.submitted_at)).where(*mine)
    found = list(
        conn.execute(query.order_by(col(TransactionRow.submitted_at).desc()).limit(_COUNTED)).scalars()
    )
    counts = [0] * _HOURS
    for at in found:
        ago = max(timedelta(), now - at)
        counts[_HOURS - 1 - min(_HOURS - 1, int(ago / timedelta(hours=1)))] += 1
    return tuple(counts), len(found) == _COUNTED


def _decided_in(reviews: list[ReviewRow]) -> timedelta | None:
    """The median time until people decided."""
    took = [
        (review.settled_at - review.opened_at).total_seconds()
        for review in reviews
        if review.settled_at is not None and review.state in {"met", "denied"}
    ]
    return timedelta(seconds=median(took)) if took else None
