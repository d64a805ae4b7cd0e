"""Waiting for people without holding anything: no lock, no connection, one entry in a list."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from countersign.contract import TxnState
from policy_service import metrics
from policy_service.workflow import records
from policy_service.workflow.context import Context
from policy_service.workflow.records import Snapshot


async def wait_while_in_review(ctx: Context, snapshot: Snapshot, seconds: float) -> Snapshot:
    """The transaction as soon as it no longer waits for people, or as it is when the time is up."""
    return await _wait(ctx, snapshot, seconds, _is_asked)


async def wait_for_people(ctx: Context, snapshot: Snapshot, seconds: float) -> Snapshot:
    """The same, also while people are to settle what became of it: until they have settled something more."""
    if snapshot.transaction.state == TxnState.UNSETTLED.value:
        before = _outcomes(snapshot)
        return await _wait(ctx, snapshot, seconds, lambda now: _outcomes(now) == before)
    return await wait_while_in_review(ctx, snapshot, seconds)


def _is_asked(snapshot: Snapshot) -> bool:
    return snapshot.transaction.state == TxnState.REVIEW.value


def _outcomes(snapshot: Snapshot) -> list[tuple[str, str, int]]:
    """What people change by settling."""
    effects = [*snapshot.effects, *snapshot.compensations]
    return [(effect.effect_id, effect.state, len(effect.settlements)) for effect in effects]


async def _wait(
    ctx: Context, snapshot: Snapshot, seconds: float, goes_on: Callable[[Snapshot], bool]
) -> Snapshot:
    if not goes_on(snapshot):
        return snapshot
    txn, loop = snapshot.transaction.txn, asyncio.get_running_loop()
    deadline = loop.time() + seconds
    seen = ctx.feed.index
    # Read after the index was noted: a change between the two is seen by one of them.
    current = await ctx.db.read(lambda conn: records.require(conn, txn))
    with metrics.LONG_POLLS.track_inprogress():
        while goes_on(current) and (left := deadline - loop.time()) > 0:
            events = await ctx.feed.wait_after(seen, left, txn=txn)
            if not events:
                break
            seen = events[-1].index
            current = await ctx.db.read(lambda conn: records.require(conn, txn))
    return current
