"""A dry run: what would be decided now. Nothing is stored, nobody is told, nothing is promised."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, func, select
from sqlmodel import SQLModel

from tests.fakes.payments import Payments, gate
from tests.fakes.world import Agent, World
from tests.integration.service.effects import call, mail, pay

pytestmark = pytest.mark.anyio


def sizes(conn: Connection) -> dict[str, int]:
    """How many rows every table has."""
    tables = SQLModel.metadata.tables
    return {
        name: conn.execute(select(func.count()).select_from(table)).scalar_one()
        for name, table in tables.items()
    }


async def evaluated(robot: Agent, *effects: dict[str, Any], **members: Any) -> list[dict[str, Any]]:
    answer = await robot.send(
        "POST", "/v1/evaluations", {"run_key": "r", "effects": list(effects), **members}
    )
    assert answer.status_code == 200, answer.text
    decisions: list[dict[str, Any]] = [effect["decision"] for effect in answer.json()["effects"]]
    return decisions


async def test_a_dry_run_answers_as_a_submission_would(bank: World, robot: Agent) -> None:
    effects = [
        await pay(bank),
        await pay(bank, 500),
        await mail(bank),
        await call(bank, "pay", {"account": "a"}),
    ]
    dry = await evaluated(robot, *effects)
    real = [seen["decision"] for seen in (await robot.submit(*effects)).json()["effects"]]
    assert [d["outcome"] for d in dry] == ["release", "review", "release", "deny"]
    for one, other in zip(dry, real, strict=True):
        for member in ("outcome", "policies", "gates", "bundle", "commit", "unseen"):
            assert one[member] == other[member]
    assert dry[3]["reasons"][0]["code"] == "invalid_args"


async def test_a_dry_run_names_the_groups_a_review_would_ask(bank: World, robot: Agent) -> None:
    """As the review of the real submission names them."""
    effects = [await pay(bank), await pay(bank, 500)]
    dry = await robot.send("POST", "/v1/evaluations", {"run_key": "r", "effects": effects})
    real = (await robot.submit(*effects)).json()["effects"]
    released, asked = (one.get("needs", []) for one in dry.json()["effects"])
    assert released == []
    assert asked == real[1]["review"]["needs"] != []


async def test_a_dry_run_stores_nothing(bank: World, robot: Agent) -> None:
    await bank.service.sequencer.number()
    before = await bank.service.db.read(sizes)
    await evaluated(robot, await pay(bank), await pay(bank, 500))
    assert await bank.service.db.read(sizes) == before
    assert (await robot.submit(await pay(bank, 500), run_key="r")).status_code == 201


async def test_a_dry_run_says_nothing_about_what_was_submitted(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, 500), run_key="r")).json()
    maya = await bank.person("maya")
    await maya.vote(view)
    (decision,) = await evaluated(robot, await pay(bank, 500))
    assert decision["outcome"] == "review" and decision["decision_id"] == "dry-run"


async def test_a_dry_run_follows_the_bundle_in_force(bank: World, folder: Payments, robot: Agent) -> None:
    folder.rules(gate("late", "legal"))
    await bank.activate()
    (decision,) = await evaluated(robot, await pay(bank))
    assert decision["gates"] == ["late"]


async def test_what_the_agent_claims_is_weighed_as_a_claim(
    bank: World, folder: Payments, robot: Agent
) -> None:
    folder.rules(
        gate("if-told", "legal", 'context.claimed has purpose && context.claimed.purpose == "bribe"')
    )
    await bank.activate()
    (plain,) = await evaluated(robot, await pay(bank))
    (told,) = await evaluated(robot, await pay(bank), claimed={"purpose": "bribe"})
    assert (plain["outcome"], told["outcome"]) == ("release", "review")


async def test_an_attempt_has_no_place_in_a_dry_run(bank: World, robot: Agent) -> None:
    body = {"run_key": "r", "effects": [await pay(bank)], "attempt_id": "a1"}
    answer = await robot.send("POST", "/v1/evaluations", body)
    assert (answer.status_code, answer.json()["code"]) == (400, "unknown_field")
