"""The log as callers may read it: an agent sees the rows of its own transactions, a person sees all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select
from sqlmodel import col

from countersign.contract import load, wire
from policy_service.identity.callers import Caller
from policy_service.storage.core import table
from policy_service.storage.tables import AuditRow, TransactionRow
from policy_service.workflow.context import Context
from policy_service.workflow.records import rows

_AT_ONCE = 200


@dataclass(frozen=True)
class Watcher:
    """Who reads the log: an agent, or a signed-in person (None)."""

    caller: Caller | None


async def page(ctx: Context, who: Watcher, after: int, limit: int) -> wire.AuditPage:
    """Rows after an index, by index."""
    found = await ctx.db.read(lambda conn: _after(conn, who, after, limit + 1))
    shown = tuple(_row(row) for row in found[:limit])
    return wire.AuditPage(rows=shown, next=shown[-1].index if len(found) > limit else None)


async def events_after(
    ctx: Context, who: Watcher, index: int, seconds: float
) -> tuple[list[wire.Event], int]:
    """Events after an index as soon as there are some, and how far was looked; none when the time is up."""
    await ctx.feed.wait_after(index, seconds)
    reached = ctx.feed.index
    found = await ctx.db.read(lambda conn: _after(conn, who, index, _AT_ONCE))
    if found:
        last = found[-1].idx or 0  # rows may have come after `reached` was noted: they are not told twice
        reached = last if len(found) == _AT_ONCE else max(reached, last)
    return [_event(row) for row in found], max(index, reached)


def _after(conn: Connection, who: Watcher, after: int, limit: int) -> Sequence[AuditRow]:
    columns = table(AuditRow).columns
    query = select(*columns).where(col(AuditRow.idx) > after)
    if who.caller is not None:
        mine = select(col(TransactionRow.txn)).where(
            (col(TransactionRow.agent) == who.caller.agent) | (col(TransactionRow.aud) == who.caller.agent)
        )
        query = query.where(col(AuditRow.txn).in_(mine))
    return rows(conn, AuditRow, query.order_by(col(AuditRow.idx)).limit(limit))


def of_transaction(conn: Connection, txn: str, rev: int) -> list[AuditRow]:
    """The rows of one revision, in the order they were written."""
    columns = table(AuditRow).columns
    where = (col(AuditRow.txn) == txn, (col(AuditRow.rev) == rev) | col(AuditRow.rev).is_(None))
    return rows(conn, AuditRow, select(*columns).where(*where).order_by(col(AuditRow.audit_id)))


def _row(row: AuditRow) -> wire.AuditRow:
    kind, _, name = row.actor.partition(":")
    body = load(row.body)
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


def _event(row: AuditRow) -> wire.Event:
    body = load(row.body)
    review_id = body.get("review_id") if isinstance(body, dict) else None
    return wire.Event(
        index=row.idx or 0,
        kind=row.kind,
        txn=row.txn,
        effect_id=row.effect_id,
        review_id=review_id if isinstance(review_id, str) else None,
        rev=row.rev,
    )
