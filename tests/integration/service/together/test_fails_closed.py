"""Fail closed through the whole service: an engine error never releases anything (I-11)."""

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
    """The decision about a submission that would be redeemed at once, and its reason."""
    robot = await bank.fresh()
    view = (await robot.submit(effect, attempt_id=robot.attempt)).json()
    reasons = view["effects"][0]["decision"]["reasons"]
    assert (view["releases"] == []) is (view["state"] != "redeemed")
    return view["state"], reasons[0]["code"] if reasons else None


OVERFLOW = f"context.input.amount * {2**62} > 0"


async def test_an_overflow_is_denied(bank: Bank, capsys: pytest.CaptureFixture[str]) -> None:
    for rule in (
        plain_forbid("sum", OVERFLOW),
        gate("sum", "finance", OVERFLOW),
        f'@id("also") permit (principal, action == Action::"pay", resource) when {{ {OVERFLOW} }};\n',
    ):
        await bank.only(rule)
        assert await decision(bank, await pay(bank, BIG)) == ("ended", "policy_error")
    capsys.readouterr()
    await bank.only(plain_forbid("sum", OVERFLOW))
    view = (await bank.robot.submit(await pay(bank, BIG, account="secret-account"), run_key="reason")).json()
    assert str(2**62) not in json.dumps(view["effects"][0]["decision"]), "it stays with the operator"
    logged = capsys.readouterr().out
    assert "policy_error" in logged and "sum" in logged
    assert "secret-account" not in logged


async def test_a_bundle_without_a_permit_permits_nothing(bank: Bank) -> None:
    for amount in ("500", "much", None, [500], 500.5):  # nor is what is no number below every limit
        effect = await call(bank, "pay", {"account": "a", "amount": amount})
        assert await decision(bank, effect) == ("ended", "invalid_args"), amount
    await bank.policies(gate("ask", "finance"))
    assert await decision(bank, await pay(bank)) == ("ended", "no_permit")


async def test_a_policy_about_an_action_group_applies_to_each_tool(bank: Bank) -> None:
    money = 'forbid (principal, action in Action::"money", resource);\n'
    await bank.only('@id("no-money") ' + money)
    assert await decision(bank, await pay(bank)) == ("ended", "forbidden_by_policy")
    assert await decision(bank, await mail(bank)) == ("redeemed", None)
    await bank.only('@id("ask") @approval("finance") ' + money)
    assert (await decision(bank, await pay(bank)))[0] == "review"


async def taken_back(bank: Bank, tokens: list[str], code: str) -> None:
    """A released effect is denied at its redemption, with this reason."""
    answer = (await bank.robot.redeem(tokens)).json()
    assert answer["redeemed"] is False
    assert answer["transaction"]["effects"][0]["decision"]["reasons"][0]["code"] == code


async def test_a_gate_that_fails_later_denies_at_redemption(bank: Bank) -> None:
    _, tokens = await bank.released(await pay(bank, 50))
    bank.folder.policies(ANYBODY + gate("sum", "finance", f"context.input.amount * {2**60} > 0"))
    assert (await bank.service.active.reload()).changed
    await taken_back(bank, tokens, "policy_error")


async def test_a_typed_value_never_reaches_the_engine(bank: Bank) -> None:
    for key in ("__extn", "__entity", "__expr"):
        typed: Any = {key: {"fn": "unknown", "arg": "x"}}
        for args in (
            {"account": "a", "amount": typed},
            {"account": "a", "amount": 1, "note": typed},
            {"account": "a", "amount": 1, "items": [[{"x": typed}]]},
        ):
            body = {"run_key": "r", "effects": [await call(bank, "pay", args)]}
            for route in ("/v1/transactions", "/v1/evaluations"):
                answer = await bank.robot.send("POST", route, body, headers={"Idempotency-Key": "k"})
                assert refusal(answer) == (400, "reserved_key"), args


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


async def put(bank: Bank, *statements: str) -> None:
    """A fact source about accounts with this content."""
    bank.folder.write("facts.toml", FACTS)
    source = bank.folder.path / "facts/accounts.sqlite"
    source.parent.mkdir(exist_ok=True)
    source.unlink(missing_ok=True)
    with closing(sqlite3.connect(source, isolation_level=None)) as accounts:
        for statement in ("CREATE TABLE accounts (id TEXT, frozen)", *statements):
            accounts.execute(statement)
    await bank.activate()
    assert bank.service.active.status().error is None


UNAVAILABLE = ("ended", "facts_unavailable")


ROWS = {  # what is done to the source, and what a payment to account `acme` becomes
    "INSERT INTO accounts VALUES ('acme', 0)": ("redeemed", None),
    "INSERT INTO accounts VALUES ('acme', 1)": ("ended", "forbidden_by_policy"),
    "DELETE FROM accounts": UNAVAILABLE,
    "INSERT INTO accounts VALUES ('acme', 0), ('acme', 0)": UNAVAILABLE,
    "INSERT INTO accounts VALUES ('acme', NULL)": UNAVAILABLE,
    "INSERT INTO accounts VALUES ('acme', 'maybe')": UNAVAILABLE,
    "INSERT INTO accounts VALUES ('other', 0)": UNAVAILABLE,
    "DROP TABLE accounts": UNAVAILABLE,
}


async def test_a_missing_attribute_is_denied(bank: Bank) -> None:
    bank.folder.policies(ANYBODY + plain_forbid("frozen", "resource.frozen"))
    for change, expected in ROWS.items():
        await put(bank, change)
        assert await decision(bank, await pay(bank)) == expected, change


async def test_facts_that_fail_later_deny_at_redemption(bank: Bank) -> None:
    bank.folder.policies(ANYBODY)
    await put(bank, "INSERT INTO accounts VALUES ('acme', 0)")
    _, tokens = await bank.released(await pay(bank))
    (bank.folder.path / "facts/accounts.sqlite").unlink()
    await taken_back(bank, tokens, "facts_unavailable")


DEEP = [
    "(" * 1_000 + "true" + ")" * 1_000,
    "[" * 1_000 + "]" * 1_000 + ".isEmpty()",
    "if true then " * 1_000 + "true" + " else false" * 1_000,
]


async def test_deeply_nested_policy_text_is_refused(bank: Bank) -> None:
    before = bank.service.active.current.digest
    for condition in DEEP:
        bank.folder.rules(plain_forbid("deep", condition))
        assert await bank.activate() is False
        assert "rules.cedar" in str(bank.service.active.status().error)
        assert bank.service.active.current.digest == before
    assert (await decision(bank, await pay(bank, 500)))[0] == "review"


async def test_a_service_does_not_start_with_deeply_nested_policy_text(tmp_path: Path) -> None:
    folder = Payments(tmp_path / "bundle").rules(plain_forbid("deep", DEEP[0]))
    with pytest.raises(StartError, match=r"rules\.cedar"):
        async with running(tmp_path / "data", folder.path):
            pass
    folder.rules()
    async with running(tmp_path / "data", folder.path) as bank:  # nothing was left half open
        assert await bank.service.db.read(faults_of_log) == []


# More of them in the unit tests of bundles.
BROKEN = [
    '@id("x") @aproval("finance") forbid (principal, action, resource);',
    '@id("x") @approval("no-one") forbid (principal, action, resource);',
    plain_forbid("x", "resource.colour == 1"),
    "allow everything",
]


async def test_an_invalid_bundle_is_never_activated(bank: Bank) -> None:
    before = bank.service.active.current.digest
    for text in BROKEN:
        bank.folder.rules(text)
        assert await bank.activate() is False, text
        assert bank.service.active.current.digest == before, text
