"""U+0000, which PostgreSQL cannot store as text and SQLite can: the same answer on each, and never a fault."""

from __future__ import annotations

import pytest

from countersign.contract import PrivateKey
from tests.fakes.world import Agent
from tests.integration.service.effects import mail, pay
from tests.integration.service.together.bank import Bank

pytestmark = pytest.mark.anyio

NUL = "\0"


async def test_text_that_holds_it_is_refused(bank: Bank) -> None:
    robot, maya = bank.robot, bank.maya
    asked = (await robot.submit(await pay(bank, 500), run_key="asked")).json()
    spent = (await robot.submit(await pay(bank), run_key="spent", attempt_id=robot.attempt)).json()
    failed = {"effect_id": spent["effects"][0]["effect_id"], "outcome": "failed", "error": f"e{NUL}"}
    withdraw = f"/v1/transactions/{asked['txn']}/withdraw"
    answers = {
        "the run key": robot.submit(await pay(bank), run_key=f"r{NUL}"),
        "the attempt": robot.submit(await pay(bank), attempt_id=f"a{NUL}"),
        "the resource": robot.submit(await pay(bank, account=f"acme{NUL}")),
        "the reason of a withdrawal": robot.send("POST", withdraw, {"reason": f"no{NUL}"}),
        "the reason of a vote": maya.vote(asked, "deny", reason=f"no{NUL}"),
        "the error of a report": robot.report(robot.attempt, failed),
        "a path": robot.send("POST", "/v1/redemptions/a%00/renew", {"effect_ids": ["0" * 64]}),
        "a query": maya.get("/v1/tasks?cursor=a%00"),
        "the address of a page": maya.get("/reviews/a%00"),
    }
    assert {where: (await answer).status_code for where, answer in answers.items()} == dict.fromkeys(
        answers, 400
    )


async def test_an_agent_of_such_a_name_is_nobody(bank: Bank) -> None:
    stranger = Agent(f"robot{NUL}", PrivateKey.generate(), bank.http, bank.clock)
    assert (await stranger.submit(await pay(bank))).status_code in {400, 401}


async def test_in_args_it_is_data_like_any_other(bank: Bank) -> None:
    text, attempt = f"a{NUL}b", bank.robot.attempt
    answer = await bank.robot.submit(await mail(bank, text), claimed={"purpose": text}, attempt_id=attempt)
    view = answer.json()
    assert view["state"] == "redeemed"
    fired = {"effect_id": view["effects"][0]["effect_id"], "outcome": "fired", "result": {"id": text}}
    assert (await bank.robot.report(attempt, fired)).json()["state"] == "settled"
    assert (await bank.robot.see(view["txn"]))["effects"][0]["args"]["text"] == text
    refused = await mail(bank)
    refused["args"][f"odd{NUL}"] = NUL
    view = (await bank.robot.submit(refused, run_key="quoted")).json()
    assert view["effects"][0]["decision"]["outcome"] == "deny", "a reason may quote it"
