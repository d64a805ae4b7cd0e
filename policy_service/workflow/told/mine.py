"""The transactions of an agent, by page: for one that lost its process, its journal or the names of what it asked for.

Rules: a party sees what it submitted and what it alone may redeem, each at the revision in force, the newest first; a
page is found by key, in each of the two ways a transaction is a party's, and costs what it holds.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Column, Connection, Select, select

from countersign.contract import TxnState
from countersign.contract.wire import TransactionLine, TransactionPage
from policy_service.identity.agents import Caller
from policy_service.storage.core import precedes, table
from policy_service.storage.tables import TransactionRow
from policy_service.storage.types import time_text
from policy_service.workflow.context import Context
from policy_service.workflow.cursors import read_cursor
from policy_service.workflow.records import rows

_TRANSACTIONS = table(TransactionRow)


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
    """The newest of each way, and of those the newest: one OR over both would read all the party ever had."""
    found = {
        row.txn: row
        for mine in (_TRANSACTIONS.c.agent, _TRANSACTIONS.c.aud)
        for row in rows(conn, TransactionRow, _of(mine, party, state, before, limit))
    }
    return sorted(found.values(), key=lambda row: (row.submitted_at, row.txn), reverse=True)[:limit]


def _of(
    mine: Column[str],
    party: str,
    state: TxnState | None,
    before: tuple[datetime, str] | None,
    limit: int,
) -> Select[Any]:
    row, newer = _TRANSACTIONS.c, _TRANSACTIONS.alias("newer").c
    superseded = select(newer.txn).where(newer.txn == row.txn, newer.rev > row.rev)
    query = select(_TRANSACTIONS).where(mine == party, ~superseded.exists())
    if state is not None:
        query = query.where(row.state == state.value)
    if before is not None:
        query = query.where(precedes((row.submitted_at, row.txn), before))
    return query.order_by(row.submitted_at.desc(), row.txn.desc()).limit(limit)


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
