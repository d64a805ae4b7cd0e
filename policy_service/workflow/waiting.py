"""Waiting for people without holding anything: no lock, no connection, one entry in a list."""

from __future__ import annotations

import asyncio

from countersign.contract import TxnState
from policy_service.workflow import records
from policy_service.workflow.context import Context
from policy_service.workflow.records import Snapshot


async def wait_while_in_review(ctx: Context, snapshot: Snapshot, seconds: float) -> Snapshot:
    """The transaction as soon as it no longer waits for people, or as it is when the time is up."""
    if snapshot.transaction.state != TxnState.REVIEW.value:
        return snapshot
    txn, loop = snapshot.transaction.txn, asyncio.get_running_loop()
    deadline = loop.time() + seconds
    seen = ctx.feed.index
    # Read after the index was noted: a change between the two is seen by one of them.
    current = await ctx.db.read(lambda conn: records.require(conn, txn))
    while current.transaction.state == TxnState.REVIEW.value and (left := deadline - loop.time()) > 0:
        events = await ctx.feed.wait_after(seen, left, txn=txn)
        if not events:
            break
        seen = events[-1].index
        current = await ctx.db.read(lambda conn: records.require(conn, txn))
    return current
