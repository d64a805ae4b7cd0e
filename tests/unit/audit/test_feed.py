"""Who waits is told in order, misses nothing, and costs nothing while waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import pytest

from policy_service.audit.feed import PEOPLE, Event, Feed, of_transaction
from policy_service.audit.log import append
from policy_service.audit.sequencer import Sequencer
from policy_service.storage.database import Database
from tests.unit.storage.databases import BOTH

pytestmark = pytest.mark.anyio


async def happen(db: Database, *kinds: str, txn: str | None = None) -> None:
    """Things that happen, each in its own unit, with their indexes."""
    for kind in kinds:
        await db.write(
            lambda tx, kind=kind: append(tx, kind, actor="system", txn=txn, body={"review_id": f"r-{kind}"})
        )
    await Sequencer(db, holder="a").number()


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not happened():  # noqa: ASYNC110  the thing under test sets no event
            await asyncio.sleep(0.01)


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


async def test_an_event_carries_ids_and_its_kind_and_nothing_else(store: Database, feed: Feed) -> None:
    await happen(store, "opened", txn="t" * 64)
    await feed.refresh()
    assert await feed.events_after(0, 10) == [Event(1, "opened", "t" * 64, None, None, "r-opened")]


async def test_events_come_in_order_and_without_a_gap(store: Database, feed: Feed) -> None:
    await happen(store, *"abc")
    await feed.refresh()
    await happen(store, *"de")
    await feed.refresh()
    events = await feed.events_after(0, 10)
    assert [(event.index, event.kind) for event in events] == list(enumerate("abcde", 1))
    assert kinds(await feed.events_after(2, 2)) == ["c", "d"]
    assert await feed.events_after(5, 10) == []
    assert await feed.events_after(99, 10) == []


async def test_a_line_without_an_index_is_no_event_yet(store: Database, feed: Feed) -> None:
    await store.write(lambda tx: append(tx, "early", actor="system", body={}))
    await feed.refresh()
    assert (feed.index, await feed.events_after(0, 10)) == (0, [])


@pytest.mark.parametrize("keep", [1, 2, 3, 100])
async def test_what_memory_no_longer_holds_comes_from_the_database(store: Database, keep: int) -> None:
    feed = Feed(store, keep=keep)
    await happen(store, *"ab")
    await feed.start()
    assert kinds(await feed.events_after(0, 10)) == ["a", "b"], "older than the start"
    await happen(store, *"cde")
    await feed.refresh()
    for index in range(6):
        assert kinds(await feed.events_after(index, 10)) == list("abcde")[index:]


async def test_nothing_beyond_the_feeds_own_index_is_shown(store: Database) -> None:
    """Whoever notes the index first must not be told of an event that this index does not cover."""
    await happen(store, "a")
    feed = Feed(store)
    await feed.start()
    await happen(store, "b")
    assert kinds(await feed.events_after(0, 10)) == ["a"]


async def test_waiting_ends_with_the_event(store: Database, feed: Feed) -> None:
    waiting = asyncio.create_task(feed.wait_after(0, 10))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    await happen(store, "a")
    await feed.refresh()
    assert kinds(await waiting) == ["a"]
    assert kinds(await feed.wait_after(0, 10)) == ["a"], "what is there already is told at once"


@pytest.mark.parametrize("seconds", [0, -1, 0.02])
async def test_waiting_ends_with_nothing_when_the_time_is_up(feed: Feed, seconds: float) -> None:
    assert await feed.wait_after(0, seconds) == []
    assert feed._waiting == {}


async def test_only_the_transaction_one_waits_for_wakes(store: Database, feed: Feed) -> None:
    mine = asyncio.create_task(feed.wait_after(0, 10, topic=of_transaction("mine")))
    await asyncio.sleep(0)
    await happen(store, "a", txn="other")
    await feed.refresh()
    await asyncio.sleep(0.02)
    assert not mine.done()
    await happen(store, "b", txn="mine")
    await feed.refresh()
    assert kinds(await mine) == ["b"]
    assert feed._waiting == {}


@pytest.mark.parametrize(
    ("body", "kind", "wakes"),
    [
        ({}, "effect_released", False),
        ({"review_id": "r"}, "vote_recorded", True),
        ({"task_id": "t"}, "task_opened", True),
        ({}, "signed_out", True),
    ],
)
async def test_who_shows_pages_is_woken_by_what_people_are_asked_and_by_who_leaves(
    store: Database, feed: Feed, body: dict[str, str], kind: str, wakes: bool
) -> None:
    page = asyncio.create_task(feed.follow(0, 1.0, PEOPLE))
    await asyncio.sleep(0)
    await store.write(lambda tx: append(tx, kind, actor="system", body=body))
    await Sequencer(store, holder="a").number()
    await feed.refresh()
    await asyncio.sleep(0.02)
    assert page.done() is wakes
    events, reached = await page
    assert (kinds(events), reached) == ([kind] if wakes else [], 1), (
        "what wakes nobody is passed over for good"
    )


@pytest.mark.parametrize(("keep", "page"), [(1, 2), (100, 2), (100, 500)])
async def test_whoever_follows_one_topic_is_told_how_far_was_looked_and_nothing_twice(
    store: Database, monkeypatch: pytest.MonkeyPatch, keep: int, page: int
) -> None:
    monkeypatch.setattr("policy_service.audit.feed._PAGE", page)
    feed = Feed(store, keep=keep)
    await feed.start()
    await happen(store, *"abcde", txn="other")
    await happen(store, "z", txn="mine")
    await happen(store, "f", txn="other")
    await feed.refresh()
    found: list[str] = []
    index = 0
    for _ in range(6):
        events, index = await feed.follow(index, 0.01, of_transaction("mine"))
        found += kinds(events)
    assert (found, index) == (["z"], 7)


async def test_an_event_between_looking_and_waiting_is_not_missed(store: Database) -> None:
    """The look goes to the database; something happens meanwhile and nobody is registered yet."""
    await happen(store, "old", txn="other")
    feed = Feed(store)
    await feed.start()

    raced: list[bool] = []
    original = feed.events_after

    async def look(index: int, limit: int) -> list[Event]:
        events = await original(index, limit)
        if not raced:
            raced.append(True)
            await happen(store, "new", txn="mine")
            await feed.refresh()
        return events

    feed.events_after = look  # type: ignore[method-assign]
    assert kinds(await feed.wait_after(0, 5, topic=of_transaction("mine"))) == ["new"]


async def test_an_event_beyond_the_first_page_is_found(
    store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("policy_service.audit.feed._PAGE", 2)
    feed = Feed(store, keep=1)
    await feed.start()
    await happen(store, *"abcde", txn="other")
    await happen(store, "z", txn="mine")
    await feed.refresh()
    assert kinds(await feed.wait_after(0, 5, topic=of_transaction("mine"))) == ["z"]


async def test_many_who_wait_are_all_told(store: Database, feed: Feed) -> None:
    waiting = [asyncio.create_task(feed.wait_after(0, 10)) for _ in range(500)]
    await asyncio.sleep(0)
    await happen(store, "a")
    await feed.refresh()
    assert {event.kind for events in await asyncio.gather(*waiting) for event in events} == {"a"}
    assert feed._waiting == {}


async def test_closing_lets_everybody_go_on(feed: Feed) -> None:
    waiting = [
        asyncio.create_task(feed.wait_after(0, 30)),
        asyncio.create_task(feed.wait_after(0, 30, topic=of_transaction("t"))),
    ]
    await asyncio.sleep(0.01)
    feed.close()
    async with asyncio.timeout(1):
        assert await asyncio.gather(*waiting) == [[], []]
    assert feed.closing


async def test_who_leaves_is_forgotten(feed: Feed) -> None:
    waiting = asyncio.create_task(feed.wait_after(0, 30, topic=of_transaction("t")))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    assert feed._waiting == {}


@pytest.mark.parametrize("engine", BOTH)
async def test_a_replica_that_numbers_nothing_follows_all_the_same(migrated_url: str) -> None:
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


async def test_a_hint_makes_it_look_at_once(store: Database) -> None:
    feed = Feed(store, poll_s=30)
    await feed.start()
    task = asyncio.create_task(feed.run())
    await asyncio.sleep(0.05)
    waiting = asyncio.create_task(feed.wait_after(0, 10))
    await happen(store, "a")
    feed.hint()
    assert kinds(await waiting) == ["a"]
    feed.close()
    await task


async def test_a_look_that_fails_is_counted_and_the_next_one_follows(store: Database) -> None:
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
