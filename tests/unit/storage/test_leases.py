"""Leases: one holder at a time, by the database's clock, with an increasing fence."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from policy_service.storage import advisory_locks
from policy_service.storage.database import Database, Tx
from tests.unit.storage.databases import Clock


def take(holder: str, name: str = "job") -> Callable[[Tx], int | None]:
    return lambda tx: advisory_locks.acquire_lease(tx, name, holder, timedelta(seconds=10))


def release(holder: str, name: str = "job") -> Callable[[Tx], bool]:
    return lambda tx: advisory_locks.release_lease(tx, name, holder)


def test_an_expired_lease_is_taken_over_with_a_higher_fence(timed: Database, clock: Clock) -> None:
    assert timed.write_sync(take("a")) == 1
    assert timed.write_sync(take("b")) is None
    assert timed.write_sync(take("b", "another job")) == 1
    clock.later(9.999999)
    assert timed.write_sync(take("b")) is None
    clock.later(0.000001)
    assert timed.write_sync(take("b")) == 2


def test_renewing_keeps_the_fence_and_moves_the_end(timed: Database, clock: Clock) -> None:
    timed.write_sync(take("a"))
    clock.later(9)
    assert timed.write_sync(take("a")) == 1
    clock.later(9)
    assert timed.write_sync(take("b")) is None
    clock.later(1)
    assert timed.write_sync(take("a")) == 2, "a holder that let it expire gets another fence"


def test_only_the_holder_can_release_a_lease(timed: Database) -> None:
    timed.write_sync(take("a"))
    assert not timed.write_sync(release("b"))
    assert not timed.write_sync(release("a", "no such job"))
    assert timed.write_sync(take("b")) is None
    assert timed.write_sync(release("a"))
    assert not timed.write_sync(release("a"))
    assert timed.write_sync(take("b")) == 2


@pytest.mark.parametrize("lapsed", [True, False])
async def test_one_of_many_holders_gets_the_lease(timed: Database, clock: Clock, lapsed: bool) -> None:
    if lapsed:
        await timed.write(take("old"))
        clock.later(10)
    fences = await asyncio.gather(*(timed.write(take(f"h{n}")) for n in range(16)))
    assert [fence for fence in fences if fence is not None] == [2 if lapsed else 1]
