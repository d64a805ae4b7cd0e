"""Clocks that are wrong: what counts is the `now` of a unit of work, and no end ever comes back.

The clock a replica looks at between its units (to find what is due, to ask for facts) may be off by minutes; the one
inside a unit is the database's, the same for all of them. Here the first is moved and the second is not.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from policy_service.errors import ServiceError
from policy_service.identity.agents import Caller
from policy_service.queries.context import Context
from policy_service.workflow.expiry import sweep
from policy_service.workflow.releases.redeem import redeem
from policy_service.workflow.releases.renew import renew
from tests.fakes.world import Agent
from tests.integration.service.effects import pay
from tests.integration.service.engines import SQLITE_IN_SHORT
from tests.integration.service.together.bank import Bank, refusal

pytestmark = pytest.mark.parametrize("engine", SQLITE_IN_SHORT)  # each has its clock

TICKS = (
    sweep.expire_reviews, sweep.expire_releases, sweep.mark_unreported_unknown, sweep.expire_compensations,
    sweep.open_compensation_tasks,
)  # fmt: skip
skewed = pytest.mark.parametrize("seconds", [300, -300])  # ahead, behind


def replica(bank: Bank, seconds: int) -> Context:
    """What a replica whose own clock is off works with, over the same database."""
    return replace(bank.service.ctx, clock=lambda: bank.clock() + timedelta(seconds=seconds))


async def released(robot: Agent, *effects: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    view: dict[str, Any] = (await robot.submit(*effects)).json()
    tokens: list[str] = (await robot.release(view)).json()["releases"]
    return view, tokens


@skewed
async def test_a_replica_with_a_wrong_clock_redeems_alike(bank: Bank, robot: Agent, seconds: int) -> None:
    _, tokens = await released(robot, await pay(bank))
    who = Caller(robot.name, robot.key.public.kid)
    spent = await redeem(replica(bank, seconds), who, tokens, "a-1")
    assert spent.redeemed
    receipt = bank.receipt_of({"receipt": spent.receipt})
    assert abs(receipt.iat - bank.clock().timestamp()) < 5  # the database's time, not the replica's
    assert (await renew(replica(bank, seconds), who, "a-1", [receipt.effects[0].effect_id])).redeemed
    late = (await robot.submit(await pay(bank), run_key="late")).json()
    tokens = (await robot.release(late)).json()["releases"]
    bank.clock.pass_(seconds=121)
    with pytest.raises(ServiceError) as refused:
        await redeem(replica(bank, seconds), who, tokens, "a-2")
    assert refused.value.code == "expired_token"
    assert (await robot.see(late["txn"]))["state"] == "ready"


@skewed
async def test_a_replica_with_a_wrong_clock_ends_nothing(bank: Bank, robot: Agent, seconds: int) -> None:
    """Each has three minutes left when the replica that is ahead looks for what is over."""
    waits = (await robot.submit(await pay(bank, 500), run_key="waits")).json()
    ready = (await robot.submit(await pay(bank), run_key="ready")).json()
    fires = (await robot.submit(await pay(bank), run_key="fires", attempt_id="a-1")).json()

    async def look() -> list[str]:
        for tick in TICKS:
            await tick(replica(bank, seconds))
        return [(await robot.see(one["txn"]))["effects"][0]["state"] for one in (waits, ready, fires)]

    assert await look() == ["review", "released", "redeemed"]
    bank.clock.pass_(minutes=57)
    assert await look() == ["review", "released", "unknown"]  # an hour without a report: that is due
    bank.clock.pass_(hours=23)
    assert await look() == ["review", "expired", "unknown"]
    bank.clock.pass_(minutes=10)
    assert await look() == ["expired", "expired", "unknown"]


async def test_a_clock_that_jumps_brings_nothing_back_and_releases_nothing(bank: Bank, robot: Agent) -> None:
    last = bank.clock().replace(month=12, day=31, hour=23, minute=59, second=59, microsecond=999_999)
    bank.clock.stop_at(last)
    view, tokens = await released(robot, await pay(bank))
    asked = (await robot.submit(await pay(bank, 500), run_key="asked")).json()
    unspent = (await robot.submit(await pay(bank), run_key="unspent")).json()
    unspent_tokens = (await robot.release(unspent)).json()["releases"]
    bank.clock.pass_(seconds=1)  # the end of a year is a moment like any other
    assert (await robot.redeem(tokens, "a-1")).json()["redeemed"] is True
    bank.clock.pass_(days=400)
    assert refusal(await robot.redeem(unspent_tokens, "a-3")) == (400, "expired_token")
    late = (await robot.release(unspent)).json()
    assert (late["state"], late["releases"]) == ("ended", [])
    maya = await bank.person("maya")
    assert (await maya.vote(asked)).json()["state"] == "expired"  # recorded, and too late
    await bank.sweep()
    for days in (1, 399):
        bank.clock.pass_(days=-days)
        await bank.sweep()
        await (await bank.person("maya")).vote(asked)
        again = (await robot.redeem(tokens, "a-2")).json()["code"]
        assert again in {"already_redeemed", "expired_token"}
        renewal = {"effect_ids": [view["effects"][0]["effect_id"]]}
        assert (await robot.send("POST", "/v1/redemptions/a-1/renew", renewal)).status_code == 409
        found = [(await robot.see(one["txn"]))["effects"][0]["state"] for one in (view, asked, unspent)]
        assert found == ["unknown", "expired", "expired"]
