"""More time to fire under the same attempt: everything is asked again, and a refusal gives none."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from tests.fakes.payments import GROUPS, Payments, gate, plain_forbid
from tests.fakes.world import Agent, World
from tests.integration.service.effects import mail, pay

pytestmark = pytest.mark.anyio


async def renewed(robot: Agent, *effect_ids: str, attempt_id: str | None = None) -> httpx2.Response:
    return await robot.send(
        "POST", f"/v1/redemptions/{attempt_id or robot.attempt}/renew", {"effect_ids": list(effect_ids)}
    )


async def spent(robot: Agent, *effects: dict[str, Any]) -> dict[str, Any]:
    view: dict[str, Any] = (await robot.submit(*effects, attempt_id=robot.attempt)).json()
    assert view["state"] == "redeemed"
    return view


async def test_a_renewal_gives_a_fresh_fire_by_for_what_was_named(bank: World, robot: Agent) -> None:
    view = await spent(robot, await pay(bank), await mail(bank))
    before = bank.receipt_of(view)
    bank.clock.pass_(seconds=20)
    answer = (await renewed(robot, view["effects"][1]["effect_id"])).json()
    after = bank.receipt_of(answer)
    assert answer["redeemed"] is True and answer["attempt_id"] == robot.attempt
    assert [e.effect_id for e in after.effects] == [view["effects"][1]["effect_id"]]
    assert after.effects[0] == before.effects[1]
    assert 20 <= after.fire_by - before.fire_by <= 22


async def test_a_renewal_moves_the_time_at_which_silence_becomes_unknown(bank: World, robot: Agent) -> None:
    view = await spent(robot, await pay(bank), await mail(bank))
    bank.clock.pass_(seconds=80)
    await renewed(robot, view["effects"][1]["effect_id"])
    bank.clock.pass_(seconds=50)
    await bank.sweep()
    seen = await robot.see(view["txn"])
    assert [effect["state"] for effect in seen["effects"]] == ["unknown", "redeemed"]


async def test_a_renewal_of_one_effect_is_none_of_the_others(
    bank: World, folder: Payments, robot: Agent
) -> None:
    """Repeating the redemption after it tells no fresher time for what was not asked about again."""
    view = await spent(robot, await pay(bank), await mail(bank))
    before = bank.receipt_of(view)
    folder.rules(plain_forbid("no-more-pay"))
    await bank.activate()
    bank.clock.pass_(seconds=25)
    assert (await renewed(robot, view["effects"][1]["effect_id"])).json()["redeemed"] is True
    refused = (await renewed(robot, *(e["effect_id"] for e in view["effects"]))).json()
    assert refused["redeemed"] is False
    again = bank.receipt_of((await robot.redeem(["a.b.c"], robot.attempt)).json())
    assert again.fire_by == before.fire_by and len(again.effects) == 2


@pytest.mark.parametrize("rule", [plain_forbid("stop"), gate("late", "legal")])
async def test_a_policy_that_would_not_release_it_now_renews_nothing(
    bank: World, folder: Payments, robot: Agent, rule: str
) -> None:
    view = await spent(robot, await pay(bank))
    folder.rules(rule)
    await bank.activate()
    answer = (await renewed(robot, view["effects"][0]["effect_id"])).json()
    assert answer["redeemed"] is False and "receipt" not in answer
    assert answer["transaction"]["effects"][0]["state"] == "redeemed"  # only the redeemer knows what fired
    unused = {"effect_id": view["effects"][0]["effect_id"], "outcome": "unused"}
    assert (await robot.report(robot.attempt, unused)).json()["state"] == "ended"


async def test_a_person_who_left_ends_the_renewals_of_what_they_approved(
    bank: World, folder: Payments, robot: Agent
) -> None:
    view = (await robot.submit(await pay(bank, 500))).json()
    maya = await bank.person("maya")
    await maya.vote(view)
    await robot.spend(await robot.see(view["txn"]), robot.attempt)
    folder.people(GROUPS | {"finance": ("tomas",)})
    await bank.activate()
    assert (await renewed(robot, view["effects"][0]["effect_id"])).json()["redeemed"] is False


async def test_nothing_is_renewed_after_the_time_its_release_might_be_used(
    bank: World, folder: Payments, robot: Agent
) -> None:
    folder.rules(gate("brief", "finance", valid_for="1m"))
    await bank.activate()
    view = (await robot.submit(await pay(bank))).json()
    maya = await bank.person("maya")
    await maya.vote(view)
    await robot.spend(await robot.see(view["txn"]), robot.attempt)
    effect_id = view["effects"][0]["effect_id"]
    bank.clock.pass_(seconds=50)
    assert (await renewed(robot, effect_id)).json()["redeemed"] is True
    bank.clock.pass_(seconds=11)
    assert (await renewed(robot, effect_id)).json()["redeemed"] is False


async def test_nothing_is_renewed_beyond_a_valid_for_that_became_shorter(
    bank: World, folder: Payments, robot: Agent
) -> None:
    folder.rules(gate("brief", "finance", valid_for="1h"))
    await bank.activate()
    view = (await robot.submit(await pay(bank))).json()
    await (await bank.person("maya")).vote(view)
    await robot.spend(await robot.see(view["txn"]), robot.attempt)
    effect_id = view["effects"][0]["effect_id"]
    bank.clock.pass_(seconds=300)
    folder.rules(gate("brief", "finance", valid_for="10m"))
    await bank.activate()
    assert (await renewed(robot, effect_id)).json()["redeemed"] is True
    folder.rules(gate("brief", "finance", valid_for="1m"))
    await bank.activate()
    assert (await renewed(robot, effect_id)).json()["redeemed"] is False


async def test_a_compensation_is_renewed_within_its_own_time_and_then_somebody_is_told(
    bank: World, robot: Agent
) -> None:
    view = (await robot.submit(await pay(bank), await mail(bank), attempt_id=robot.attempt)).json()
    paid, mailed = (effect["effect_id"] for effect in view["effects"])
    fired = {"effect_id": paid, "outcome": "fired", "result": {"id": "p"}}
    await robot.report(robot.attempt, fired, {"effect_id": mailed, "outcome": "failed"})
    path, undo = f"/v1/transactions/{view['txn']}/compensate", f"{robot.name}-undo"
    asked = (await robot.send("POST", path, {"effect_id": paid})).json()
    assert (await robot.redeem([asked["release"]], undo)).json()["redeemed"] is True
    effect_id = asked["effect"]["effect_id"]
    times = 0
    while (await renewed(robot, effect_id, attempt_id=undo)).json()["redeemed"]:
        bank.clock.pass_(seconds=80)
        times += 1
        assert times < 1_000, "it may be renewed for ever"
    assert times > 1
    bank.clock.pass_(seconds=200)
    await bank.sweep()
    assert await (await bank.person("tomas")).task(view, "unknown")


@pytest.mark.parametrize("outcome", ["fired", "failed", "unknown", "unused"])
async def test_what_has_an_outcome_is_not_renewed(bank: World, robot: Agent, outcome: str) -> None:
    view = await spent(robot, await pay(bank))
    effect_id = view["effects"][0]["effect_id"]
    await robot.report(robot.attempt, {"effect_id": effect_id, "outcome": outcome})
    answer = await renewed(robot, effect_id)
    assert (answer.status_code, answer.json()["code"]) == (409, "illegal_state")


async def test_only_what_the_attempt_redeemed_is_renewed(bank: World, robot: Agent) -> None:
    view = await spent(robot, await pay(bank))
    for effect_ids in (["0" * 64], [view["effects"][0]["effect_id"], "0" * 64]):
        answer = await renewed(robot, *effect_ids)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_an_effect_named_twice_is_renewed_once(bank: World, robot: Agent) -> None:
    view = await spent(robot, await pay(bank))
    effect_id = view["effects"][0]["effect_id"]
    answer = (await renewed(robot, effect_id, effect_id)).json()
    assert len(bank.receipt_of(answer).effects) == 1


async def test_another_key_of_the_agent_may_renew(bank: World, robot: Agent) -> None:
    view = await spent(robot, await pay(bank))
    other = await bank.another_key(robot)
    answer = (await renewed(other, view["effects"][0]["effect_id"])).json()
    assert bank.receipt_of(answer).cnf_jkt == other.key.public.kid


async def test_a_renewal_and_its_refusal_are_in_the_log(bank: World, folder: Payments, robot: Agent) -> None:
    view = await spent(robot, await pay(bank))
    effect_id = view["effects"][0]["effect_id"]
    await renewed(robot, effect_id)
    folder.rules(plain_forbid("stop"))
    await bank.activate()
    await renewed(robot, effect_id)
    kinds = [kind for kind, _ in await bank.log(view["txn"])]
    assert kinds.count("redemption_renewed") == kinds.count("renewal_refused") == 1
