"""Reading the audit log: agents read rows of their own transactions; people read and search all rows.

Rows hold ids and codes, never arguments. A page uses one index and scans a bounded number of rows; it reports
how far it scanned.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Table, or_, select, text

from countersign.contract import canonicalize, wire
from policy_service.audit.feed import EVERYTHING, Event, party_topic
from policy_service.audit.log import Entry, canonical_record
from policy_service.errors import InvalidRequestError
from policy_service.identity.agents import Caller
from policy_service.identity.people import names_of
from policy_service.queries.alarms import actor_display_name
from policy_service.queries.context import Context
from policy_service.queries.repository import rows
from policy_service.storage.archive_tables import ArchivedTransactionRow
from policy_service.storage.core import Row, table
from policy_service.storage.system_tables import AuditRow
from policy_service.storage.tables import EffectRow, TransactionRow
from policy_service.storage.types import parse_stored_json

_MAX_PAGE_SCAN = 2_000  # rows scanned for one page; a few milliseconds


@dataclass(frozen=True)
class AuditReader:
    """The reader: an agent, or a signed-in person (None)."""

    caller: Caller | None


async def audit_page(ctx: Context, who: AuditReader, after: int, limit: int) -> wire.AuditPage:
    """Rows after an index: at most ``limit``, fewer if many rows belong to other agents."""
    found, reached = await ctx.db.read(lambda conn: _after(conn, who, after, limit + 1))
    shown = tuple(_row(row) for row in found[:limit])
    return wire.AuditPage(rows=shown, next=shown[-1].index if len(found) > limit else reached)


async def wait_for_events(
    ctx: Context, who: AuditReader, index: int, seconds: float
) -> tuple[list[wire.Event], int]:
    """Events after an index as soon as there are any, and the index reached; none on timeout."""
    topic = EVERYTHING if who.caller is None else party_topic(who.caller.agent)
    found, reached = await ctx.feed.follow(index, seconds, topic)
    return [_event(event) for event in found], reached


def _after(conn: Connection, who: AuditReader, after: int, limit: int) -> tuple[list[AuditRow], int | None]:
    """The rows, and the last scanned index if the log continues after it."""
    line = table(AuditRow).c
    query = select(*line).where(line.idx > after).order_by(line.idx).limit(limit)
    if who.caller is None:
        return rows(conn, AuditRow, query), None
    next_page = select(line.idx).where(line.idx > after).order_by(line.idx).offset(_MAX_PAGE_SCAN).limit(1)
    beyond = conn.execute(next_page).scalar()
    if beyond is not None:
        query = query.where(line.idx < beyond)
    own = (_is_own(model, who.caller.agent) for model in (TransactionRow, ArchivedTransactionRow))
    return rows(conn, AuditRow, query.where(or_(*own))), None if beyond is None else beyond - 1


def _is_own(model: type[Row], agent: str) -> ColumnElement[bool]:
    """Whether an audit line is of a transaction that the agent submitted or redeems."""
    row = table(model).c
    mine = select(row.txn).where(row.txn == table(AuditRow).c.txn, or_(row.agent == agent, row.aud == agent))
    # a scalar subquery, not EXISTS: a planner may turn EXISTS into a join over all the agent's transactions
    return mine.limit(1).scalar_subquery().is_not(None)


def rows_of_effect(conn: Connection, effect: EffectRow, most: int) -> list[AuditRow]:
    """The rows of an effect at its revision and of its transaction, oldest first; the newest ``most`` of
    them.
    """
    line = table(AuditRow).c
    mine = or_(line.effect_id.is_(None), line.effect_id == effect.effect_id)
    where = (line.txn == effect.txn, or_(line.rev == effect.rev, line.rev.is_(None)), mine)
    newest = select(*line).where(*where).order_by(line.audit_id.desc()).limit(most)
    return rows(conn, AuditRow, newest)[::-1]


def _row(row: AuditRow) -> wire.AuditRow:
    kind, _, name = row.actor.partition(":")
    body = parse_stored_json(row.body)
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


MAX_SEARCHED: Final = 5_000  # index entries scanned for one page; about ten milliseconds
_EXPORTED_AT_ONCE: Final = 500
_MICROSECONDS: Final = 1_000_000
_BY_PEOPLE: Final = text("substr(actor, 1, 7) = 'person:'")  # the condition of the partial index
_ID_CHARS: Final = 30


@dataclass(frozen=True, slots=True)
class LogSearch:
    """Search conditions; empty ones do not filter."""

    agent: str = ""
    about: str = ""  # an effect id or a transaction id
    kind: str = ""
    person: str = ""  # iss|sub
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class LogLine:
    """A row of the audit log for people."""

    index: int
    at: datetime
    kind: str
    actor: str
    actor_name: str
    agent: str | None
    txn: str | None
    effect_id: str | None
    record: bytes  # the canonical bytes of the whole line


@dataclass(frozen=True, slots=True)
class LogPage:
    """A page of rows. ``looked_back_to`` is set if the scan stopped at its limit."""

    rows: tuple[LogLine, ...]
    next_cursor: str | None = None
    looked_back_to: datetime | None = None


async def search_log(ctx: Context, wanted: LogSearch, cursor: str | None, limit: int) -> LogPage:
    """A page of matching rows, newest first.

    Raises:
        InvalidRequestError: the cursor is invalid.
    """
    _require_cursor(cursor)
    return await ctx.db.read(lambda conn: _search(conn, ctx, wanted, cursor, limit))


async def export_lines(ctx: Context, wanted: LogSearch) -> AsyncIterator[LogLine]:
    """Every matching row, newest first, read in pages, so that no connection is held in between."""
    cursor: str | None = None
    while True:
        page = await search_log(ctx, wanted, cursor, _EXPORTED_AT_ONCE)
        for line in page.rows:
            yield line
        if page.next_cursor is None:
            return
        cursor = page.next_cursor


def _require_cursor(cursor: str | None) -> None:
    if cursor is not None and not (len(cursor) <= _ID_CHARS and set(cursor) <= set("0123456789abcdef")):
        raise InvalidRequestError(f"the cursor {cursor!r} is not one of ours; start without one")


def _search(conn: Connection, ctx: Context, wanted: LogSearch, cursor: str | None, limit: int) -> LogPage:
    lines: Table = table(AuditRow)
    indexed, filters = _split(conn, wanted)
    stretch = select(lines).where(*indexed, *_between(wanted, cursor))
    stretch = stretch.order_by(lines.c.audit_id.desc()).limit(MAX_SEARCHED)
    if filters:
        near = stretch.subquery("near")
        fitting = [near.c[column] == value for column, value in filters]
        found = rows(
            conn, AuditRow, select(near).where(*fitting).order_by(near.c.audit_id.desc()).limit(limit + 1)
        )
    else:
        found = rows(conn, AuditRow, stretch.limit(limit + 1))
    shown = [row for row in found[:limit] if row.idx is not None]
    lines_shown = tuple(_lines(conn, ctx, shown))
    if len(found) > limit:
        return LogPage(lines_shown, found[limit - 1].audit_id)
    end = _end_of(conn, indexed, wanted, cursor) if filters else None
    return LogPage(lines_shown, *end) if end is not None else LogPage(lines_shown)


def _split(conn: Connection, wanted: LogSearch) -> tuple[list[ColumnElement[bool]], list[tuple[str, str]]]:
    """The conditions served by one index, and those checked on the rows it yields."""
    row = table(AuditRow).c
    asked: list[tuple[str, str]] = []
    if wanted.about:
        # live effects exist only in the log, not in the tables
        known = select(row.txn).where(row.txn == wanted.about).limit(1)
        asked.append(("effect_id" if conn.execute(known).scalar() is None else "txn", wanted.about))
    if wanted.person:
        asked.append(("actor", f"person:{wanted.person}"))
    if wanted.agent:
        asked.append(("agent", wanted.agent))
    if wanted.kind:
        asked.append(("kind", wanted.kind))
    if not asked:
        return [], []
    column, value = asked[0]
    indexed: list[ColumnElement[bool]] = [row[column] == value]
    if column == "actor":
        indexed.append(_BY_PEOPLE)  # type: ignore[arg-type]
    return indexed, asked[1:]


def _between(wanted: LogSearch, cursor: str | None) -> list[ColumnElement[bool]]:
    """A row id begins with its time in microseconds, so a time is a position in every index."""
    row = table(AuditRow).c
    found = [] if wanted.since is None else [row.audit_id >= _first_id(wanted.since)]
    ends = [
        end for end in (cursor, None if wanted.until is None else _first_id(wanted.until)) if end is not None
    ]
    return [*found, *([row.audit_id < min(ends)] if ends else [])]


def _first_id(at: datetime) -> str:
    return f"{max(0, int(at.timestamp() * _MICROSECONDS)):014x}"


def _end_of(
    conn: Connection, indexed: list[ColumnElement[bool]], wanted: LogSearch, cursor: str | None
) -> tuple[str, datetime] | None:
    """Where the scan stopped, if matching rows may follow."""
    row = table(AuditRow).c
    last = select(row.audit_id, row.at).where(*indexed, *_between(wanted, cursor))
    found = conn.execute(last.order_by(row.audit_id.desc()).offset(MAX_SEARCHED - 1).limit(2)).all()
    return (found[0].audit_id, found[0].at) if len(found) > 1 else None


def _lines(conn: Connection, ctx: Context, found: list[AuditRow]) -> list[LogLine]:
    people = {row.actor.removeprefix("person:") for row in found if row.actor.startswith("person:")}
    names, bundle = names_of(conn, people), ctx.active.current
    return [
        LogLine(
            index=row.idx or 0,
            at=row.at,
            kind=row.kind,
            actor=row.actor,
            actor_name=actor_display_name(bundle, row.actor, names),
            agent=row.agent,
            txn=row.txn,
            effect_id=row.effect_id,
            record=_record(row),
        )
        for row in found
    ]


def _record(row: AuditRow) -> bytes:
    body: Any = parse_stored_json(row.body)
    entry = Entry(
        row.idx or 0, row.audit_id, row.kind, row.actor, body, row.at, row.txn, row.effect_id, row.rev
    )
    return canonical_record(entry)


def export_line(line: LogLine) -> bytes:
    """One line of an export: the index and the indexed record."""
    return canonicalize({"index": line.index, "record": parse_stored_json(line.record)})
