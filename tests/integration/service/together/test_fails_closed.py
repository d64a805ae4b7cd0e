"""Doubt is a refusal, through the whole service: what makes the engine err never releases anything (I-11)."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from policy_service.errors import StartError
from tests.fakes.log_check import faults_of_log
from tests.fakes.payments import ANYBODY, Payments, gate, plain_forbid
from tests.fakes.world import running
from tests.integration.service.effects import call, mail, pay
from tests.integration.service.together.bank import Bank, refusal

pytestmark = pytest.mark.anyio

BIG = 2**53 - 1


async def decision(bank: Bank, effect: dict[str, Any]) -> tuple[str, str | None]:
    """How a submission that would be spent at once is decided, and why not."""
    view = (await bank.robot.submit(effect, attempt_id=bank.robot.attempt)).json()
    reasons = view["effects"][0]["decision"]["reasons"]
    assert (view["releases"] == []) is (view["state"] != "redeemed")
    return view["state"], reasons[0]["code"] if reasons else None


OVERFLOW = f"context.input.amount * {2**62} > 0"


@pytest.mark.parametrize(
    "rule",
    [
        plain_forbid("sum", OVERFLOW),
        gate("sum", "finance", OVERFLOW),
        f'@id("also") permit (principal, action == Action::"pay", resource) when {{ {OVERFLOW} }};\n',
    ],
    ids=["in a plain forbid", "in a gate", "in a permit beside one that holds"],
)
async def test_an_overflow_is_a_denial_and_not_a_rule_that_does_not_fire(bank: Bank, rule: str) -> None:
    await bank.only(rule)
    assert await decision(bank, await pay(bank, BIG)) == ("ended", "policy_error")


async def test_a_bundle_without_a_permit_permits_nothing(bank: Bank) -> None:
    await bank.policies(gate("ask", "finance"))
    assert await decision(bank, await pay(bank)) == ("ended", "no_permit")


async def test_a_rule_about_a_group_of_tools_holds_for_each_of_them(bank: Bank) -> None:
    money = 'forbid (principal, action in Action::"money", resource);\n'
    await bank.only('@id("no-money") ' + money)
    assert await decision(bank, await pay(bank)) == ("ended", "forbidden_by_policy")
    view = (await bank.robot.submit(await mail(bank), run_key="other")).json()
    assert view["state"] == "ready"
    await bank.only('@id("ask") @approval("finance") ' + money)
    assert (await decision(bank, await pay(bank)))[0] == "review"


async def test_a_gate_that_errs_later_takes_the_release_back(bank: Bank) -> None:
    view = (await bank.robot.submit(await pay(bank, 50))).json()
    tokens = (await bank.robot.release(view)).json()["releases"]
    bank.folder.policies(ANYBODY + gate("sum", "finance", f"context.input.amount * {2**60} > 0"))
    assert (await bank.service.active.reload()).changed
    answer = (await bank.robot.redeem(tokens)).json()
    assert answer["redeemed"] is False
    assert answer["transaction"]["effects"][0]["decision"]["reasons"][0]["code"] == "policy_error"


async def test_what_the_engine_said_stays_with_the_operator(
    bank: Bank, capsys: pytest.CaptureFixture[str]
) -> None:
    await bank.policies(ANYBODY + plain_forbid("sum", OVERFLOW))
    view = (await bank.robot.submit(await pay(bank, BIG, account="secret-account"))).json()
    assert str(2**62) not in json.dumps(view["effects"][0]["decision"])
    logged = capsys.readouterr().out
    assert "policy_error" in logged and "sum" in logged
    assert "secret-account" not in logged


async def test_an_amount_that_is_no_number_is_a_denial_and_not_a_gate_that_does_not_fire(bank: Bank) -> None:
    for amount in ("500", "much", None, [500], 500.5):
        effect = await call(bank, "pay", {"account": "a", "amount": amount})
        assert await decision(bank, effect) == ("ended", "invalid_args"), amount


@pytest.mark.parametrize("key", ["__extn", "__entity", "__expr"])
async def test_a_typed_value_never_reaches_the_engine(bank: Bank, key: str) -> None:
    typed: Any = {key: {"fn": "unknown", "arg": "x"}}
    places: dict[str, dict[str, Any]] = {
        "the amount": {"account": "a", "amount": typed},
        "a free field": {"account": "a", "amount": 1, "note": typed},
        "deep inside": {"account": "a", "amount": 1, "items": [[{"x": typed}]]},
    }
    for where, args in places.items():
        body = {"run_key": "r", "effects": [await call(bank, "pay", args)]}
        for route in ("/v1/transactions", "/v1/evaluations"):
            answer = await bank.robot.send("POST", route, body, headers={"Idempotency-Key": "k"})
            assert refusal(answer) == (400, "reserved_key"), where


FACTS = """
[entities.Account.attributes]
frozen = "Bool"

[[source]]
name = "accounts"
kind = "sql"
path = "facts/accounts.sqlite"
entity = "Account"
query = "SELECT frozen FROM accounts WHERE id = :resource_id"
"""

ROWS = {  # rows of the source for account `acme`, and what a payment to it becomes
    "a row that answers": ("INSERT INTO accounts VALUES ('acme', 0)", ("redeemed", None)),
    "a row that says no": ("INSERT INTO accounts VALUES ('acme', 1)", ("ended", "forbidden_by_policy")),
    "no row": ("DELETE FROM accounts", ("ended", "facts_unavailable")),
    "two rows": ("INSERT INTO accounts VALUES ('acme', 0), ('acme', 0)", ("ended", "facts_unavailable")),
    "a null": ("INSERT INTO accounts VALUES ('acme', NULL)", ("ended", "facts_unavailable")),
    "a value of another type": ("INSERT INTO accounts VALUES ('acme', 'maybe')", ("ended", "facts_unavailable")),
    "a row of somebody else": ("INSERT INTO accounts VALUES ('other', 0)", ("ended", "facts_unavailable")),
    "a table that is gone": ("DROP TABLE accounts", ("ended", "facts_unavailable")),
}  # fmt: skip


@pytest.mark.parametrize(("change", "expected"), ROWS.values(), ids=ROWS)
async def test_a_missing_attribute_is_a_denial_and_not_a_forbid_that_is_skipped(
    bank: Bank, change: str, expected: tuple[str, str | None]
) -> None:
    bank.folder.write("facts.toml", FACTS).policies(ANYBODY + plain_forbid("frozen", "resource.frozen"))
    (bank.folder.path / "facts").mkdir(exist_ok=True)
    with closing(sqlite3.connect(bank.folder.path / "facts/accounts.sqlite")) as accounts:
        accounts.execute("CREATE TABLE accounts (id TEXT, frozen)")
        accounts.execute(change)
        accounts.commit()
    assert await bank.activate(), bank.service.active.status().error
    assert await decision(bank, await pay(bank)) == expected


async def test_facts_that_fail_later_take_the_release_back(bank: Bank) -> None:
    bank.folder.write("facts.toml", FACTS).policies(ANYBODY)
    (bank.folder.path / "facts").mkdir(exist_ok=True)
    with closing(sqlite3.connect(bank.folder.path / "facts/accounts.sqlite")) as accounts:
        accounts.execute("CREATE TABLE accounts AS SELECT 'acme' AS id, 0 AS frozen")
    assert await bank.activate(), bank.service.active.status().error
    view = (await bank.robot.submit(await pay(bank))).json()
    tokens = (await bank.robot.release(view)).json()["releases"]
    (bank.folder.path / "facts/accounts.sqlite").unlink()
    answer = (await bank.robot.redeem(tokens)).json()
    assert answer["redeemed"] is False
    assert answer["transaction"]["effects"][0]["decision"]["reasons"][0]["code"] == "facts_unavailable"


DEEP = {
    "round brackets": "(" * 1_000 + "true" + ")" * 1_000,
    "square brackets": "[" * 1_000 + "]" * 1_000 + ".isEmpty()",
    "conditions": "if true then " * 1_000 + "true" + " else false" * 1_000,
}


@pytest.mark.parametrize("condition", DEEP.values(), ids=DEEP)
async def test_policy_text_a_thousand_deep_is_refused_and_the_process_lives(
    bank: Bank, condition: str
) -> None:
    before = bank.service.active.current.digest
    bank.folder.rules(plain_forbid("deep", condition))
    assert await bank.activate() is False
    assert "rules.cedar" in str(bank.service.active.status().error)
    assert bank.service.active.current.digest == before
    assert (await decision(bank, await pay(bank, 500)))[0] == "review"


async def test_a_service_does_not_start_on_such_a_text_and_says_why(tmp_path: Path) -> None:
    folder = Payments(tmp_path / "bundle").rules(plain_forbid("deep", DEEP["round brackets"]))
    with pytest.raises(StartError, match=r"rules\.cedar"):
        async with running(tmp_path / "data", folder.path):
            pass
    folder.rules()
    async with running(tmp_path / "data", folder.path) as bank:  # nothing was left half open
        assert await bank.service.db.read(faults_of_log) == []


BROKEN = {
    "an unknown annotation": '@id("x") @aproval("finance") forbid (principal, action, resource);',
    "a gate without a group that exists": '@id("x") @approval("nobody") forbid (principal, action, resource);',
    "a quorum of zero": gate("x", "finance", quorum="0"),
    "a policy without id": "permit (principal, action, resource);",
    "an id twice": gate("x", "finance") + gate("x", "finance"),
    "an attribute nobody gives": plain_forbid("x", "resource.colour == 1"),
    "an action nobody has": '@id("x") forbid (principal, action == Action::"fly", resource);',
    "a comparison of a number with a text": plain_forbid("x", 'context.input.amount > "1"'),
    "no policy language": "allow everything",
}


async def test_a_bundle_with_a_mistake_is_never_active(bank: Bank) -> None:
    before = bank.service.active.current.digest
    for what, text in BROKEN.items():
        bank.folder.rules(text)
        assert await bank.activate() is False, what
        assert bank.service.active.current.digest == before, what
