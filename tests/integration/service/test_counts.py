"""The cost of each verb in calls, on both engines, is the table `counts.txt`. No time is measured."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from countersign import MemoryAdapter, tool
from countersign.journal.location import JournalUrl
from policy_service.app import Service
from tests.counterparts import postgres
from tests.fakes.desk import make_desk, refund_tool
from tests.fakes.service_http import Face
from tests.fakes.world import World, running
from tests.integration.service.counting import Calls, Row, difference, require_unchanged
from tests.integration.service.effects import refund
from tests.unit.storage.databases import BOTH

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("engine", BOTH)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Counts, from before anything is connected."""
    return Calls(monkeypatch)


# ------------------------------------------------------------------------------------------------- the service


async def test_service_verbs_cost_what_the_table_says(
    calls: Calls, engine: str, database: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = asyncio.all_tasks()
    monkeypatch.setattr(Service, "_jobs", lambda _: [])
    async with AsyncExitStack() as stack:
        started = await stack.enter_async_context(running(tmp_path / "data", **database))
        loops = asyncio.all_tasks() - others
        for loop in loops:
            loop.cancel()  # they send statements at any time, as the jobs do
        await asyncio.gather(*loops, return_exceptions=True)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            with calls.counting():
                await started.app(scope, receive, send)

        transport = httpx2.ASGITransport(app)
        http = httpx2.AsyncClient(transport=transport, base_url=started.settings.public_url)
        world = replace(started, http=await stack.enter_async_context(http))
        await _service_verbs(calls, world, "warm")  # connections open, caches fill
        require_unchanged(engine, await _service_verbs(calls, world, "counted"))


async def _service_verbs(calls: Calls, world: World, name: str) -> dict[str, Row]:
    agent, maya = await world.agent(name), await world.person("maya")
    await agent.send("GET", "/v1/epoch")  # it learns the nonce
    rows: dict[str, Row] = {}

    async def counted(verb: str, request: Awaitable[httpx2.Response]) -> Any:
        before = calls.so_far()
        answer = await request
        assert answer.is_success, answer.text
        rows[verb] = difference(calls.so_far(), before)
        return answer.json()

    spent = await counted("submit", agent.submit(await refund(world), run_key="spent", attempt_id="spent"))
    assert spent["state"] == "redeemed"
    before = calls.so_far()
    if world.service.db.dialect == "postgresql":
        with calls.counting():
            assert await world.service.sequencer.number()
        rows["number"] = difference(calls.so_far(), before)
    effect_id = spent["effects"][0]["effect_id"]
    await counted("renew", agent.send("POST", "/v1/redemptions/spent/renew", {"effect_ids": [effect_id]}))
    await counted(
        "report", agent.report("spent", {"effect_id": effect_id, "outcome": "fired", "result": "r"})
    )
    held = (await agent.submit(await refund(world, 124_000), run_key="held")).json()
    assert (await counted("vote", maya.vote(held)))["state"] == "met"
    tokens = (await counted("release", agent.release(held)))["releases"]
    await counted("redeem", agent.redeem(tokens, "held"))
    return rows


# ----------------------------------------------------------------------------------------------------- the SDK


def test_sdk_verbs_cost_what_the_table_says(
    calls: Calls, engine: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = Face.answer

    def uncounted(face: Face, sent: httpx2.Request) -> httpx2.Response:
        with calls.counting(False):
            return answer(face, sent)

    monkeypatch.setattr(Face, "answer", uncounted)
    if engine == "sqlite":
        require_unchanged(engine, _sdk_verbs(calls, tmp_path, tmp_path / "journal.db"))
        return
    with postgres.database(request.getfixturevalue("postgres_server")) as url:
        require_unchanged(engine, _sdk_verbs(calls, tmp_path, JournalUrl(url.replace("+psycopg", ""))))


def _sdk_verbs(calls: Calls, folder: Path, journal: Path | JournalUrl) -> dict[str, Row]:
    desk, values = make_desk(folder, journal_path=journal), MemoryAdapter()
    marks: list[Row] = []
    give_back = refund_tool(desk)

    @tool("keep", lane="live", adapter=values, registry=desk.registry)
    def keep(name: str) -> None:
        values[name] = "kept"

    def committing(key: str, effects: int) -> Row:
        with desk.step(key):
            for number in range(effects):
                give_back(f"o-{number}", 100)
            before = calls.so_far()
        return difference(calls.so_far(), before)

    rows = {}
    with calls.counting(), desk.runtime:
        committing("warm", 1)
        for verb, call in (("stage", lambda n: give_back(n, 100)), ("live-call", keep)):
            with desk.step(verb):
                call("first")  # it also opens the transaction
                before = calls.so_far()
                call("second")
                rows[verb] = difference(calls.so_far(), before)
        rows["commit"] = committing("one", 1)
        desk.before_fire = lambda _: marks.append(calls.so_far())
        committing("two", 2)
        rows["fire"] = difference(marks[1], marks[0])
    return rows
