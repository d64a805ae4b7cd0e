"""U+0000, which PostgreSQL cannot store as text and SQLite can: the same answer on each, and never a fault."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import httpx2
import pytest

from countersign.contract import PrivateKey
from tests.fakes.world import Agent, World
from tests.integration.service.effects import mail, pay

pytestmark = pytest.mark.anyio

NUL = "\0"


async def in_run_key(bank: World, robot: Agent) -> httpx2.Response:
    return await robot.submit(await pay(bank), run_key=f"r{NUL}")


async def in_attempt(bank: World, robot: Agent) -> httpx2.Response:
    return await robot.submit(await pay(bank), attempt_id=f"a{NUL}")


async def in_resource(bank: World, robot: Agent) -> httpx2.Response:
    return await robot.submit(await pay(bank, account=f"acme{NUL}"))


async def in_withdrawal(bank: World, robot: Agent) -> httpx2.Response:
    view = (await robot.submit(await pay(bank, 500))).json()
    return await robot.send("POST", f"/v1/transactions/{view['txn']}/withdraw", {"reason": f"no{NUL}"})


async def in_vote(bank: World, robot: Agent) -> httpx2.Response:
    view = (await robot.submit(await pay(bank, 500))).json()
    return await (await bank.person("maya")).vote(view, "deny", reason=f"no{NUL}")


async def in_report(bank: World, robot: Agent) -> httpx2.Response:
    view = (await robot.submit(await pay(bank), attempt_id=robot.attempt)).json()
    effect_id = view["effects"][0]["effect_id"]
    return await robot.report(
        robot.attempt, {"effect_id": effect_id, "outcome": "failed", "error": f"e{NUL}"}
    )


async def in_path(bank: World, robot: Agent) -> httpx2.Response:
    return await robot.send("POST", "/v1/redemptions/a%00/renew", {"effect_ids": ["0" * 64]})


async def in_query(bank: World, robot: Agent) -> httpx2.Response:
    maya = await bank.person("maya")
    return await maya.get("/v1/tasks?cursor=a%00")


async def in_page(bank: World, robot: Agent) -> httpx2.Response:
    maya = await bank.person("maya")
    return await maya.get("/reviews/a%00")


Send = Callable[[World, Agent], Awaitable[httpx2.Response]]
PLACES: dict[str, Send] = {
    "the run key": in_run_key,
    "the attempt": in_attempt,
    "the resource": in_resource,
    "the reason of a withdrawal": in_withdrawal,
    "the reason of a vote": in_vote,
    "the error of a report": in_report,
    "a path": in_path,
    "a query": in_query,
    "the address of a page": in_page,
}


@pytest.mark.parametrize("send", PLACES.values(), ids=PLACES)
async def test_text_that_holds_it_is_refused(bank: World, robot: Agent, send: Send) -> None:
    answer = await send(bank, robot)
    assert answer.status_code == 400, answer.text


async def test_an_agent_of_such_a_name_is_nobody(bank: World, robot: Agent) -> None:
    stranger = Agent(f"robot{NUL}", PrivateKey.generate(), bank.http, bank.clock)
    assert (await stranger.submit(await pay(bank))).status_code in {400, 401}


async def test_in_args_it_is_data_like_any_other(bank: World, robot: Agent) -> None:
    text = f"a{NUL}b"
    claimed = {"purpose": text}
    view = (await robot.submit(await mail(bank, text), claimed=claimed, attempt_id=robot.attempt)).json()
    assert view["state"] == "redeemed"
    effect_id = view["effects"][0]["effect_id"]
    told = await robot.report(
        robot.attempt, {"effect_id": effect_id, "outcome": "fired", "result": {"id": text}}
    )
    assert told.json()["state"] == "settled"
    seen = (await robot.see(view["txn"]))["effects"][0]
    assert seen["args"]["text"] == text


async def test_a_reason_may_quote_it_from_the_args(bank: World, robot: Agent) -> None:
    refused = await mail(bank)
    refused["args"][f"odd{NUL}"] = NUL
    view = (await robot.submit(refused)).json()
    assert view["effects"][0]["decision"]["outcome"] == "deny"
