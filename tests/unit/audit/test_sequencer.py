"""The sequencer of PostgreSQL: every committed line gets one index, without gaps, in the order of writing."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, text

from policy_service.audit.log import Sequencer, SequencerLimits, append
from policy_service.storage.core import table
from policy_service.storage.database import Database
from policy_service.storage.migrations import migrate
from policy_service.storage.system_tables import AuditRow

AUDIT = table(AuditRow)
pytestmark = pytest.mark.xdist_group("postgresql")


@pytest.fixture
def engine() -> str:
    """SQLite numbers a line as it inserts it."""
    return "postgresql"


async def write(db: Database, n: int) -> None:
    await db.write(lambda tx: append(tx, "x", actor="system", body={"n": n}))


async def numbered(db: Database) -> list[tuple[int, int]]:
    """(index, what was written) by index; lines without one are left out."""
    statement = select(AUDIT.c.idx, AUDIT.c.body).where(AUDIT.c.idx.is_not(None)).order_by(AUDIT.c.idx)
    found = await db.read(lambda conn: conn.execute(statement).all())
    return [(idx, json.loads(body)["n"]) for idx, body in found]


@asynccontextmanager
async def running(sequencer: Sequencer) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(sequencer.run())
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(db: Database, count: int, seconds: float = 10) -> list[tuple[int, int]]:
    async with asyncio.timeout(seconds):
        while len(found := await numbered(db)) < count:  # noqa: ASYNC110  the database sets no event
            await asyncio.sleep(0.01)
    return found


async def test_numbering_goes_on_where_it_was_and_does_more_than_a_batch(store: Database) -> None:
    sequencer = Sequencer(store, holder="a", pace=SequencerLimits(batch=3))
    await write(store, 0)
    assert [await sequencer.number(), await sequencer.number()] == [1, 0]
    for n in range(1, 8):
        await write(store, n)
    assert await sequencer.number() == 7
    assert await numbered(store) == [(n + 1, n) for n in range(8)]


async def test_an_idle_log_costs_no_commit(store: Database) -> None:
    commits: list[int] = []
    await write(store, 0)
    sequencer = Sequencer(store, holder="a")
    await sequencer.number()
    await asyncio.sleep(0.05)  # listeners hear of a commit after those who asked for it
    store.on_commit(lambda: commits.append(1))
    await sequencer.number()
    assert commits == []


async def test_a_dead_sequencer_is_replaced_when_its_lease_expires(migrated_url: str) -> None:
    """L12."""
    now = datetime(2026, 11, 21, tzinfo=UTC)
    with Database.open(migrated_url, clock=lambda: now) as db:
        await write(db, 0)
        await Sequencer(db, holder="dead", pace=SequencerLimits(lease=timedelta(seconds=15))).number()
        await write(db, 1)
        heir = Sequencer(db, holder="heir")
        assert await heir.number() == 0
        now += timedelta(seconds=15)
        assert await heir.number() == 1
        assert await numbered(db) == [(1, 0), (2, 1)]


async def test_two_sequencers_at_once_leave_no_gap_and_no_double(migrated_url: str) -> None:
    """Each believes it leads (the lease is worth nothing here): the locked row still lines them up."""
    with Database.open(migrated_url) as one, Database.open(migrated_url) as two:
        pace = SequencerLimits(batch=2, lease=timedelta(seconds=0))
        sequencers = [Sequencer(one, holder="a", pace=pace), Sequencer(two, holder="b", pace=pace)]
        for n in range(40):
            await write(one, n)
        await asyncio.gather(*(sequencer.number() for sequencer in sequencers for _ in range(4)))
        while await sequencers[0].number():
            pass
        assert await numbered(one) == [(n + 1, n) for n in range(40)]


async def test_lines_appear_in_commit_order_and_none_is_skipped(postgres_url: str) -> None:
    """A slow unit commits after a quick one that began later, and gets the later index."""
    migrate(postgres_url)
    with Database.open(postgres_url) as db:
        written, go = threading.Event(), threading.Event()

        def slow(tx):  # type: ignore[no-untyped-def]
            append(tx, "x", actor="system", body={"n": 0})
            written.set()
            assert go.wait(10)

        late = asyncio.ensure_future(db.write(slow))
        assert await asyncio.to_thread(written.wait, 10)
        await write(db, 1)
        sequencer = Sequencer(db, holder="a")
        await sequencer.number()
        assert await numbered(db) == [(1, 1)]
        go.set()
        await late
        await sequencer.number()
        assert await numbered(db) == [(1, 1), (2, 0)]


async def test_what_depends_on_another_unit_comes_after_it(postgres_url: str) -> None:
    """B begins first but waits for A's row: its line must follow A's, whenever B began."""
    migrate(postgres_url)
    with Database.open(postgres_url) as db:
        await db.write(lambda tx: tx.conn.execute(text("INSERT INTO meta VALUES ('row', '')")).rowcount)
        b_began, a_holds, a_may_end = threading.Event(), threading.Event(), threading.Event()
        touch = text("UPDATE meta SET value = value || 'x'")

        def a(tx):  # type: ignore[no-untyped-def]
            tx.conn.execute(touch)
            a_holds.set()
            assert a_may_end.wait(10)
            append(tx, "x", actor="system", body={"n": 0})

        def b(tx):  # type: ignore[no-untyped-def]
            b_began.set()
            assert a_holds.wait(10)
            tx.conn.execute(touch)
            append(tx, "x", actor="system", body={"n": 1})

        second = asyncio.ensure_future(db.write(b))
        assert await asyncio.to_thread(b_began.wait, 10)
        first = asyncio.ensure_future(db.write(a))
        assert await asyncio.to_thread(a_holds.wait, 10)
        await asyncio.sleep(0.1)  # b now waits for the row
        a_may_end.set()
        await asyncio.gather(first, second)
        await Sequencer(db, holder="a").number()
        assert await numbered(db) == [(1, 0), (2, 1)]


async def test_running_it_numbers_within_a_second_without_any_hint(store: Database) -> None:
    async with running(Sequencer(store, holder="a")):
        await write(store, 0)
        assert await until(store, 1, seconds=1) == [(1, 0)]


async def test_a_hint_makes_it_look_at_once(store: Database) -> None:
    sequencer = Sequencer(store, holder="a", pace=SequencerLimits(poll_s=30))
    store.on_commit(sequencer.nudge)
    async with running(sequencer):
        await asyncio.sleep(0.1)
        for n in range(3):
            await write(store, n)
        assert await until(store, 3, seconds=5) == [(1, 0), (2, 1), (3, 2)]


async def test_an_error_is_counted_and_the_next_pass_runs(store: Database) -> None:
    seen: list[int] = []
    twice = asyncio.Event()

    async def reached(highest: int) -> None:
        seen.append(highest)
        if len(seen) == 1:
            raise OSError("no space for the mark")
        twice.set()

    sequencer = Sequencer(store, holder="a", pace=SequencerLimits(poll_s=0.02), on_index=reached)
    async with running(sequencer) as task:
        await write(store, 0)
        await until(store, 1)
        await write(store, 1)
        await until(store, 2)
        await asyncio.wait_for(twice.wait(), 5)
        await asyncio.sleep(0.05)
        assert not task.done()
        assert not sequencer.signal.wrong
    assert sequencer.errors == 1
    assert seen == [1, 2]
