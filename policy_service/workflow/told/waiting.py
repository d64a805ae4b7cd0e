"""Waiting for people without holding anything: no lock, no connection, no rows, one entry in a list.

Ten thousand agents may wait at once, so whoever waits keeps a name and reads the rows when there is something new.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from countersign.contract import TxnState
from policy_service import metrics
from policy_service.audit.feed import of_transaction
from policy_service.identity.agents import Caller
from policy_service.workflow import records
from policy_service.workflow.context import Context
from policy_service.workflow.parties import require_visible
from policy_service.workflow.records import Snapshot

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
    rows = [row for effect in snapshot.effects for row in snapshot.proposed_for(effect)]
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
            current = await ctx.db.read(lambda conn: records.require(conn, txn))
            goes_on = goes_on or wish(current)
            left = deadline - loop.time()
            if left <= 0 or not goes_on(current):
                return current
            del current  # kilobytes, for minutes, for each who waits
            if not await ctx.feed.wait_after(seen, left, topic=of_transaction(txn)):
                return await ctx.db.read(lambda conn: records.require(conn, txn))
