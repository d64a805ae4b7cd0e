"""The thread: stage, decide, countersign, release, spend once, report."""

from __future__ import annotations

import pytest

from tests.fakes.world import Agent, World
from tests.integration.service.effects import refund
from tests.integration.service.engines import SQLITE_IN_SHORT

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("engine", SQLITE_IN_SHORT),
]


async def test_a_small_refund_is_released_spent_and_settled(world: World, desk: Agent) -> None:
    view = (await desk.submit(await refund(world))).json()
    assert view["state"] == "ready", view
    released = (await desk.release(view)).json()
    assert len(released["releases"]) == 1
    redeemed = (await desk.redeem(released["releases"])).json()
    assert redeemed["redeemed"] is True
    assert world.receipt_of(redeemed).attempt == desk.attempt
    effect_id = view["effects"][0]["effect_id"]
    told = (
        await desk.report(
            desk.attempt, {"effect_id": effect_id, "outcome": "fired", "result": {"id": "re_1"}}
        )
    ).json()
    assert told["state"] == "settled"
    assert told["effects"][0]["outcome"]["outcome"] == "fired"


async def test_one_round_trip_spends_what_may_go_at_once(world: World, desk: Agent) -> None:
    answer = await desk.submit(await refund(world), attempt_id=desk.attempt)
    view = answer.json()
    assert view["state"] == "redeemed" and view["receipt"] and len(view["releases"]) == 1
    assert world.release_of(view["releases"][0]).cnf_jkt == desk.key.public.kid


async def test_a_large_refund_waits_for_finance_and_goes_once_approved(world: World, desk: Agent) -> None:
    view = (await desk.submit(await refund(world, 120_000))).json()
    assert view["state"] == "review"
    assert view["effects"][0]["review"]["needs"][0]["groups"] == ["finance"]
    maya = await world.person("maya")
    voted = await maya.vote(view)
    assert voted.status_code == 200, voted.text
    assert voted.json()["state"] == "met"
    ready = await desk.see(view["txn"])
    assert ready["state"] == "ready"
    released = (await desk.release(ready)).json()
    decision = world.release_of(released["releases"][0]).decision
    assert (decision.mode, decision.assurance) == ("review", "dev")
    assert (await desk.redeem(released["releases"])).json()["redeemed"] is True
