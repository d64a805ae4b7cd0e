"""A message leaves at least once, is written with its change or not at all, and never blocks the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from policy_service.storage import outbox
from policy_service.storage.core import table
from policy_service.storage.database import Database, Tx
from policy_service.storage.outbox import Drained, Message, Retry
from policy_service.storage.plumbing import OutboxRow

pytestmark = pytest.mark.anyio
OUTBOX = table(OutboxRow)
START = datetime(2026, 11, 21, tzinfo=UTC)
RETRY = Retry(max_attempts=3, backoff_s=10, max_backoff_s=15, claim_s=60)


class Clock:
    """A clock that moves when told."""

    now = START

    def __call__(self) -> datetime:
        return self.now

    def later(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class Receiver:
    """Takes messages, or fails for the kinds it was told to."""

    def __init__(self, *fails_for: str) -> None:
        self.fails_for = set(fails_for)
        self.got: list[tuple[str, int]] = []

    async def __call__(self, message: Message) -> None:
        self.got.append((message.kind, message.attempt))
        if message.kind in self.fails_for:
            raise ConnectionError(f"no route to {message.payload}")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(migrated_url: str, clock: Clock) -> Iterator[Database]:
    with Database.open(migrated_url, clock=clock) as db:
        yield db


async def put(db: Database, *kinds: str) -> None:
    for kind in kinds:
        await db.write(lambda tx, kind=kind: outbox.put(tx, kind, {"id": f"id-{kind}"}))


async def rows(db: Database) -> list[dict[str, Any]]:
    return await db.read(lambda conn: [dict(row) for row in conn.execute(select(OUTBOX)).mappings()])


async def test_a_message_leaves_once_with_what_it_was_given(store: Database) -> None:
    await put(store, "task_opened")
    seen: list[Message] = []

    async def receive(message: Message) -> None:
        seen.append(message)

    assert await outbox.drain(store, receive, retry=RETRY) == Drained(sent=1)
    assert [(one.kind, one.payload, one.attempt) for one in seen] == [
        ("task_opened", {"id": "id-task_opened"}, 1)
    ]
    assert await outbox.drain(store, receive, retry=RETRY) == Drained()
    assert len(seen) == 1


async def test_a_unit_that_raises_sends_nothing(store: Database) -> None:
    def unit(tx: Tx) -> None:
        outbox.put(tx, "x", {})
        raise LookupError

    with pytest.raises(LookupError):
        await store.write(unit)
    assert await rows(store) == []


async def test_messages_leave_oldest_first_and_not_more_than_asked(store: Database, clock: Clock) -> None:
    for kind in "abc":
        await put(store, kind)
        clock.later(1)
    receiver = Receiver()
    assert await outbox.drain(store, receiver, limit=2, retry=RETRY) == Drained(sent=2)
    assert receiver.got == [("a", 1), ("b", 1)]


async def test_a_message_that_fails_holds_up_none_of_the_others(store: Database, clock: Clock) -> None:
    for kind in "abc":
        await put(store, kind)
        clock.later(1)
    receiver = Receiver("b")
    assert await outbox.drain(store, receiver, retry=RETRY) == Drained(sent=2, failed=1)
    assert [kind for kind, _ in receiver.got] == ["a", "b", "c"]


async def test_it_is_tried_again_after_a_growing_pause_and_then_set_aside(
    store: Database, clock: Clock
) -> None:
    await put(store, "bad")
    receiver = Receiver("bad")
    assert await outbox.drain(store, receiver, retry=RETRY) == Drained(failed=1)
    clock.later(9.99)
    assert await outbox.drain(store, receiver, retry=RETRY) == Drained()
    clock.later(0.01)
    assert await outbox.drain(store, receiver, retry=RETRY) == Drained(failed=1)
    clock.later(14.99)
    assert await outbox.drain(store, receiver, retry=RETRY) == Drained()
    clock.later(0.01)
    assert await outbox.drain(store, receiver, retry=RETRY) == Drained(dead=1)
    clock.later(10_000)
    assert await outbox.drain(store, receiver, retry=RETRY) == Drained()
    assert receiver.got == [("bad", 1), ("bad", 2), ("bad", 3)]
    (row,) = await rows(store)
    assert (row["state"], row["attempts"]) == ("dead", 3)


async def test_the_reason_kept_names_the_error_and_quotes_nothing(store: Database) -> None:
    await put(store, "bad")
    await outbox.drain(store, Receiver("bad"), retry=RETRY)
    (row,) = await rows(store)
    assert row["last_error"] == "ConnectionError"


async def test_a_process_that_dies_while_delivering_leaves_the_message_due_again(
    store: Database, clock: Clock
) -> None:
    await put(store, "a")
    # it is taken, and nothing more is heard of it
    assert len(await store.write(lambda tx: outbox.claim(tx, 10, RETRY))) == 1
    receiver = Receiver()
    clock.later(59.9)
    assert await outbox.drain(store, receiver, retry=RETRY) == Drained()
    clock.later(0.1)
    assert await outbox.drain(store, receiver, retry=RETRY) == Drained(sent=1)
    assert receiver.got == [("a", 2)]


async def test_two_who_drain_at_once_do_not_take_the_same_message(store: Database) -> None:
    await put(store, *(f"m{n}" for n in range(20)))
    receiver = Receiver()
    await asyncio.gather(*(outbox.drain(store, receiver, limit=10, retry=RETRY) for _ in range(4)))
    assert len(receiver.got) == len(set(receiver.got)) == 20


async def test_what_was_sent_is_forgotten_after_a_while_and_what_waits_is_not(
    store: Database, clock: Clock
) -> None:
    await put(store, "a", "bad")
    await outbox.drain(store, Receiver("bad"), retry=RETRY)
    assert await store.write(lambda tx: outbox.forget_sent(tx, START)) == 0
    clock.later(1)
    assert await store.write(lambda tx: outbox.forget_sent(tx, tx.now)) == 1
    assert [row["kind"] for row in await rows(store)] == ["bad"]


@pytest.mark.parametrize(("attempt", "seconds"), [(1, 10), (2, 15), (3, 15), (10_000, 15)])
def test_the_pause_doubles_up_to_its_limit(attempt: int, seconds: float) -> None:
    assert RETRY.pause(attempt) == timedelta(seconds=seconds)


async def test_what_a_lane_gave_up_is_forgotten_at_last_and_nothing_else(
    store: Database, clock: Clock
) -> None:
    def put_in_lanes(tx: Tx) -> None:
        for name, lane in (("old", "webhook a"), ("gone", "webhook b")):
            outbox.put_once(tx, name, "x", {}, lane=lane, give_up_at=tx.now + timedelta(hours=1))

    await store.write(put_in_lanes)
    await put(store, "own")
    clock.later(7_200)
    assert await store.write(lambda tx: outbox.give_up(tx, "webhook a")) == 1
    for days, forgotten in ((29, 0), (32, 1), (40, 0)):
        clock.now = START + timedelta(days=days)
        before = clock.now - timedelta(days=30)
        assert await store.write(lambda tx, before=before: outbox.forget_given_up(tx, before)) == forgotten
    left = {row["outbox_id"]: row["state"] for row in await rows(store)}
    assert left.pop("gone") == "waiting", "its receiver is gone, and may be told after all"
    assert list(left.values()) == ["waiting"]


async def test_an_attempt_that_took_longer_than_its_claim_says_nothing_of_the_one_after_it(
    store: Database, clock: Clock
) -> None:
    """In a lane that keeps its order; the one that was begun last says what came of the message."""

    def owe(tx: Tx) -> None:
        outbox.put_once(tx, "one", "told", {}, lane="a", give_up_at=tx.now + timedelta(days=1))

    await store.write(owe)
    first = await store.write(lambda tx: outbox.claim_first(tx, RETRY, "a"))
    assert first is not None
    assert first.created_at == START
    clock.later(61)
    second = await store.write(lambda tx: outbox.claim_first(tx, RETRY, "a"))
    assert second is not None
    assert not await store.write(lambda tx: outbox.mark_sent(tx, "one", first.attempt))
    assert not await store.write(lambda tx: outbox.set_aside(tx, "one", "no", first.attempt))
    assert not await store.write(lambda tx: outbox.put_back(tx, "one", "no", attempt=first.attempt))
    assert await store.write(lambda tx: outbox.claim_first(tx, RETRY, "a")) is None, "it is still claimed"
    assert await store.write(lambda tx: outbox.mark_sent(tx, "one", second.attempt))


async def test_of_many_who_take_the_first_of_a_lane_at_once_one_has_it(store: Database) -> None:
    """Each is slow to commit, so that all of them look before the first has said that it is taken."""

    def owe(tx: Tx) -> None:
        for name in ("one", "two"):
            outbox.put_once(tx, name, "told", {}, lane="a", give_up_at=tx.now + timedelta(days=1))

    def take(tx: Tx) -> Message | None:
        message = outbox.claim_first(tx, RETRY, "a")
        time.sleep(0.1)
        return message

    await store.write(owe)
    taken = await asyncio.gather(*(store.write(take) for _ in range(4)))
    assert [(one.outbox_id, one.attempt) for one in taken if one is not None] == [("one", 1)]


async def test_what_is_revived_can_leave_out_a_kind(store: Database) -> None:
    def owe(tx: Tx) -> None:
        for name, kind in (("one", "told"), ("two", "shown")):
            outbox.put_once(tx, name, kind, {}, lane="a", give_up_at=tx.now + timedelta(days=1))
            outbox.set_aside(tx, name, "no")

    await store.write(owe)
    later = START + timedelta(days=2)
    assert await store.write(lambda tx: outbox.try_again(tx, "a", later, but="shown", attempts=1)) == 1
    found = await store.write(lambda tx: outbox.claim_first(tx, RETRY, "a"))
    assert found is not None
    assert (found.outbox_id, found.attempt) == ("one", 2)
