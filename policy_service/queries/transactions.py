"""Transactions for their agents: one of them, a list of them, and waiting for a change of one.

A party sees what it submitted and what it alone may redeem, each at the revision in force, the newest first; a page is
found by key, in each of the two ways a transaction is a party's, and costs what it holds. Waiting holds no lock, no
connection and no rows, only an entry in a list, because ten thousand agents may wait at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Column, Connection, Select, select

from countersign.contract import TxnState
from countersign.contract.wire import EffectView, TransactionLine, TransactionPage, TransactionView
from policy_service import metrics
from policy_service.audit.feed import transaction_topic
from policy_service.errors import NotFoundError
from policy_service.identity.agents import Caller
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.cursors import parse_cursor
from policy_service.queries.repository import Snapshot, rows
from policy_service.queries.transaction_views import effect_view, transaction_view
from policy_service.storage.core import key_before, table
from policy_service.storage.tables import AgentRow, EffectRow, TransactionRow
from policy_service.storage.types import time_text


class TransactionPresenter:
    """Read models for agents."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    async def visible(self, caller: Caller, txn: str) -> Snapshot:
        """The transaction in force, if this caller may see it.

        Raises:
            NotFoundError: no such transaction, or a stranger asks.
        """
        snapshot = await self._ctx.db.read(lambda conn: repository.require_transaction(conn, txn))
        require_visible(caller, snapshot.transaction)
        return snapshot

    async def transaction(
        self,
        snapshot: Snapshot,
        *,
        releases: Sequence[str] = (),
        receipt: str | None = None,
    ) -> TransactionView:
        """A transaction, with tokens only where they were asked for."""
        agent = await self._agent(snapshot)
        return transaction_view(
            self._ctx,
            self._ctx.active.current,
            agent,
            snapshot,
            self._ctx.clock(),
            releases=releases,
            receipt=receipt,
        )

    async def effect(self, snapshot: Snapshot, effect: EffectRow) -> EffectView:
        """One effect or compensation."""
        agent = await self._agent(snapshot)
        return effect_view(self._ctx, self._ctx.active.current, agent, snapshot, effect, self._ctx.clock())

    async def _agent(self, snapshot: Snapshot) -> AgentRow:
        """Who must not vote on it, asked for only where there are votes to count."""
        name, agent = snapshot.transaction.agent, None
        if snapshot.reviews:
            agent = await self._ctx.db.read(lambda conn: repository.agent_of(conn, name))
        return agent or AgentRow(name=name, enrolled_at=snapshot.transaction.submitted_at)


def require_visible(caller: Caller, transaction: TransactionRow) -> None:
    """Refuse to tell strangers whether a transaction exists.

    Raises:
        NotFoundError: neither the agent's own nor this party's to redeem.
    """
    if caller.agent not in {transaction.agent, transaction.aud}:
        raise NotFoundError(f"there is no transaction {transaction.txn!r}")


_TRANSACTIONS = table(TransactionRow)


async def transaction_page(
    ctx: Context, caller: Caller, *, state: TxnState | None, cursor: str | None, limit: int
) -> TransactionPage:
    """A page of them.

    Raises:
        InvalidRequestError: the cursor is not one of ours.
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


_GoesOn = Callable[[Snapshot], bool]


async def wait_while_in_review(ctx: Context, txn: str, seconds: float) -> Snapshot:
    """The transaction as soon as it no longer waits for people, or they want something of its agent: an answer, or
    other arguments, proposed or put in force. Or as it is when the time is up."""
    return await _wait(ctx, txn, seconds, _until_decided_or_asked)


async def wait_for_people(
    ctx: Context, caller: Caller, txn: str, seconds: float, asked_after: str | None = None
) -> Snapshot:
    """The same, also while people are to settle what became of it: until they have settled something more.

    ``asked_after``: the last question the caller has seen, empty for none: a newer one that waits ends this at once.
    Otherwise only what is asked from now on does.

    Raises:
        NotFoundError: no such transaction, or a stranger asks.
    """

    def seen(first: Snapshot) -> _GoesOn:
        require_visible(caller, first.transaction)
        return _until_settled_further(first, asked_after)

    return await _wait(ctx, txn, seconds, seen)


def _until_decided_or_asked(first: Snapshot, asked_after: str | None = None) -> _GoesOn:
    before, proposed = first.open_questions, _proposed(first)

    def is_news(question: str) -> bool:
        return question not in before if asked_after is None else question > asked_after

    return lambda now: (
        now.transaction.state == TxnState.REVIEW.value
        and _proposed(now) == proposed
        and not any(map(is_news, now.open_questions))
    )


def _proposed(snapshot: Snapshot) -> tuple[int, list[str]]:
    """What its agent may answer: which revision people are asked about, and what they would have instead."""
    rows = [row for effect in snapshot.effects for row in snapshot.open_proposals_of(effect)]
    return snapshot.transaction.rev, [row.proposal_id for row in rows]


def _until_settled_further(first: Snapshot, asked_after: str | None) -> _GoesOn:
    if first.transaction.state != TxnState.UNSETTLED.value:
        return _until_decided_or_asked(first, asked_after)
    before = _outcomes(first)
    return lambda now: _outcomes(now) == before


def _outcomes(snapshot: Snapshot) -> list[tuple[str, str, int]]:
    """What people change by settling."""
    effects = [*snapshot.effects, *snapshot.compensations]
    return [(effect.effect_id, effect.state, len(effect.settlements)) for effect in effects]


async def _wait(ctx: Context, txn: str, seconds: float, wish: Callable[[Snapshot], _GoesOn]) -> Snapshot:
    """``wish`` is given the transaction as it is at first, and tells how long to go on."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    goes_on: _GoesOn | None = None
    with metrics.LONG_POLLS.track_inprogress():
        while True:
            seen = ctx.feed.index
            # Read after the index was noted: a change between the two is seen by one of them.
            current = await ctx.db.read(lambda conn: repository.require_transaction(conn, txn))
            goes_on = goes_on or wish(current)
            left = deadline - loop.time()
            if left <= 0 or not goes_on(current):
                return current
            del current  # kilobytes, for minutes, for each who waits
            if not await ctx.feed.wait_after(seen, left, topic=transaction_topic(txn)):
                return await ctx.db.read(lambda conn: repository.require_transaction(conn, txn))
