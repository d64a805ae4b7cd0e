"""Ways in that were tried by hand and closed; each was open once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.payments import LARGE, Payments, plain_forbid
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
        robot = await bank.agent("robot")
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


ALIASES = {
    "another case": "Acme",
    "a space": "acme ",
    "dots in a path": "x/../acme",
    "a slash": "acme/",
    "percent": "%61cme",
    "punycode": "xn--acme-",
    "a letter that looks alike": "\u0430cme",
    "nothing to be seen": "ac\u200bme",
    "full width": "\uff41cme",
    "a letter and its mark": "acme\u0301",
}


@pytest.mark.parametrize("alias", ALIASES.values(), ids=ALIASES)
async def test_another_spelling_of_a_resource_is_another_resource(
    bank: World, robot: Agent, folder: Payments, alias: str
) -> None:
    """An approval of the one is none of the other, and a permit that names the one does not let the other through."""
    maya = await bank.person("maya")
    approved = (await robot.submit(await pay(bank, 500, account="acme"), run_key="one")).json()
    await maya.vote(approved)
    assert (await robot.see(approved["txn"]))["state"] == "ready"
    same_run = (await robot.submit(await pay(bank, 500, account=alias), run_key="one")).json()
    assert (same_run["state"], same_run["rev"]) == ("review", 2)
    first, second = approved["effects"][0], same_run["effects"][0]
    assert second["resource"]["id"] == alias
    assert first["effect_id"] != second["effect_id"]
    assert first["effect_digest"] != second["effect_digest"]
    folder.policies('@id("only-acme") permit (principal, action, resource == Account::"acme");' + LARGE)
    assert await bank.activate()
    named = (await robot.submit(await pay(bank, account="acme"), run_key="two")).json()
    other = (await robot.submit(await pay(bank, account=alias), run_key="three")).json()
    assert (named["state"], other["state"]) == ("ready", "ended")


@pytest.mark.parametrize("word", ["all", "tomorrow", "100", "", None, True, ["100"], {"at": 1}, 10.5])
async def test_a_word_in_place_of_a_value_is_denied_where_the_manifest_asks_for_the_value(
    bank: World, robot: Agent, word: object
) -> None:
    effect = await pay(bank)
    effect["args"]["amount"] = word
    view = (await robot.submit(effect)).json()
    assert view["state"] == "ended"
    assert [reason["code"] for reason in view["effects"][0]["decision"]["reasons"]] == ["invalid_args"]
