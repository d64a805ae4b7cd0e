"""Renewals: more time to fire under the same attempt; everything is evaluated again, and a refusal renews nothing."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from tests.fakes.payments import GROUPS, gate, plain_forbid
from tests.fakes.world import Agent
from tests.integration.service.effects import mail, pay
from tests.integration.service.together.bank import Bank, refusal
from tests.integration.service.together.test_compensation import fired, undone

pytestmark = pytest.mark.anyio


async def renewed(robot: Agent, *effect_ids: str, attempt_id: str | None = None) -> httpx2.Response:
    path = f"/v1/redemptions/{attempt_id or robot.attempt}/renew"
    return await robot.send("POST", path, {"effect_ids": list(effect_ids)})


async def spent(robot: Agent, *effects: dict[str, Any]) -> dict[str, Any]:
    view: dict[str, Any] = (await robot.submit(*effects, attempt_id=robot.attempt)).json()
    assert view["state"] == "redeemed"
    return view


async def approved(bank: Bank, amount: int) -> str:
    """The effect of a payment that Maya approved and the agent redeemed."""
    view = await bank.asks(amount)
    await bank.maya.vote(view)
    await bank.robot.spend(await bank.robot.see(view["txn"]))
    effect_id: str = view["effects"][0]["effect_id"]
    return effect_id


async def test_a_renewal_extends_the_named_effects(bank: Bank) -> None:
    view = await spent(bank.robot, await pay(bank), await mail(bank))
    before = bank.receipt_of(view)
    bank.clock.pass_(seconds=20)
    answer = (await renewed(bank.robot, view["effects"][1]["effect_id"])).json()
    after = bank.receipt_of(answer)
    assert answer["redeemed"] is True and answer["attempt_id"] == bank.robot.attempt
    assert [e.effect_id for e in after.effects] == [view["effects"][1]["effect_id"]]
    assert after.effects[0] == before.effects[1]
    assert 20 <= after.fire_by - before.fire_by <= 22
    bank.clock.pass_(seconds=60)
    await renewed(bank.robot, view["effects"][1]["effect_id"])
    bank.clock.pass_(seconds=50)  # it moves the time at which silence becomes unknown
    await bank.sweep()
    assert (await bank.states(view))[1:] == ["unknown", "redeemed"]


async def test_a_renewal_does_not_extend_other_effects(bank: Bank) -> None:
    """Repeating the redemption afterwards does not extend them either."""
    view = await spent(bank.robot, await pay(bank), await mail(bank))
    before = bank.receipt_of(view)
    await bank.rules(plain_forbid("no-more-pay"))
    bank.clock.pass_(seconds=25)
    assert (await renewed(bank.robot, view["effects"][1]["effect_id"])).json()["redeemed"] is True
    assert (await renewed(bank.robot, *(e["effect_id"] for e in view["effects"]))).json()["redeemed"] is False
    again = bank.receipt_of((await bank.robot.redeem(["a.b.c"], bank.robot.attempt)).json())
    assert again.fire_by == before.fire_by and len(again.effects) == 2


async def test_an_effect_that_would_not_be_released_now_is_not_renewed(bank: Bank) -> None:
    for rule in (plain_forbid("stop"), gate("late", "legal")):
        robot = await bank.fresh()
        view = await spent(robot, await pay(bank))
        effect_id = view["effects"][0]["effect_id"]
        await bank.rules(rule)
        answer = (await renewed(robot, effect_id)).json()
        assert answer["redeemed"] is False and "receipt" not in answer
        assert (
            answer["transaction"]["effects"][0]["state"] == "redeemed"
        )  # only the redeemer knows what fired
        unused = await robot.report(robot.attempt, {"effect_id": effect_id, "outcome": "unused"})
        assert unused.json()["state"] == "ended"
        await bank.rules()
    await bank.fresh()
    effect_id = await approved(bank, 500)  # nor is it renewed once the person who approved it has left
    await bank.people(GROUPS | {"finance": ("tomas",)})
    assert (await renewed(bank.robot, effect_id)).json()["redeemed"] is False


async def test_no_renewal_after_the_validity_of_the_release(bank: Bank) -> None:
    for valid_for, seconds, shorter, later in (("1m", 50, "1m", 11), ("1h", 300, "1m", 0)):
        await bank.fresh()
        await bank.rules(gate("brief", "finance", valid_for=valid_for))
        effect_id = await approved(bank, 10)
        bank.clock.pass_(seconds=seconds)
        assert (await renewed(bank.robot, effect_id)).json()["redeemed"] is True
        await bank.rules(gate("brief", "finance", valid_for=shorter))
        bank.clock.pass_(seconds=later)
        assert (await renewed(bank.robot, effect_id)).json()["redeemed"] is False


async def test_a_compensation_is_renewed_within_its_own_validity(bank: Bank) -> None:
    view, attempt = await fired(bank, bank.robot), f"{bank.robot.name}-undo"
    undo = (await undone(bank.robot, view)).json()
    assert (await bank.robot.redeem([undo["release"]], attempt)).json()["redeemed"] is True
    times = 0
    while (await renewed(bank.robot, undo["effect"]["effect_id"], attempt_id=attempt)).json()["redeemed"]:
        bank.clock.pass_(seconds=80)
        times += 1
        assert times < 1_000, "it may be renewed for ever"
    assert times > 1
    bank.clock.pass_(seconds=200)
    await bank.sweep()
    assert await (await bank.person("tomas")).task(view, "unknown")


async def test_an_effect_with_an_outcome_is_not_renewed(bank: Bank) -> None:
    for outcome in ("fired", "failed", "unknown", "unused"):
        robot = await bank.fresh()
        effect_id = (await spent(robot, await pay(bank)))["effects"][0]["effect_id"]
        await robot.report(robot.attempt, {"effect_id": effect_id, "outcome": outcome})
        assert refusal(await renewed(robot, effect_id)) == (409, "illegal_state")


async def test_only_effects_of_the_attempt_are_renewed_and_audited(bank: Bank) -> None:
    view = await spent(bank.robot, await pay(bank))
    effect_id = view["effects"][0]["effect_id"]
    for effect_ids in (["0" * 64], [effect_id, "0" * 64]):
        assert refusal(await renewed(bank.robot, *effect_ids)) == (404, "not_found")
    other = await bank.another_key(bank.robot)
    receipt = bank.receipt_of((await renewed(other, effect_id, effect_id)).json())
    assert (len(receipt.effects), receipt.cnf_jkt) == (1, other.key.public.kid)
    await bank.rules(plain_forbid("stop"))
    await renewed(bank.robot, effect_id)
    kinds = [kind for kind, _ in await bank.log(view["txn"])]
    assert kinds.count("redemption_renewed") == kinds.count("renewal_refused") == 1
