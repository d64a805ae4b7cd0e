"""Reevaluation only adds requirements; an engine error or a missing fact never releases anything (I-11)."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import datetime
from typing import Any

import pytest

from policy_service.workflow.releases import submit
from tests.fakes.payments import ANYBODY, GROUPS, gate, person, plain_forbid
from tests.integration.service.effects import call, mail, pay
from tests.integration.service.together.bank import Bank, refusal
from tests.integration.service.together.test_revoking import Paused

ONLY_TOMAS = GROUPS | {"finance": ("tomas",)}


async def approved(bank: Bank, **members: Any) -> dict[str, Any]:
    """A payment that Maya approved, ready."""
    view = await bank.asks(**members)
    await bank.maya.vote(view)
    return await bank.robot.see(view["txn"])


async def swapped_unseen(bank: Bank) -> None:
    """Activate the folder's bundle without reevaluating open effects, as in a race."""
    assert (await bank.service.active.reload()).changed


async def needs(bank: Bank, view: dict[str, Any]) -> tuple[str, dict[str, int]]:
    """The state of a transaction, and the votes of the first group of each gate."""
    seen = await bank.robot.see(view["txn"])
    have = {need["groups"][0]: need["have"] for need in seen["effects"][0]["review"]["needs"]}
    return seen["state"], have


async def test_a_new_plain_forbid_denies_at_redemption(bank: Bank) -> None:
    _, tokens = await bank.released(await pay(bank), await mail(bank))
    bank.folder.rules(plain_forbid("no-more-mail", action="mail"))
    await swapped_unseen(bank)
    answer = (await bank.robot.redeem(tokens)).json()
    assert answer["redeemed"] is False and "receipt" not in answer
    assert [seen["state"] for seen in answer["transaction"]["effects"]] == ["withdrawn", "denied"]
    assert answer["transaction"]["effects"][1]["decision"]["reasons"][0]["policy"] == "no-more-mail"
    assert refusal(await bank.robot.redeem(tokens)) == (409, "not_ready"), "no attempt was recorded"


async def test_a_new_plain_forbid_ends_open_effects_at_activation(bank: Bank) -> None:
    ready, waiting = await bank.asks(10), await bank.asks(run_key="other")
    unseen = await bank.asks(run_key="unseen")
    bank.folder.rules(plain_forbid("stop"))
    await swapped_unseen(bank)
    assert (await bank.maya.vote(unseen)).json()["state"] == "denied", "it wins over a vote that would settle"
    await bank.rules(plain_forbid("stop"), "// read again\n")
    for view in (unseen, ready, waiting):
        assert await bank.states(view) == ["ended", "denied"]
    assert (await bank.maya.vote(waiting)).json()["state"] == "denied"


@pytest.mark.parametrize("reevaluated", [True, False])
async def test_a_late_gate_returns_a_released_effect_to_review(bank: Bank, reevaluated: bool) -> None:
    view, tokens = await bank.released(await pay(bank))
    bank.folder.rules(gate("legal-too", "legal", answer_within="2h"))
    await (bank.activate() if reevaluated else swapped_unseen(bank))
    answer = (await bank.robot.redeem(tokens)).json()
    expected = ("not_ready", None) if reevaluated else (None, False)
    assert (answer.get("code"), answer.get("redeemed")) == expected
    back = await bank.robot.see(view["txn"])
    assert (back["state"], back["effects"][0]["state"]) == ("review", "review")
    assert back["effects"][0]["review"]["needs"][0]["groups"] == ["legal"]
    assert (await bank.ingrid.vote(back)).json()["state"] == "met"
    assert refusal(await bank.robot.redeem(tokens)) == (409, "superseded")
    assert (await bank.robot.spend(await bank.robot.see(view["txn"])))["redeemed"] is True


async def test_a_late_gate_reopens_a_settled_review_and_keeps_its_votes(bank: Bank) -> None:
    """A gate whose people have voted already is met at once, and stored."""
    ready = await approved(bank)
    await bank.rules(gate("legal-too", "legal"))
    assert await needs(bank, ready) == ("review", {"finance": 1, "legal": 0})
    back = await bank.robot.see(ready["txn"])
    assert back["effects"][0]["review"]["review_id"] == ready["effects"][0]["review"]["review_id"]
    assert (await bank.ingrid.vote(back)).json()["state"] == "met"
    assert (await bank.states(ready))[0] == "ready"
    await bank.rules()
    ready = await approved(bank, run_key="met")
    await bank.rules(gate("second-look", "finance", valid_for="10m"))
    seen = await bank.robot.see(ready["txn"])
    assert seen["state"] == "ready"
    assert seen["valid_until"] < ready["valid_until"]
    for _ in range(2):
        seen = await bank.robot.see(ready["txn"])
        assert seen["effects"][0]["decision"]["gates"] == ["large", "second-look"]
        await bank.rules()


async def test_a_shorter_valid_for_shortens_existing_releases(bank: Bank) -> None:
    ready = await approved(bank)
    tokens = await bank.tokens(ready)
    bank.folder.rules(gate("second-look", "finance", valid_for="1m"))
    bank.clock.pass_(seconds=90)
    await bank.activate()
    assert (await bank.robot.redeem(tokens)).json().get("redeemed") is not True
    assert (await bank.states(ready))[0] == "ended"


async def test_a_laxer_bundle_keeps_the_gates_of_a_revision(bank: Bank) -> None:
    view, other = await bank.asks(), await bank.asks(run_key="other")
    await bank.only(gate("large", "finance", "context.input.amount > 100", quorum="2"))
    await bank.policies(ANYBODY)
    assert (await bank.states(view))[0] == "review"
    await bank.withdraw(view)
    again = await bank.asks()
    assert (again["rev"], again["state"]) == (2, "ready")
    assert (await bank.maya.vote(other)).json()["state"] == "open", "it asks as its strictest wording"
    assert (await bank.tomas.vote(other)).json()["state"] == "met"


async def test_a_late_gate_with_less_time_shortens_an_open_review(bank: Bank) -> None:
    asked = await bank.asks()
    await bank.rules(gate("legal-too", "legal", answer_within="30m"))
    seen = await bank.robot.see(asked["txn"])
    until, earlier = (view["effects"][0]["review"]["answer_by"] for view in (asked, seen))
    assert earlier < until
    less = {"account": "acme", "amount": 300}
    proposal = await bank.tomas.proposed(seen, less)
    bank.clock.stop_at(datetime.fromisoformat(earlier))
    assert refusal(await bank.maya.propose(seen, less)) == (409, "review_closed")
    assert refusal(await bank.robot.accept(proposal)) == (409, "proposal_closed")
    assert (await bank.maya.vote(seen)).json()["state"] == "expired", "to the moment"


async def test_a_vote_stops_counting_when_its_person_leaves_the_group(bank: Bank) -> None:
    ready = await approved(bank)
    tokens = await bank.tokens(ready)
    bank.folder.people(ONLY_TOMAS)
    await swapped_unseen(bank)
    answer = (await bank.robot.redeem(tokens)).json()
    assert answer["redeemed"] is False
    back = answer["transaction"]["effects"][0]
    have = back["review"]["needs"][0]["have"]
    assert (back["state"], back["review"]["state"], have) == ("review", "open", 0)
    assert (await bank.tomas.vote(ready)).json()["state"] == "met"
    assert len(bank.release_of((await bank.tokens(ready))[0]).decision.votes) == 1


@pytest.mark.parametrize("unseen", [False, True])
async def test_a_vote_counts_again_when_its_person_returns_to_the_group(bank: Bank, unseen: bool) -> None:
    ready = await approved(bank)
    await bank.people(ONLY_TOMAS)
    assert (await bank.states(ready))[0] == "review"
    bank.folder.people(GROUPS)
    if unseen:  # the same vote again settles what it meets by now
        await swapped_unseen(bank)
        assert (await bank.maya.vote(ready)).json()["state"] == "met"
    else:
        await bank.activate()
    assert (await bank.states(ready))[0] == "ready"
    await bank.people(ONLY_TOMAS)  # which has evaluated every open effect before
    assert (await bank.states(ready))[0] == "review"


async def test_a_vote_that_stops_counting_reopens_the_review(bank: Bank) -> None:
    """Also a vote that was late before."""
    ready = await approved(bank)
    assert (await bank.tomas.vote(ready)).json()["state"] == "met"  # too late: it is settled
    await bank.people(ONLY_TOMAS)
    assert (await needs(bank, ready))[1] == {"finance": 0}
    answer = await bank.tomas.vote(ready)
    assert (answer.status_code, answer.json()["state"]) == (200, "met"), answer.text
    assert (await bank.states(ready))[0] == "ready"
    await bank.people(GROUPS)
    ready = await approved(bank, run_key="forbidden")
    await bank.rules(
        '@id("people-may") permit (principal, action == Action::"approve", resource);\n'
        f'@id("not-maya") forbid (principal == User::"{person("maya")}", action == Action::"approve", resource);\n'
    )
    assert await needs(bank, ready) == ("review", {"finance": 0})
    assert (await bank.tomas.vote(ready)).json()["state"] == "met"


@pytest.mark.parametrize("asked_before", [False, True])
async def test_a_reopened_review_has_a_new_deadline(bank: Bank, asked_before: bool) -> None:
    ready = await approved(bank) if asked_before else await bank.asks(10)
    bank.clock.pass_(minutes=50)
    await bank.rules(gate("legal-too", "legal", answer_within="30m"))
    for minutes, state in ((20, "review"), (10, "expired")):
        bank.clock.pass_(minutes=minutes)
        await bank.sweep()
        assert (await bank.states(ready))[1] == state


async def test_a_removed_tool_is_denied_despite_approvals(bank: Bank) -> None:
    ready = await approved(bank)
    manifest = (bank.folder.path / "tools/pay.json").read_text()
    await bank.write("tools/pay.json", manifest.replace('"Pay"', '"Pay somebody"'))
    assert await bank.states(ready) == ["ended", "denied"]
    ended = (await bank.robot.see(ready["txn"]))["effects"][0]
    assert ended["decision"]["reasons"][0]["code"] == "tool_changed"


async def test_an_invalid_bundle_leaves_the_last_valid_one_active(bank: Bank) -> None:
    before = bank.service.active.current.digest
    bank.folder.policies("permit (principal, action, resource")
    assert await bank.activate() is False
    view = await bank.asks()
    assert view["state"] == "review" and view["effects"][0]["decision"]["bundle"] == before
    health = await bank.http.get("/readyz")
    assert (health.status_code, health.json()["status"]) == (200, "degraded")
    assert [found["check"] for found in health.json()["findings"]] == ["bundle"]
    await bank.rules()
    assert (await bank.http.get("/readyz")).json()["status"] == "ok"


async def test_a_request_is_decided_by_the_bundle_activated_meanwhile(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Facts are gathered for one bundle; if another is active at the decision, everything is repeated."""
    asked = bank.robot.submit(await pay(bank))
    bank.folder.rules(plain_forbid("stop"))
    view = (await Paused(submit, monkeypatch).until(asked, swapped_unseen(bank))).json()
    assert view["state"] == "ended", view
    assert view["effects"][0]["decision"]["reasons"][0]["policy"] == "stop"
    assert view["effects"][0]["decision"]["bundle"] == bank.service.active.current.digest


# -- Fail closed through the whole service: an engine error never releases anything (I-11)

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
        for odd in ({"amount": typed}, {"note": typed}, {"items": [[{"x": typed}]]}):
            args = {"account": "a", "amount": 1, **odd}
            body = {"run_key": "r", "effects": [await call(bank, "pay", args)]}
            for route in ("/v1/transactions", "/v1/evaluations"):
                answer = await bank.robot.send("POST", route, body, headers={"Idempotency-Key": "k"})
                assert refusal(answer) == (400, "reserved_key"), args


FROZEN_FACTS = """
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
    bank.folder.write("facts.toml", FROZEN_FACTS)
    source = bank.folder.path / "facts/accounts.sqlite"
    source.parent.mkdir(exist_ok=True)
    source.unlink(missing_ok=True)
    with closing(sqlite3.connect(source, isolation_level=None)) as accounts:
        for statement in ("CREATE TABLE accounts (id TEXT, frozen)", *statements):
            accounts.execute(statement)
    await bank.activate()
    assert bank.service.active.status().error is None


ROWS = {  # what is done to the source, and the decision; more of them: tests/unit/facts/test_sources.py
    "INSERT INTO accounts VALUES ('acme', 0)": ("redeemed", None),
    "INSERT INTO accounts VALUES ('acme', 1)": ("ended", "forbidden_by_policy"),
    "DELETE FROM accounts": ("ended", "facts_unavailable"),
    "INSERT INTO accounts VALUES ('acme', NULL)": ("ended", "facts_unavailable"),
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
