"""Transactions as agents read them: one, a page of them, and waiting for a change of one.

An agent sees the transactions it submitted and those it may redeem, at the newest revision, newest first.
Each of the two sets has its own index. A waiting request holds no lock, connection or rows, because thousands
of agents may wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

from sqlalchemy import Column, Connection, Select, select

from countersign.contract import TxnState
from countersign.contract.wire import TransactionLine, TransactionPage
from policy_service import metrics
from policy_service.audit.feed import transaction_topic
from policy_service.errors import NotFoundError
from policy_service.identity.agents import Caller
from policy_service.queries import repository
from policy_service.queries.archived import refuse_missing_to
from policy_service.queries.context import Context
from policy_service.queries.cursors import parse_cursor
from policy_service.queries.repository import Snapshot, rows
from policy_service.queries.transaction_views import require_visible
from policy_service.storage.core import key_before, table
from policy_service.storage.tables import TransactionRow
from policy_service.storage.types import time_text

_TRANSACTIONS = table(TransactionRow)


async def transaction_page(
    ctx: Context, caller: Caller, *, state: TxnState | None, cursor: str | None, limit: int
) -> TransactionPage:
    """A page of transactions.

    Raises:
        InvalidRequestError: the cursor is invalid.
    """
    before = parse_cursor(cursor)
    found = await ctx.db.read(lambda conn: _find(conn, caller.agent, state, before, limit + 1))
    shown = found[:limit]
    return TransactionPage(
        transactions=tuple(_line(row) for row in shown),
        next=f"{time_text(shown[-1].submitted_at)}~{shown[-1].txn}" if len(found) > limit else None,
    )


def _find(
    conn: Connection, party: str, state: TxnState | None, before: tuple[datetime, str] | None, limit: int
) -> list[TransactionRow]:
    """The newest of both sets. One query with OR could use neither index."""
    found = {
        row.txn: row
        for mine in (_TRANSACTIONS.c.agent, _TRANSACTIONS.c.aud)
        for row in rows(conn, TransactionRow, _query(mine, party, state, before, limit))
    }
    return sorted(found.values(), key=lambda row: (row.submitted_at, row.txn), reverse=True)[:limit]


def _query(
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
        query = query.where(key_before((row.submitted_at, row.txn), before))
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


_KeepWaiting = Callable[[Snapshot], bool]


async def wait_while_in_review(ctx: Context, txn: str, seconds: float) -> Snapshot:
    """Wait until the transaction leaves review or needs its agent: a new question, a proposal or new
    arguments.

    Returns it as it is when the time is over.
    """
    return await _wait(ctx, txn, seconds, _until_agent_is_needed)


async def wait_for_people(
    ctx: Context, caller: Caller, txn: str, seconds: float, asked_after: str | None = None
) -> Snapshot:
    """Like :func:`wait_while_in_review`; for an unsettled transaction, wait until people settle more of it.

    ``asked_after`` is the id of the last question the caller has seen, "" for none. A newer open question
    ends the wait at once. If it is None, only questions asked from now on do.

    Raises:
        NotFoundError: there is no such transaction, the caller may not see it, or it is archived.
        ConflictError: already_redeemed: effects of it were redeemed, and it is archived.
    """

    def seen(first: Snapshot) -> _KeepWaiting:
        require_visible(caller, first.transaction)
        return _until_more_is_settled(first, asked_after)

    try:
        return await _wait(ctx, txn, seconds, seen)
    except NotFoundError:
        return await ctx.db.read(lambda conn: refuse_missing_to(conn, caller.agent, txn))


def _until_agent_is_needed(first: Snapshot, asked_after: str | None = None) -> _KeepWaiting:
    before, proposed = first.open_questions, _proposed(first)

    def is_news(question: str) -> bool:
        return question not in before if asked_after is None else question > asked_after

    return lambda now: (
        now.transaction.state == TxnState.REVIEW.value
        and _proposed(now) == proposed
        and not any(map(is_news, now.open_questions))
    )


def _proposed(snapshot: Snapshot) -> tuple[int, list[str]]:
    """The revision and the open proposals, which the agent reacts to."""
    rows = [row for effect in snapshot.effects for row in snapshot.open_proposals_of(effect)]
    return snapshot.transaction.rev, [row.proposal_id for row in rows]


def _until_more_is_settled(first: Snapshot, asked_after: str | None) -> _KeepWaiting:
    if first.transaction.state != TxnState.UNSETTLED.value:
        return _until_agent_is_needed(first, asked_after)
    before = _outcomes(first)
    return lambda now: _outcomes(now) == before


def _outcomes(snapshot: Snapshot) -> list[tuple[str, str, int]]:
    """What settling changes."""
    effects = [*snapshot.effects, *snapshot.compensations]
    return [(effect.effect_id, effect.state, len(effect.settlements)) for effect in effects]


async def _wait(ctx: Context, txn: str, seconds: float, wish: Callable[[Snapshot], _KeepWaiting]) -> Snapshot:
    """``wish`` receives the first snapshot and returns the condition under which waiting continues."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    keep_waiting: _KeepWaiting | None = None
    with metrics.LONG_POLLS.track_inprogress():
        while True:
            seen = ctx.feed.index
            # The index is taken before the read, so no change between the two is missed.
            current = await ctx.db.read(lambda conn: repository.require_transaction(conn, txn))
            keep_waiting = keep_waiting or wish(current)
            left = deadline - loop.time()
            if left <= 0 or not keep_waiting(current):
                return current
            del current  # free the snapshot: thousands of requests may wait for minutes
            if not await ctx.feed.wait_after(seen, left, topic=transaction_topic(txn)):
                return await ctx.db.read(lambda conn: repository.require_transaction(conn, txn))
