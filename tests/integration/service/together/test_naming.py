"""What the service names itself, and compares with what it is told."""

from __future__ import annotations

from typing import Any

import pytest

from countersign.contract import names
from tests.fakes.world import Agent, World
from tests.integration.service.effects import call, mail, pay, ship

pytestmark = pytest.mark.anyio


async def refused(robot: Agent, *effects: dict[str, Any], **members: Any) -> tuple[int, str]:
    """How a submission and a dry run of it are refused; both the same."""
    answer = await robot.submit(*effects, **members)
    dry = await robot.send(
        "POST", "/v1/evaluations", {"run_key": "run-1", "effects": list(effects), **members}
    )
    assert dry.status_code == answer.status_code
    code: str = answer.json()["code"]
    return answer.status_code, code


async def test_every_name_follows_from_the_submission(bank: World, robot: Agent) -> None:
    effect = await pay(bank)
    view = (await robot.submit(effect)).json()
    key = names.call_key(agent=robot.name, run_key="run-1", tool="pay", args=effect["args"], n=0)
    txn = names.txn_id(agent=robot.name, run_key="run-1")
    seen = view["effects"][0]
    assert view["txn"] == txn and seen["call_key"] == key
    assert seen["effect_id"] == names.effect_id(txn=txn, call_key=key)
    assert seen["args_digest"] == names.args_digest(args=effect["args"])
    assert view["txn_digest"] == names.txn_digest(effect_digests=[seen["effect_digest"]])
    assert seen["resource"] == {"type": "Account", "id": "acme"}


async def test_names_that_are_told_rightly_are_accepted(bank: World, robot: Agent) -> None:
    effect = await pay(bank)
    key = names.call_key(agent=robot.name, run_key="run-1", tool="pay", args=effect["args"], n=0)
    told = effect | {"call_key": key, "resource": {"type": "Account", "id": "acme"}}
    assert (await robot.submit(told)).status_code == 201


@pytest.mark.parametrize("n", [0, 1])
async def test_another_call_key_is_refused(bank: World, robot: Agent, n: int) -> None:
    effect = await pay(bank)
    key = names.call_key(agent=robot.name, run_key="run-1", tool="pay", args=effect["args"], n=1 - n)
    assert await refused(robot, effect | {"call_key": key, "n": n}) == (400, "call_key_mismatch")


@pytest.mark.parametrize(("type_", "id_"), [("Account", "other"), ("Other", "acme"), ("account", "acme")])
async def test_another_resource_is_refused(bank: World, robot: Agent, type_: str, id_: str) -> None:
    told = await pay(bank) | {"resource": {"type": type_, "id": id_}}
    assert await refused(robot, told) == (400, "resource_mismatch")


async def test_a_list_for_two_redeemers_is_refused(bank: World, robot: Agent) -> None:
    assert await refused(robot, await pay(bank), await ship(bank)) == (422, "mixed_audience")
    view = (await robot.submit(await ship(bank))).json()
    assert view["aud"] == "warehouse"


async def test_the_same_call_twice_is_refused_unless_it_is_numbered(bank: World, robot: Agent) -> None:
    effect = await pay(bank)
    assert await refused(robot, effect, effect) == (400, "invalid_request")
    view = (await robot.submit(effect, effect | {"n": 1})).json()
    assert view["state"] == "ready" and len({seen["effect_id"] for seen in view["effects"]}) == 2


async def test_seq_counts_the_effects_from_one(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank), await mail(bank), await pay(bank, 11))).json()
    assert [(seen["seq"], seen["tool"]) for seen in view["effects"]] == [(1, "pay"), (2, "mail"), (3, "pay")]


async def test_an_independent_effect_is_a_transaction_of_its_own(bank: World, robot: Agent) -> None:
    effect, other = await pay(bank), await pay(bank, 11)
    one = (await robot.submit(effect, independent=True)).json()
    two = (await robot.submit(other, independent=True)).json()
    assert len({one["txn"], two["txn"], names.txn_id(agent=robot.name, run_key="run-1")}) == 3
    assert one["txn"] == names.independent_txn_id(
        agent=robot.name, run_key="run-1", call_key=one["effects"][0]["call_key"]
    )
    assert (one["state"], two["state"]) == ("ready", "ready")


async def test_equal_values_in_other_bytes_are_the_same_call(bank: World, robot: Agent) -> None:
    effect = await pay(bank, 10)
    raw = (
        b'{"run_key":"run-1","effects":[{"args":{"amount":1.0e1,"account":"ac\\u006de"},"tool":"pay","tool_digest":"'
        + effect["tool_digest"].encode()
        + b'"}]}'
    )
    first = (await robot.submit(effect)).json()
    again = await robot.send("POST", "/v1/transactions", raw, headers={"Idempotency-Key": "other"})
    assert again.status_code == 200, again.text
    assert again.json()["effects"][0]["effect_digest"] == first["effects"][0]["effect_digest"]


DENIED = {
    "a tool the bundle does not hold": ("nuke", {}, "0" * 64, "unknown_tool"),
    "another version of a tool": ("pay", {"account": "acme", "amount": 1}, "0" * 64, "tool_changed"),
    "a missing argument": ("pay", {"account": "acme"}, None, "invalid_args"),
    "an argument too many": ("pay", {"account": "acme", "amount": 1, "more": 1}, None, "invalid_args"),
    "an amount that is text": ("pay", {"account": "acme", "amount": "1"}, None, "invalid_args"),
    "an amount that is a fraction": ("pay", {"account": "acme", "amount": 1.5}, None, "invalid_args"),
    "an account that is a list": ("pay", {"account": ["acme"], "amount": 1}, None, "invalid_args"),
    "an empty account": ("pay", {"account": "", "amount": 1}, None, "invalid_args"),
}


@pytest.mark.parametrize(("tool", "args", "digest", "code"), DENIED.values(), ids=DENIED)
async def test_what_cannot_be_weighed_is_denied_and_nothing_of_it_can_be_released(
    bank: World, robot: Agent, tool: str, args: dict[str, Any], digest: str | None, code: str
) -> None:
    effect = {"tool": tool, "tool_digest": digest or await bank.manifest_digest("pay"), "args": args}
    answer = await robot.submit(effect, attempt_id=robot.attempt)
    assert answer.status_code == 201
    view = answer.json()
    assert view["state"] == "ended" and view["releases"] == [] and "receipt" not in view
    reason = view["effects"][0]["decision"]["reasons"][0]
    assert reason["code"] == code and reason["text"]
    assert (await robot.release(view)).json()["code"] == "not_ready"


async def test_one_denied_effect_withdraws_its_siblings(bank: World, robot: Agent) -> None:
    broken = await call(bank, "pay", {"account": "acme"})
    view = (await robot.submit(await pay(bank), broken, await pay(bank, 500))).json()
    assert view["state"] == "ended"
    assert [seen["state"] for seen in view["effects"]] == ["withdrawn", "denied", "withdrawn"]
    assert view["effects"][2]["review"]["state"] == "withdrawn"
    assert view["effects"][0]["decision"]["reasons"][-1]["code"] == "sibling"
