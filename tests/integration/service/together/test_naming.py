"""What the service names itself, and compares with what it is told."""

from __future__ import annotations

from typing import Any

import pytest

from countersign.contract import names
from tests.integration.service.effects import call, mail, pay, ship
from tests.integration.service.together.bank import Bank, refusal

pytestmark = pytest.mark.anyio


async def refused(bank: Bank, *effects: dict[str, Any]) -> tuple[int, str]:
    """How a submission and a dry run of it are refused; both the same."""
    answer = await bank.robot.submit(*effects)
    body = {"run_key": "run-1", "effects": list(effects)}
    dry = await bank.robot.send("POST", "/v1/evaluations", body)
    assert dry.status_code == answer.status_code
    return refusal(answer)


async def test_every_name_follows_from_the_submission(bank: Bank) -> None:
    effect, run = await pay(bank), {"agent": bank.robot.name, "run_key": "run-1"}
    view = (await bank.robot.submit(effect, await mail(bank), await pay(bank, 11))).json()
    key, txn = names.call_key(**run, tool="pay", args=effect["args"], n=0), names.txn_id(**run)
    seen = view["effects"][0]
    assert view["txn"] == txn and seen["call_key"] == key
    assert seen["effect_id"] == names.effect_id(txn=txn, call_key=key)
    assert seen["args_digest"] == names.args_digest(args=effect["args"])
    digests = [one["effect_digest"] for one in view["effects"]]
    assert view["txn_digest"] == names.txn_digest(effect_digests=digests)
    assert seen["resource"] == {"type": "Account", "id": "acme"}
    assert [(one["seq"], one["tool"]) for one in view["effects"]] == [(1, "pay"), (2, "mail"), (3, "pay")]
    one, two = await bank.asks(10, independent=True), await bank.asks(11, independent=True)
    assert len({one["txn"], two["txn"], txn}) == 3, "an independent effect is a transaction of its own"
    assert one["txn"] == names.independent_txn_id(**run, call_key=one["effects"][0]["call_key"])
    assert (one["state"], two["state"]) == ("ready", "ready")


NONE = "0" * 64


async def test_names_that_are_told_must_be_right(bank: Bank) -> None:
    effect, named = await pay(bank), {"agent": bank.robot.name, "run_key": "run-1", "tool": "pay"}
    keys = [names.call_key(**named, args=effect["args"], n=n) for n in (0, 1)]
    for n in (0, 1):
        told = effect | {"call_key": keys[1 - n], "n": n}
        assert await refused(bank, told) == (400, "call_key_mismatch")
    for kind, name in (("Account", "other"), ("Other", "acme"), ("account", "acme")):
        told = effect | {"resource": {"type": kind, "id": name}}
        assert await refused(bank, told) == (400, "resource_mismatch")
    told = effect | {"call_key": keys[0], "resource": {"type": "Account", "id": "acme"}}
    assert (await bank.robot.submit(told)).status_code == 201


async def test_a_list_for_two_redeemers_is_refused(bank: Bank) -> None:
    assert await refused(bank, await pay(bank), await ship(bank)) == (422, "mixed_audience")
    view = (await bank.robot.submit(await ship(bank))).json()
    assert view["aud"] == "warehouse"


async def test_the_same_call_twice_is_refused_unless_it_is_numbered(bank: Bank) -> None:
    effect = await pay(bank)
    assert await refused(bank, effect, effect) == (400, "invalid_request")
    view = (await bank.robot.submit(effect, effect | {"n": 1})).json()
    assert view["state"] == "ready" and len({seen["effect_id"] for seen in view["effects"]}) == 2


async def test_equal_values_in_other_bytes_are_the_same_call(bank: Bank) -> None:
    effect = await pay(bank, 10)
    raw = (
        '{"run_key":"run-1","effects":[{"args":{"amount":1.0e1,"account":"ac\\u006de"},"tool":"pay",'
        f'"tool_digest":"{effect["tool_digest"]}"}}]}}'
    ).encode()
    first = (await bank.robot.submit(effect)).json()
    again = await bank.robot.send("POST", "/v1/transactions", raw, headers={"Idempotency-Key": "other"})
    assert again.status_code == 200, again.text
    assert again.json()["effects"][0]["effect_digest"] == first["effects"][0]["effect_digest"]


DENIED: list[tuple[str, dict[str, Any], str | None, str]] = [
    ("nuke", {}, NONE, "unknown_tool"),
    ("pay", {"account": "acme", "amount": 1}, NONE, "tool_changed"),
    ("pay", {"account": "acme"}, None, "invalid_args"),
    ("pay", {"account": "acme", "amount": 1, "more": 1}, None, "invalid_args"),
    ("pay", {"account": "acme", "amount": "1"}, None, "invalid_args"),
    ("pay", {"account": "acme", "amount": 1.5}, None, "invalid_args"),
    ("pay", {"account": ["acme"], "amount": 1}, None, "invalid_args"),
    ("pay", {"account": "", "amount": 1}, None, "invalid_args"),
]


async def test_what_cannot_be_weighed_is_denied_and_nothing_of_it_can_be_released(bank: Bank) -> None:
    for n, (tool, args, digest, code) in enumerate(DENIED):
        effect = {"tool": tool, "tool_digest": digest or await bank.manifest_digest("pay"), "args": args}
        answer = await bank.robot.submit(effect, run_key=f"run {n}", attempt_id=bank.robot.attempt)
        view = answer.json()
        assert (answer.status_code, view["state"], view["releases"]) == (201, "ended", []), args
        assert "receipt" not in view
        reason = view["effects"][0]["decision"]["reasons"][0]
        assert reason["code"] == code and reason["text"]
        assert refusal(await bank.robot.release(view)) == (409, "not_ready")
    broken = await call(bank, "pay", {"account": "acme"})
    view = (await bank.robot.submit(await pay(bank), broken, await pay(bank, 500))).json()
    assert await bank.states(view) == ["ended", "withdrawn", "denied", "withdrawn"]
    assert view["effects"][2]["review"]["state"] == "withdrawn"
    assert view["effects"][0]["decision"]["reasons"][-1]["code"] == "sibling"
