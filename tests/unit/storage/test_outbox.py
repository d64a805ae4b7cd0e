"""The outbox: a message is written with its change, sent at least once, and never blocks the others."""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from policy_service.storage import outbox
from policy_service.storage.core import table
from policy_service.storage.database import Database, Tx
from policy_service.storage.outbox import DrainResult, Message, RetryPolicy
from policy_service.storage.system_tables import OutboxRow
from policy_service.storage.unit_of_work import enqueue
from tests.unit.storage.databases import START, Clock

OUTBOX = table(OutboxRow)
RETRY = RetryPolicy(max_attempts=3, backoff_s=10, max_backoff_s=15, claim_s=60)


class Receiver:
    """Takes messages, or fails for given kinds."""

    def __init__(self, *fails_for: str) -> None:
        self.fails_for = set(fails_for)
        self.got: list[tuple[str, int]] = []
        self.payloads: list[Any] = []

    async def __call__(self, message: Message) -> None:
        self.got.append((message.kind, message.attempt))
        self.payloads.append(message.payload)
        if message.kind in self.fails_for:
            raise ConnectionError(f"no route to {message.payload}")

    async def drains(self, db: Database, limit: int = 50) -> DrainResult:
        return await outbox.drain(db, self, limit=limit, retry=RETRY)


async def put(db: Database, *kinds: str, clock: Clock | None = None) -> None:
    """One of each kind; a second apart, where a clock is given."""
    for kind in kinds:
        await db.write(lambda tx, kind=kind: enqueue(tx, kind, {"id": f"id-{kind}"}))
        if clock is not None:
            clock.later(1)


async def rows(db: Database) -> list[dict[str, Any]]:
    return await db.read(lambda conn: [dict(row) for row in conn.execute(select(OUTBOX)).mappings()])


def add_messages(*names: str, kind: str = "notice", lane: str = "a", hours: int = 24) -> Callable[[Tx], None]:
    """A unit that puts these into a lane that keeps its order."""

    def unit(tx: Tx) -> None:
        for name in names:
            outbox.enqueue_once(tx, name, kind, {}, lane=lane, give_up_at=tx.now + timedelta(hours=hours))

    return unit


def take(tx: Tx) -> Message | None:
    return outbox.claim_first(tx, RETRY, "a")


async def test_a_message_is_sent_once_with_its_payload(timed: Database) -> None:
    await put(timed, "task_opened")
    receiver = Receiver()
    assert await receiver.drains(timed) == DrainResult(sent=1)
    assert await receiver.drains(timed) == DrainResult()
    assert (receiver.got, receiver.payloads) == ([("task_opened", 1)], [{"id": "id-task_opened"}])


async def test_a_unit_that_raises_sends_nothing(timed: Database) -> None:
    def unit(tx: Tx) -> None:
        enqueue(tx, "x", {})
        raise LookupError

    with pytest.raises(LookupError):
        await timed.write(unit)
    assert await rows(timed) == []


async def test_messages_are_sent_oldest_first_past_a_failed_one(timed: Database, clock: Clock) -> None:
    await put(timed, *"abcd", clock=clock)
    receiver = Receiver("c")
    assert await receiver.drains(timed, limit=2) == DrainResult(sent=2)
    assert await receiver.drains(timed) == DrainResult(sent=1, failed=1)
    assert receiver.got == [("a", 1), ("b", 1), ("c", 1), ("d", 1)]


async def test_retries_back_off_and_end_as_dead(timed: Database, clock: Clock) -> None:
    await put(timed, "bad")
    receiver = Receiver("bad")
    assert await receiver.drains(timed) == DrainResult(failed=1)
    assert [row["last_error"] for row in await rows(timed)] == ["ConnectionError"], "it quotes nothing"
    for pause, then in ((10, DrainResult(failed=1)), (15, DrainResult(dead=1))):
        clock.later(pause - 0.01)
        assert await receiver.drains(timed) == DrainResult()
        clock.later(0.01)
        assert await receiver.drains(timed) == then
    clock.later(10_000)
    assert await receiver.drains(timed) == DrainResult()
    assert receiver.got == [("bad", 1), ("bad", 2), ("bad", 3)]
    assert [(row["state"], row["attempts"]) for row in await rows(timed)] == [("dead", 3)]


@pytest.mark.parametrize(("attempt", "seconds"), [(1, 10), (2, 15), (3, 15), (10_000, 15)])
def test_the_pause_doubles_up_to_its_limit(attempt: int, seconds: float) -> None:
    assert RETRY.pause(attempt) == timedelta(seconds=seconds)


async def test_a_claim_of_a_dead_process_becomes_due_again(timed: Database, clock: Clock) -> None:
    await put(timed, "a")
    # it is taken, and nothing more is heard of it
    assert len(await timed.write(lambda tx: outbox.claim(tx, 10, RETRY))) == 1
    receiver = Receiver()
    clock.later(59.9)
    assert await receiver.drains(timed) == DrainResult()
    clock.later(0.1)
    assert (await receiver.drains(timed), receiver.got) == (DrainResult(sent=1), [("a", 2)])


async def test_two_concurrent_drains_claim_different_messages(timed: Database) -> None:
    await put(timed, *(f"m{n}" for n in range(20)))
    receiver = Receiver()
    await asyncio.gather(*(receiver.drains(timed, limit=10) for _ in range(4)))
    assert len(receiver.got) == len(set(receiver.got)) == 20


async def test_only_old_sent_messages_are_deleted(timed: Database, clock: Clock) -> None:
    await put(timed, "a", "bad")
    await Receiver("bad").drains(timed)
    assert await timed.write(lambda tx: outbox.delete_sent(tx, START)) == 0
    clock.later(1)
    assert await timed.write(lambda tx: outbox.delete_sent(tx, tx.now)) == 1
    assert [row["kind"] for row in await rows(timed)] == ["bad"]


async def test_only_old_dead_messages_of_lanes_are_deleted(timed: Database, clock: Clock) -> None:
    await timed.write(add_messages("old", lane="webhook a", hours=1))
    await timed.write(add_messages("gone", lane="webhook b", hours=1))
    await put(timed, "own")
    clock.later(7_200)
    assert await timed.write(lambda tx: outbox.expire_messages(tx, "webhook a")) == 1
    for days, forgotten in ((29, 0), (32, 1), (40, 0)):
        before = START + timedelta(days=days - 30)
        assert await timed.write(lambda tx, before=before: outbox.delete_dead(tx, before)) == forgotten
    left = {row["outbox_id"]: row["state"] for row in await rows(timed)}
    assert left.pop("gone") == "waiting", "its receiver is disabled, and may be enabled again"
    assert list(left.values()) == ["waiting"]


async def test_an_attempt_that_outlived_its_claim_changes_nothing(timed: Database, clock: Clock) -> None:
    """In a lane that keeps its order; the one that was begun last says what came of the message."""
    await timed.write(add_messages("one"))
    first = await timed.write(take)
    assert first is not None and first.created_at == START
    clock.later(61)
    second = await timed.write(take)
    assert second is not None
    assert not await timed.write(lambda tx: outbox.mark_sent(tx, "one", first.attempt))
    assert not await timed.write(lambda tx: outbox.mark_dead(tx, "one", "no", first.attempt))
    assert not await timed.write(lambda tx: outbox.requeue(tx, "one", "no", attempt=first.attempt))
    assert await timed.write(take) is None, "it is still claimed"
    assert await timed.write(lambda tx: outbox.mark_sent(tx, "one", second.attempt))


async def test_of_many_concurrent_claims_of_a_lane_one_wins(timed: Database) -> None:
    """Each is slow to commit, so that all of them look before the first has said that it is taken."""

    def slowly(tx: Tx) -> Message | None:
        message = take(tx)
        time.sleep(0.1)
        return message

    await timed.write(add_messages("one", "two"))
    taken = await asyncio.gather(*(timed.write(slowly) for _ in range(4)))
    assert [(one.outbox_id, one.attempt) for one in taken if one is not None] == [("one", 1)]


async def test_a_retry_of_dead_messages_can_exclude_a_kind(timed: Database) -> None:
    for name, kind in (("one", "notice"), ("two", "shown")):
        await timed.write(add_messages(name, kind=kind))
        await timed.write(lambda tx, name=name: outbox.mark_dead(tx, name, "no"))
    later = START + timedelta(days=2)
    assert await timed.write(lambda tx: outbox.retry_dead(tx, "a", later, but="shown", attempts=1)) == 1
    found = await timed.write(take)
    assert found is not None and (found.outbox_id, found.attempt) == ("one", 2)
