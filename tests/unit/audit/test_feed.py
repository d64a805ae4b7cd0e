"""The feed: waiting readers get events in order, miss none, and cost nothing while they wait."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from policy_service.audit.feed import PEOPLE, Event, Feed, transaction_topic
from policy_service.audit.log import Sequencer, append
from policy_service.storage.database import Database
from tests.fakes.patience import until
from tests.unit.storage.databases import BOTH

MINE = transaction_topic("mine")


async def happen(db: Database, *kinds: str, txn: str | None = None) -> None:
    """Things that happen, each in its own unit, with their indexes."""
    for kind in kinds:
        body = {"review_id": f"r-{kind}"}
        await db.write(lambda tx, kind=kind, body=body: append(tx, kind, actor="s", txn=txn, body=body))
    if db.dialect == "postgresql":
        await Sequencer(db, holder="a").number()


@pytest.fixture
def engine() -> str:
    """A feed only reads by index; where another process writes, a test asks for both."""
    return "sqlite"


@pytest.fixture
async def feed(store: Database) -> AsyncIterator[Feed]:
    feed = Feed(store)
    await feed.start()
    yield feed
    feed.close()


def kinds(events: object) -> list[str]:
    assert isinstance(events, list)
    return [event.kind for event in events]


async def happen_and_look(feed: Feed, *kinds: str, txn: str | None = None) -> None:
    """The same, and the feed looks."""
    await happen(feed._db, *kinds, txn=txn)
    await feed.refresh()


async def test_events_come_in_order_with_ids_and_nothing_else(store: Database, feed: Feed) -> None:
    await store.write(lambda tx: append(tx, "opened", actor="s", txn="t" * 64, body={"review_id": "r-1"}))
    await happen_and_look(feed, *"abc")
    await happen_and_look(feed, "d")
    events = await feed.events_after(0, 10)
    assert events[0] == Event(1, "opened", "t" * 64, None, None, "r-1")
    assert [(event.index, event.kind) for event in events] == list(enumerate(["opened", *"abcd"], 1))
    assert kinds(await feed.events_after(2, 2)) == ["b", "c"]
    assert await feed.events_after(5, 10) == await feed.events_after(99, 10) == []


@pytest.mark.parametrize("keep", [1, 2, 3, 100])
async def test_events_no_longer_in_memory_come_from_the_database(store: Database, keep: int) -> None:
    feed = Feed(store, keep=keep)
    await happen(store, *"ab")
    await feed.start()
    assert kinds(await feed.events_after(0, 10)) == ["a", "b"], "older than the start"
    await happen(store, *"cde")
    await feed.refresh()
    for index in range(6):
        assert kinds(await feed.events_after(index, 10)) == list("abcde")[index:]


async def test_nothing_beyond_the_feeds_own_index_is_shown(store: Database) -> None:
    """A reader that notes the index first must not get an event beyond it."""
    await happen(store, "a")
    feed = Feed(store)
    await feed.start()
    await happen(store, "b")
    assert kinds(await feed.events_after(0, 10)) == ["a"]


async def test_waiting_ends_with_the_event(feed: Feed) -> None:
    waiting = asyncio.create_task(feed.wait_after(0, 10))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    await happen_and_look(feed, "a")
    assert kinds(await waiting) == kinds(await feed.wait_after(0, 10)) == ["a"], "existing ones at once"


@pytest.mark.parametrize("seconds", [0, -1, 0.02])
async def test_waiting_ends_empty_after_the_timeout(feed: Feed, seconds: float) -> None:
    assert (await feed.wait_after(0, seconds), feed._waiting) == ([], {})


async def test_a_reader_wakes_only_for_its_transaction(feed: Feed) -> None:
    mine = asyncio.create_task(feed.wait_after(0, 10, topic=MINE))
    await asyncio.sleep(0)
    await happen_and_look(feed, "a", txn="other")
    await asyncio.sleep(0.02)
    assert not mine.done()
    await happen_and_look(feed, "b", txn="mine")
    assert kinds(await mine) == ["b"]
    assert feed._waiting == {}


WAKES: list[tuple[dict[str, str], str, bool]] = [
    ({}, "effect_released", False),
    ({"review_id": "r"}, "vote_recorded", True),
    ({"task_id": "t"}, "task_opened", True),
    ({}, "signed_out", True),
]


@pytest.mark.parametrize(("body", "kind", "wakes"), WAKES)
async def test_kinds_that_wake_pages(store: Database, feed: Feed, body: Any, kind: str, wakes: bool) -> None:
    page = asyncio.create_task(feed.follow(0, 1.0 if wakes else 0.1, PEOPLE))
    await asyncio.sleep(0)
    await store.write(lambda tx: append(tx, kind, actor="system", body=body))
    await Sequencer(store, holder="a").number()
    await feed.refresh()
    await asyncio.sleep(0.02)
    assert page.done() is wakes
    events, reached = await page
    assert (kinds(events), reached) == ([kind] if wakes else [], 1), "others are skipped"


@pytest.mark.parametrize(("keep", "page"), [(1, 2), (100, 2), (100, 500)])
async def test_following_a_topic_returns_the_scanned_index_without_repeats(
    store: Database, monkeypatch: pytest.MonkeyPatch, keep: int, page: int
) -> None:
    monkeypatch.setattr("policy_service.audit.feed._PAGE", page)
    feed = Feed(store, keep=keep)
    await feed.start()
    await happen(store, *"abcde", txn="other")
    await happen(store, "z", txn="mine")
    await happen_and_look(feed, "f", txn="other")
    assert kinds(await feed.wait_after(0, 5, topic=MINE)) == ["z"], "beyond the first page"
    found: list[str] = []
    index = 0
    for _ in range(6):
        events, index = await feed.follow(index, 0.01, MINE)
        found += kinds(events)
    assert (found, index) == (["z"], 7)


async def test_an_event_between_read_and_wait_is_not_missed(store: Database) -> None:
    """During the read of the database an event is committed, before the reader is registered."""
    await happen(store, "old", txn="other")
    feed = Feed(store)
    await feed.start()
    original, raced = feed.events_after, []

    async def look(index: int, limit: int) -> list[Event]:
        events = await original(index, limit)
        if not raced:
            raced.append(True)
            await happen_and_look(feed, "new", txn="mine")
        return events

    feed.events_after = look  # type: ignore[method-assign]
    assert kinds(await feed.wait_after(0, 5, topic=MINE)) == ["new"]


async def test_close_wakes_every_reader_and_cancelled_ones_are_removed(feed: Feed) -> None:
    waiting = [asyncio.create_task(feed.wait_after(0, 10)) for _ in range(100)]
    await asyncio.sleep(0)
    await happen_and_look(feed, "a")
    assert {event.kind for events in await asyncio.gather(*waiting) for event in events} == {"a"}
    assert feed._waiting == {}
    topics = ({"topic": MINE}, {"topic": MINE}, {})
    leaving, *left = (asyncio.create_task(feed.wait_after(1, 30, **on)) for on in topics)
    await asyncio.sleep(0.01)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert sum(map(len, feed._waiting.values())) == 2
    feed.close()
    async with asyncio.timeout(1):
        assert await asyncio.gather(*left) == [[], []]
    assert feed.closing and feed._waiting == {}


@pytest.mark.parametrize("engine", BOTH)
async def test_a_replica_without_the_lease_follows_too(migrated_url: str) -> None:
    with Database.open(migrated_url) as here, Database.open(migrated_url) as there:
        feed = Feed(there, poll_s=0.05)
        await feed.start()
        task = asyncio.create_task(feed.run())
        waiting = asyncio.create_task(feed.wait_after(0, 10))
        await happen(here, "a")
        assert kinds(await waiting) == ["a"]
        feed.close()
        async with asyncio.timeout(2):
            await task


async def test_a_commit_makes_it_look_at_once(store: Database) -> None:
    feed = Feed(store, poll_s=30)
    store.on_commit(feed.nudge)
    await feed.start()
    task = asyncio.create_task(feed.run())
    await asyncio.sleep(0.05)
    waiting = asyncio.create_task(feed.wait_after(0, 10))
    await happen(store, "a")
    assert kinds(await waiting) == ["a"]
    feed.close()
    await task


async def test_a_failed_refresh_is_counted_and_retried(store: Database) -> None:
    feed = Feed(store, poll_s=0.02)
    await feed.start()
    broken, feed._db = feed._db, None  # type: ignore[assignment]
    task = asyncio.create_task(feed.run())
    await until(lambda: feed.signal.wrong is not None)
    feed._db = broken
    await happen(store, "a")
    assert kinds(await feed.wait_after(0, 5)) == ["a"]
    await until(lambda: feed.signal.wrong is None)
    assert feed.errors
    feed.close()
    await task
