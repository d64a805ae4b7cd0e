"""Retention: move transactions that are long over from the database to the archive.

A transaction moves when nothing of it is open, its newest change is older than ``archive_after_days``, and no meter
counts it any more. :func:`reason_to_keep` lists the conditions.

Two steps, so that a crash in between loses nothing:

1. Append the rows, with each review as a sealed export, to the file of the month, and sync it.
2. In one unit: read the rows again and compare them, store the narrow rows, delete the rows, write the audit row.

Rows that changed between the steps stay, and the next pass archives them. One process at a time archives, by lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import structlog
from sqlalchemy import Connection, bindparam, func, select

from countersign.contract import EffectState, TxnState, canonicalize
from policy_service import metrics
from policy_service.audit.log import append
from policy_service.pap.bundle import Bundle
from policy_service.queries.context import Context
from policy_service.queries.context_panel import PRECEDENT_DAYS
from policy_service.storage.advisory_locks import acquire_lease, lock_transaction
from policy_service.storage.archive_files import append_lines, encode_line, file_of, line_digest
from policy_service.storage.archive_tables import (
    ArchivedTransactionRow,
    Rows,
    SpentEffectRow,
    collect_rows,
    delete_rows,
    rows_as_json,
)
from policy_service.storage.core import insert_row, key_after, table
from policy_service.storage.database import Tx
from policy_service.storage.reservations import ReservationRow
from policy_service.storage.review_tables import OPEN, ProposalRow
from policy_service.storage.system_tables import AuditRow
from policy_service.storage.tables import (
    TRANSACTION_OVER,
    CommentRow,
    EffectRow,
    RedemptionRow,
    ReviewRow,
    TaskRow,
    TransactionRow,
    VoteRow,
)
from policy_service.workflow.review_export.export import export
from policy_service.workflow.transitions import SERVICE

log = structlog.get_logger(__name__)

_LEASE: Final = "archive"
_LEASE_FOR: Final = timedelta(minutes=5)  # longer than a page takes
_PAGE: Final = 20  # transactions whose lines share one sync
_MAX_KEPT: Final = 500  # transactions of a pass that have to stay; each costs a dozen short queries

_OVER: Final = frozenset({TxnState.SETTLED, TxnState.ENDED})
_REASONS: Final[Mapping[EffectState, str]] = {
    EffectState.REVIEW: "people are asked",
    EffectState.RELEASED: "a release is open",
    EffectState.REDEEMED: "an outcome is not reported",
    EffectState.UNKNOWN: "an outcome is unknown",
    EffectState.COMPENSATING: "a compensation is open",
}
_MAY_HAVE_FIRED: Final = frozenset(
    {EffectState.FIRED, EffectState.COMPENSATED, EffectState.COMPENSATION_FAILED}
)
_READS_METERS: Final = (EffectState.REVIEW, EffectState.RELEASED, EffectState.REDEEMED)
"""Effects in these states are evaluated again, with the meters as they were at their own reservation."""

_effects, _transactions = table(EffectRow).c, table(TransactionRow).c
_OLDEST_READER: Final = select(func.min(_effects.asked_at)).where(_effects.state.in_(_READS_METERS))

_log = table(AuditRow).c
_RESTORED: Final = (
    select(_log.idx).where(_log.kind == "database_restored", _log.at > bindparam("since")).limit(1)
)

_Key = tuple[datetime, str]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A transaction as it was read, and its line."""

    txn: str
    rows: dict[str, Any]
    line: bytes


class Archiver:
    """Archives what is due, oldest first. One of each process."""

    def __init__(self, ctx: Context, holder: str) -> None:
        if 0 < ctx.settings.archive_after_days < PRECEDENT_DAYS:
            log.warning(
                "archive_shortens_precedents", days=ctx.settings.archive_after_days, shown=PRECEDENT_DAYS
            )
        self._ctx, self._holder = ctx, holder
        self._after: _Key | None = None  # where the next pass begins

    async def run(self) -> int:
        """Archive transactions; returns how many. Does nothing while another process archives.

        A pass ends after it found many that have to stay, so that these never cost more than that. The next one goes on
        from there.
        """
        ctx, archived, kept = self._ctx, 0, 0
        if not ctx.settings.archive_after_days:
            return 0
        if ctx.candidate is not None and ctx.candidate.bundle is None:
            return 0  # which rows its meters count is not known
        # After a restore agents report what was redeemed in the lost part of the log, also of a run key that had ended.
        if await ctx.db.read(lambda conn: conn.execute(_RESTORED, {"since": _cutoff(ctx)}).first()):
            return 0
        while kept < _MAX_KEPT:
            if await ctx.db.write(lambda tx: acquire_lease(tx, _LEASE, self._holder, _LEASE_FOR)) is None:
                break
            page = await ctx.db.read(lambda conn: _page(conn, _cutoff(ctx), self._after))
            if not page:
                self._after = None
                break
            txns = list(dict.fromkeys(txn for _, txn in page))
            moved = await _archive_page(ctx, txns)
            archived, kept, self._after = archived + moved, kept + len(txns) - moved, page[-1]
        return archived


def _cutoff(ctx: Context) -> datetime:
    return ctx.clock() - timedelta(days=ctx.settings.archive_after_days)


def _page(conn: Connection, before: datetime, after: _Key | None) -> list[_Key]:
    """Transactions that are over and were submitted before then, oldest first. Their last change may be later."""
    key = (_transactions.submitted_at, _transactions.txn)
    query = select(*key).where(TRANSACTION_OVER, _transactions.submitted_at < before)
    if after is not None:
        query = query.where(key_after(key, after))
    return [(at, txn) for at, txn in conn.execute(query.order_by(*key).limit(_PAGE))]


async def _archive_page(ctx: Context, txns: Sequence[str]) -> int:
    now, found = ctx.clock(), []
    for txn in txns:
        try:
            if (prepared := await _prepare(ctx, txn)) is not None:
                found.append(prepared)
        except Exception:
            # The next pass tries it again; the others must not wait for it.
            metrics.ROW_FAILURES.inc()
            log.exception("archive_failed", txn=txn)
    if not found:
        return 0
    file, archived = file_of(now), 0
    lines = [one.line for one in found]
    await asyncio.to_thread(lambda: append_lines(ctx.settings.archive_dir, file, lines))
    for one in found:
        archived += await ctx.db.write(lambda tx, one=one: _move(tx, ctx, one, file))  # type: ignore[misc]
    return archived


async def _prepare(ctx: Context, txn: str) -> _Prepared | None:
    """The line of a transaction, or None if it has to stay."""
    rows = await ctx.db.read(lambda conn: _rows_to_move(conn, ctx, txn, ctx.clock()))
    if rows is None:
        return None
    exports = {review.review_id: await _sealed(ctx, review.review_id) for review in rows[ReviewRow]}
    plain = rows_as_json(rows)
    return _Prepared(txn, plain, encode_line(txn, plain, exports))


async def _sealed(ctx: Context, review_id: str) -> bytes:
    file = await export(ctx, review_id)
    if file is None:
        raise LookupError(f"the review {review_id!r} is gone")
    return canonicalize(file)


def _rows_to_move(conn: Connection, ctx: Context, txn: str, now: datetime) -> Rows | None:
    rows = collect_rows(conn, txn)
    readers = conn.execute(_OLDEST_READER).scalar() if rows[ReservationRow] else None
    since = now if readers is None else min(now, readers)
    reason = reason_to_keep(rows, _bundles(ctx), before=_cutoff(ctx), meters_from=since)
    return rows if reason is None else None


def _bundles(ctx: Context) -> list[Bundle]:
    """The bundles whose meters are read: the active one, and one in shadow, which may have longer windows."""
    shadow = None if ctx.candidate is None else ctx.candidate.bundle
    return [ctx.active.current, *([] if shadow is None else [shadow])]


def reason_to_keep(
    rows: Rows, bundles: Sequence[Bundle], *, before: datetime, meters_from: datetime
) -> str | None:
    """Why a transaction stays in the database; None if it may be archived.

    ``meters_from``: the earliest time at which an evaluation may still read the meters.
    """
    effects: list[EffectRow] = rows[EffectRow]
    states = [EffectState(effect.state) for effect in effects]
    reasons = [_REASONS[state] for state in states if state in _REASONS]
    if reasons:
        return reasons[0]
    if not rows[TransactionRow] or any(TxnState(row.state) not in _OVER for row in rows[TransactionRow]):
        return "it is not settled"
    if any(task.state == OPEN for task in rows[TaskRow]):
        return "a task is open"
    if any(row.state == OPEN for model in (ReviewRow, ProposalRow) for row in rows[model]):
        return "a review or a proposal is open"
    if _last_change(rows) > before:
        return "it changed too recently"
    if any(_is_counted(row, bundle, meters_from) for row in rows[ReservationRow] for bundle in bundles):
        return "a meter counts it"
    return None


def _last_change(rows: Rows) -> datetime:
    times: list[datetime | None] = [effect.changed_at for effect in rows[EffectRow]]
    times += [row.settled_at for model in (ReviewRow, TaskRow) for row in rows[model]]
    times += [vote.cast_at for vote in rows[VoteRow]]
    times += [at for comment in rows[CommentRow] for at in (comment.written_at, comment.answered_at)]
    times += [proposal.decided_at for proposal in rows[ProposalRow]]
    return max(at for at in times if at is not None)


def _is_counted(row: ReservationRow, bundle: Bundle, at: datetime) -> bool:
    if row.given_back_at is not None:
        return False
    meters = bundle.meters.get(row.tool, ())
    return any(meter.field == row.field and row.reserved_at >= meter.window.first(at) for meter in meters)


def _move(tx: Tx, ctx: Context, prepared: _Prepared, file: str) -> bool:
    tx = lock_transaction(tx, prepared.txn)
    rows = _rows_to_move(tx.conn, ctx, prepared.txn, tx.now)
    if rows is None or rows_as_json(rows) != prepared.rows:
        return False  # somebody changed or archived it meanwhile
    head: TransactionRow = max(rows[TransactionRow], key=lambda row: row.rev)
    digest = line_digest(prepared.line)
    delete_rows(tx.conn, prepared.txn, rows)
    insert_row(
        tx.conn,
        ArchivedTransactionRow(
            txn=head.txn,
            rev=head.rev,
            agent=head.agent,
            aud=head.aud,
            state=head.state,
            file=file,
            digest=digest,
            archived_at=tx.now,
        ),
    )
    spent = _spent(rows)
    for row in spent:
        insert_row(tx.conn, row)
    body = {"file": file, "digest": digest, "spent": [row.effect_id for row in spent]}
    body["reviews"] = [review.review_id for review in rows[ReviewRow]]
    about: dict[str, Any] = {"txn": head.txn, "rev": head.rev, "agent": head.agent}
    append(tx, "rows_archived", actor=SERVICE, body=body, **about)
    return True


def _spent(rows: Rows) -> list[SpentEffectRow]:
    """A narrow row for each effect that was redeemed, or that a person settled as fired after a restore."""
    redemptions: dict[str, RedemptionRow] = {row.effect_id: row for row in rows[RedemptionRow]}
    spent = {}
    for effect in sorted(rows[EffectRow], key=lambda row: row.rev):
        redemption = redemptions.get(effect.effect_id)
        fired = redemption is None and EffectState(effect.state) in _MAY_HAVE_FIRED
        if fired or (redemption is not None and redemption.rev == effect.rev):
            spent[effect.effect_id] = SpentEffectRow(
                effect_id=effect.effect_id,
                txn=effect.txn,
                kind=effect.kind,
                seq=effect.seq,
                state=effect.state,
                redeemer=None if redemption is None else redemption.redeemer,
                attempt_id=None if redemption is None else redemption.attempt_id,
            )
    return list(spent.values())
