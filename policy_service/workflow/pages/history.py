"""The log as callers may read it: an agent sees the rows of its own transactions, a person sees all.

Rules: a page is read by index, and whose a line is by its transaction's key; a page looks through so many lines at
most and says how far it looked, so nobody's question reads the whole log. What happens now comes from the feed.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, or_, select

from countersign.contract import wire
from policy_service.audit.feed import EVERYTHING, Event, of_party
from policy_service.identity.agents import Caller
from policy_service.storage.core import table
from policy_service.storage.plumbing import AuditRow
from policy_service.storage.tables import EffectRow, TransactionRow
from policy_service.storage.types import read_stored
from policy_service.workflow.context import Context
from policy_service.workflow.records import rows

_LOOKED_THROUGH = 2_000  # lines of a page; that many look-ups by key are a few milliseconds


@dataclass(frozen=True)
class Watcher:
    """Who reads the log: an agent, or a signed-in person (None)."""

    caller: Caller | None


async def page(ctx: Context, who: Watcher, after: int, limit: int) -> wire.AuditPage:
    """Rows after an index, by index: at most ``limit``, and fewer where many lines are others'."""
    found, reached = await ctx.db.read(lambda conn: _after(conn, who, after, limit + 1))
    shown = tuple(_row(row) for row in found[:limit])
    return wire.AuditPage(rows=shown, next=shown[-1].index if len(found) > limit else reached)


async def events_after(
    ctx: Context, who: Watcher, index: int, seconds: float
) -> tuple[list[wire.Event], int]:
    """Events after an index as soon as there are some, and how far was looked; none when the time is up."""
    topic = EVERYTHING if who.caller is None else of_party(who.caller.agent)
    found, reached = await ctx.feed.follow(index, seconds, topic)
    return [_event(event) for event in found], reached


def _after(conn: Connection, who: Watcher, after: int, limit: int) -> tuple[list[AuditRow], int | None]:
    """The rows, and where their lines end if the log goes on there."""
    line = table(AuditRow).c
    query = select(*line).where(line.idx > after).order_by(line.idx).limit(limit)
    if who.caller is None:
        return rows(conn, AuditRow, query), None
    next_page = select(line.idx).where(line.idx > after).order_by(line.idx).offset(_LOOKED_THROUGH).limit(1)
    beyond = conn.execute(next_page).scalar()
    if beyond is not None:
        query = query.where(line.idx < beyond)
    row, agent = table(TransactionRow).c, who.caller.agent
    # one value for a line, not EXISTS: a planner may turn that round and begin with all the agent ever had
    mine = select(row.txn).where(row.txn == line.txn, or_(row.agent == agent, row.aud == agent)).limit(1)
    query = query.where(mine.scalar_subquery().is_not(None))
    return rows(conn, AuditRow, query), None if beyond is None else beyond - 1


def of_effect(conn: Connection, effect: EffectRow, most: int) -> list[AuditRow]:
    """The rows of one effect at its revision, and those of its transaction as a whole, in the order they were written;
    where there are more than ``most``, the newest."""
    line = table(AuditRow).c
    mine = or_(line.effect_id.is_(None), line.effect_id == effect.effect_id)
    where = (line.txn == effect.txn, or_(line.rev == effect.rev, line.rev.is_(None)), mine)
    newest = select(*line).where(*where).order_by(line.audit_id.desc()).limit(most)
    return rows(conn, AuditRow, newest)[::-1]


def _row(row: AuditRow) -> wire.AuditRow:
    kind, _, name = row.actor.partition(":")
    body = read_stored(row.body)
    return wire.AuditRow(
        index=row.idx or 0,
        at=row.at,
        kind=row.kind,
        actor={"type": kind, "id": name} if name else {"type": kind},
        body=body if isinstance(body, dict) else {},
        txn=row.txn,
        effect_id=row.effect_id,
        rev=row.rev,
    )


def _event(event: Event) -> wire.Event:
    return wire.Event(
        index=event.index,
        kind=event.kind,
        txn=event.txn,
        effect_id=event.effect_id,
        review_id=event.review_id,
        rev=event.rev,
    )
