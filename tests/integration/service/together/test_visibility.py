"""Another party learns nothing: what is not its own does not exist for it."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from sqlalchemy import select

from policy_service.storage.core import table
from policy_service.storage.plumbing import AuditRow
from tests.integration.service.effects import pay, ship
from tests.integration.service.together.bank import Bank, refusal

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


async def test_a_stranger_gets_the_answer_of_a_transaction_that_does_not_exist(bank: Bank) -> None:
    stranger = await bank.agent(f"{bank.robot.name}-stranger")
    view = await bank.asks(10, attempt_id="a1")
    for theirs, absent in zip(routes(view), routes({**view, "txn": "0" * 64}), strict=True):
        answers = [await stranger.send(*theirs[:2], theirs[2]), await stranger.send(*absent[:2], absent[2])]
        assert [answer.status_code for answer in answers] == [404, 404]
        details = [one.json()["detail"].replace(view["txn"], "X").replace("0" * 64, "X") for one in answers]
        assert details[0] == details[1]
    for path, body in (("/v1/redemptions/none/renew", {"effect_ids": ["0" * 64]}), routes(view)[-1][1:]):
        assert refusal(await stranger.send("POST", path, body)) == (404, "unknown_attempt")
    await bank.service.sequencer.number()
    assert (await stranger.send("GET", "/v1/audit")).json()["rows"] == []
    assert (await bank.robot.send("GET", "/v1/audit")).json()["rows"] != []


async def test_the_agent_may_not_spend_what_another_party_redeems(bank: Bank) -> None:
    """Nor may that party withdraw it."""
    robot, warehouse = bank.robot, await bank.agent("warehouse")
    view = (await robot.submit(await ship(bank), attempt_id="a1")).json()
    assert view["state"] == "ready" and view["releases"] == []
    txn = f"/v1/transactions/{view['txn']}"
    assert (await warehouse.see(view["txn"]))["state"] == "ready"
    assert refusal(await warehouse.send("POST", f"{txn}/withdraw", {})) == (403, "forbidden")
    assert refusal(await robot.release(view)) == (403, "not_redeemer")
    released = (await warehouse.release(view)).json()["releases"]
    assert refusal(await robot.redeem(released, "a2")) == (403, "not_redeemer")
    assert (await warehouse.redeem(released, "a3")).json()["redeemed"] is True
    fired = {"effect_id": view["effects"][0]["effect_id"], "outcome": "fired"}
    assert refusal(await robot.report("a3", fired)) == (404, "unknown_attempt")  # not one of its own
    assert (await warehouse.report("a3", fired)).json()["state"] == "settled"
    renewed = await robot.send("POST", "/v1/redemptions/a3/renew", {"effect_ids": [fired["effect_id"]]})
    assert refusal(renewed) == (404, "unknown_attempt")
    undone = await robot.send("POST", f"{txn}/compensate", {"effect_id": fired["effect_id"]})
    assert refusal(undone) == (403, "not_redeemer")


async def test_a_frozen_agent_submits_releases_redeems_and_renews_nothing(bank: Bank) -> None:
    robot = bank.robot
    begun = await bank.asks(10, run_key="begun", attempt_id="begun")
    effects = [begun["effects"][0]["effect_id"]]
    view, tokens = await bank.released(await pay(bank))

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
        assert refusal(answer) == (403, "frozen")
        assert f"policy-service unfreeze agent {robot.name}" in answer.json()["detail"]
    assert (await bank.states(view))[0] == "ready"
    other = await bank.agent(f"{robot.name}-of-nobodys-concern")
    assert (await bank.asks(10, robot=other))["state"] == "ready"
    for _ in range(2):
        await bank.operator("unfreeze", {"agent": robot.name})
    assert [answer.is_success for answer in await answers()] == [True] * 4
    log = table(AuditRow).c
    query = select(log.kind, log.actor, log.body).where(log.kind.in_(["agent_frozen", "agent_unfrozen"]))
    found = await bank.service.db.read(lambda conn: conn.execute(query.order_by(log.audit_id)).all())
    mine = [(kind, actor) for kind, actor, body in found if json.loads(body) == {"agent": robot.name}]
    assert mine == [("agent_frozen", "operator"), ("agent_unfrozen", "operator")]
