"""Ways in that were tried by hand and closed; each was open once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.payments import Payments, plain_forbid
from tests.fakes.world import Agent, World, running
from tests.integration.service.effects import pay

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "moment", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-01-01", "x"]
)
async def test_a_cursor_outside_the_calendar_is_refused(bank: World, moment: str) -> None:
    maya = await bank.person("maya")
    answer = await maya.get(f"/v1/reviews?cursor={moment.replace('+', '%2B')}~rev_1")
    assert answer.status_code == 400


async def test_a_rule_about_api_keys_holds_for_whoever_redeems(tmp_path: Path, folder: Payments) -> None:
    folder.rules(plain_forbid("no-api-keys", 'principal.proof == "api_key"'))
    async with running(tmp_path / "data", folder.path, api_keys=True) as bank:
        await _redeem_by_api_key(bank, await bank.agent("robot"))


async def _redeem_by_api_key(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, 10))).json()
    assert view["state"] == "ready"
    secret = (await bank.operator("api-key", {"name": robot.name}))["api_key"]
    bearer = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
    path = f"/v1/transactions/{view['txn']}/release"
    released = await bank.http.post(path, json={"rev": view["rev"]}, headers=bearer)
    assert released.status_code == 200, released.text
    body = {"tokens": released.json()["releases"], "attempt_id": "a1"}
    answer = await bank.http.post("/v1/redemptions", json=body, headers=bearer)
    assert answer.json()["redeemed"] is False
    assert (await robot.see(view["txn"]))["state"] == "ended"


async def test_a_second_contradiction_is_logged_and_asks_again_once_the_first_was_settled(
    bank: World, robot: Agent
) -> None:
    view = (await robot.submit(await pay(bank, 10))).json()
    await robot.spend(view, "a1")
    effect_id = view["effects"][0]["effect_id"]
    for outcome in ("fired", "failed", "unused"):
        await robot.report("a1", {"effect_id": effect_id, "outcome": outcome})
    kinds = [kind for kind, _ in await bank.log(view["txn"])]
    assert kinds.count("outcome_contradicted") == 2
    assert kinds.count("task_opened") == 1
