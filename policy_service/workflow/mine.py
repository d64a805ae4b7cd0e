"""The transactions of an agent, by page: for one that lost its process, its journal or the names of what it asked for.

Rules: a party sees what it submitted and what it alone may redeem, each at the revision in force, the newest first; a
page is found by key.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, and_, or_, select
from sqlmodel import col

from countersign.contract import TxnState
from countersign.contract.wire import TransactionLine, TransactionPage
from policy_service.identity.callers import Caller
from policy_service.storage.core import table
from policy_service.storage.tables import TransactionRow
from policy_service.storage.types import time_text
from policy_service.workflow.context import Context
from policy_service.workflow.cursors import read_cursor
from policy_service.workflow.records import rows


async def page(
    ctx: Context, caller: Caller, *, state: TxnState | None, cursor: str | None, limit: int
) -> TransactionPage:
    """A page of them.

    Raises:
        InvalidRequestError: the cursor is not one of ours.
    """
    before = read_cursor(cursor)
    found = await ctx.db.read(lambda conn: _find(conn, caller.agent, state, before, limit + 1))
    shown = found[:limit]
    return TransactionPage(
        transactions=tuple(_line(row) for row in shown),
        next=f"{time_text(shown[-1].submitted_at)}~{shown[-1].txn}" if len(found) > limit else None,
    )


def _find(
    conn: Connection, party: str, state: TxnState | None, before: tuple[datetime, str] | None, limit: int
) -> list[TransactionRow]:
    newer = table(TransactionRow).alias("newer").c
    superseded = select(newer.txn).where(
        newer.txn == col(TransactionRow.txn), newer.rev > col(TransactionRow.rev)
    )
    query = (
        select(*table(TransactionRow).columns)
        .where(
            or_(col(TransactionRow.agent) == party, col(TransactionRow.aud) == party), ~superseded.exists()
        )
        .order_by(col(TransactionRow.submitted_at).desc(), col(TransactionRow.txn).desc())
        .limit(limit)
    )
    if state is not None:
        query = query.where(col(TransactionRow.state) == state.value)
    if before is not None:
        at, txn = before
        older = and_(col(TransactionRow.submitted_at) == at, col(TransactionRow.txn) < txn)
        query = query.where(or_(col(TransactionRow.submitted_at) < at, older))
    return rows(conn, TransactionRow, query)


def _line(row: TransactionRow) -> TransactionLine:
    return TransactionLine(
        txn=row.txn,
        rev=row.rev,
        state=TxnState(row.state),
        agent=row.agent,
        run_key=row.run_key,
        aud=row.aud,
        submitted_at=row.submitted_at,
        valid_until=row.valid_until,
    )
