"""Another party learns nothing: what is not its own does not exist for it."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from sqlalchemy import select

from policy_service.storage.core import table
from policy_service.storage.plumbing import AuditRow
from tests.fakes.world import Agent, World
from tests.integration.service.effects import pay, ship

pytestmark = pytest.mark.anyio


def routes(view: dict[str, Any]) -> list[tuple[str, str, dict[str, Any] | None]]:
    """Every route that names somebody's transaction."""
    txn, effect_id = f"/v1/transactions/{view['txn']}", view["effects"][0]["effect_id"]
    fired = [{"effect_id": effect_id, "outcome": "fired"}]
    return [
        ("GET", txn, None),
        ("POST", f"{txn}/withdraw", {}),
        ("POST", f"{txn}/release", {"rev": 1}),
        ("POST", f"{txn}/compensate", {"effect_id": effect_id}),
        ("POST", "/v1/redemptions/a1/renew", {"effect_ids": [effect_id]}),
        ("POST", "/v1/outcomes", {"attempt_id": "a1", "outcomes": fired}),
    ]


async def test_a_stranger_gets_the_answer_of_a_transaction_that_does_not_exist(
    bank: World, robot: Agent
) -> None:
    stranger = await bank.agent("stranger")
    view = (await robot.submit(await pay(bank), attempt_id="a1")).json()
    nothing = {**view, "txn": "0" * 64}
    for theirs, absent in zip(routes(view), routes(nothing), strict=True):
        answer, reference = (
            await stranger.send(*theirs[:2], theirs[2]),
            await stranger.send(*absent[:2], absent[2]),
        )
        assert (answer.status_code, reference.status_code) == (404, 404), answer.text
        details = {
            one.json()["detail"].replace(view["txn"], "X").replace("0" * 64, "X")
            for one in (answer, reference)
        }
        assert len(details) == 1, details
    for path, body in (("/v1/redemptions/none/renew", {"effect_ids": ["0" * 64]}), routes(view)[-1][1:]):
        unknown = await stranger.send("POST", path, body)
        assert unknown.json()["code"] == "unknown_attempt"
    await bank.service.sequencer.number()
    assert (await stranger.send("GET", "/v1/audit")).json()["rows"] == []
    assert (await robot.send("GET", "/v1/audit")).json()["rows"] != []


async def test_a_redeemer_sees_the_transaction_and_may_not_withdraw_it(bank: World, robot: Agent) -> None:
    warehouse = await bank.agent("warehouse")
    view = (await robot.submit(await ship(bank))).json()
    assert (await warehouse.see(view["txn"]))["state"] == "ready"
    answer = await warehouse.send("POST", f"/v1/transactions/{view['txn']}/withdraw", {})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


async def test_the_agent_may_not_spend_what_another_party_redeems(bank: World, robot: Agent) -> None:
    warehouse = await bank.agent("warehouse")
    view = (await robot.submit(await ship(bank), attempt_id="a1")).json()
    assert view["state"] == "ready" and view["releases"] == []
    refused = await robot.release(view)
    assert (refused.status_code, refused.json()["code"]) == (403, "not_redeemer")
    released = (await warehouse.release(view)).json()
    stolen = await robot.redeem(released["releases"], "a2")
    assert (stolen.status_code, stolen.json()["code"]) == (403, "not_redeemer")
    assert (await warehouse.redeem(released["releases"], "a3")).json()["redeemed"] is True
    fired = {"effect_id": view["effects"][0]["effect_id"], "outcome": "fired"}
    lie = await robot.report("a3", fired)
    assert (lie.status_code, lie.json()["code"]) == (404, "unknown_attempt")  # not one of its own
    assert (await warehouse.report("a3", fired)).json()["state"] == "settled"
    renewed = await robot.send("POST", "/v1/redemptions/a3/renew", {"effect_ids": [fired["effect_id"]]})
    assert (renewed.status_code, renewed.json()["code"]) == (404, "unknown_attempt")
    path, body = f"/v1/transactions/{view['txn']}/compensate", {"effect_id": fired["effect_id"]}
    answer = await robot.send("POST", path, body)
    assert (answer.status_code, answer.json()["code"]) == (403, "not_redeemer")


async def test_a_frozen_agent_submits_releases_redeems_and_renews_nothing(bank: World, robot: Agent) -> None:
    begun = await robot.submit(await pay(bank), run_key="begun", attempt_id="begun")
    effects = [begun.json()["effects"][0]["effect_id"]]
    view = (await robot.submit(await pay(bank))).json()
    tokens = (await robot.release(view)).json()["releases"]

    async def answers() -> list[httpx2.Response]:
        return [
            await robot.submit(await pay(bank), run_key="other"),
            await robot.release(view),
            await robot.redeem(tokens),
            await robot.send("POST", "/v1/redemptions/begun/renew", {"effect_ids": effects}),
        ]

    for _ in range(2):
        await bank.operator("freeze", {"agent": robot.name})
    for answer in await answers():
        assert (answer.status_code, answer.json()["code"]) == (403, "frozen")
        assert "policy-service unfreeze agent robot" in answer.json()["detail"]
    assert (await robot.see(view["txn"]))["state"] == "ready"
    other = await bank.agent("of-nobodys-concern")
    assert (await other.submit(await pay(bank))).status_code == 201
    for _ in range(2):
        await bank.operator("unfreeze", {"agent": robot.name})
    assert [answer.is_success for answer in await answers()] == [True] * 4
    log = table(AuditRow).c
    query = select(log.kind, log.actor, log.body).where(log.kind.in_(["agent_frozen", "agent_unfrozen"]))
    found = await bank.service.db.read(lambda conn: conn.execute(query.order_by(log.audit_id)).all())
    assert [(kind, actor, json.loads(body)) for kind, actor, body in found] == [
        ("agent_frozen", "operator", {"agent": "robot"}),
        ("agent_unfrozen", "operator", {"agent": "robot"}),
    ]
