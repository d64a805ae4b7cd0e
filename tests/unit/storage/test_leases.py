"""One leader at a time, by the database's clock, with a fence that only rises."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from policy_service.storage import leases
from policy_service.storage.database import Database, Tx

TTL = timedelta(seconds=10)
START = datetime(2026, 11, 21, tzinfo=UTC)


class Clock:
    """A clock that moves when told."""

    now = START

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(migrated_url: str, clock: Clock):  # type: ignore[no-untyped-def]
    with Database.open(migrated_url, clock=clock) as db:
        yield db


def take(holder: str, name: str = "job") -> Callable[[Tx], int | None]:
    return lambda tx: leases.acquire(tx, name, holder, TTL)


def test_the_first_takes_it_and_the_second_does_not(store: Database) -> None:
    assert store.write_sync(take("a")) == 1
    assert store.write_sync(take("b")) is None


def test_leases_of_other_jobs_are_other_leases(store: Database) -> None:
    assert store.write_sync(take("a", "one")) == 1
    assert store.write_sync(take("b", "two")) == 1


@pytest.mark.parametrize(
    ("after_s", "taken"),
    {"a moment before the end": (9.999999, None), "exactly at the end": (10, 2), "later": (11, 2)}.values(),
)
def test_another_takes_over_when_it_ends_and_the_fence_rises(
    store: Database, clock: Clock, after_s: float, taken: int | None
) -> None:
    store.write_sync(take("a"))
    clock.now = START + timedelta(seconds=after_s)
    assert store.write_sync(take("b")) == taken


def test_renewing_keeps_the_fence_and_moves_the_end(store: Database, clock: Clock) -> None:
    store.write_sync(take("a"))
    clock.now = START + timedelta(seconds=9)
    assert store.write_sync(take("a")) == 1
    clock.now = START + timedelta(seconds=18)
    assert store.write_sync(take("b")) is None
    clock.now = START + timedelta(seconds=9) + TTL
    assert store.write_sync(take("a")) == 2, "whoever overslept gets another fence"


def test_only_the_holder_lets_go_and_then_another_gets_in_at_once(store: Database) -> None:
    store.write_sync(take("a"))
    for job, holder in (("job", "b"), ("no such job", "a")):
        assert not store.write_sync(lambda tx, job=job, holder=holder: leases.release(tx, job, holder))
    assert store.write_sync(take("b")) is None
    assert store.write_sync(lambda tx: leases.release(tx, "job", "a"))
    assert not store.write_sync(lambda tx: leases.release(tx, "job", "a"))
    assert store.write_sync(take("b")) == 2


@pytest.mark.anyio
@pytest.mark.parametrize("lapsed", [True, False])
async def test_of_many_at_once_one_leads(store: Database, clock: Clock, lapsed: bool) -> None:
    if lapsed:
        await store.write(take("old"))
        clock.now = START + TTL
    fences = await asyncio.gather(*(store.write(take(f"h{n}")) for n in range(16)))
    assert [fence for fence in fences if fence is not None] == [2 if lapsed else 1]
