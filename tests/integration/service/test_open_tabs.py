"""An open page is no person: what it fetches by itself keeps nobody signed in, and ends with the session."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any

import pytest

from policy_service.channels import streams
from tests.fakes.streaming import events, served
from tests.fakes.world import Agent, Visitor, World
from tests.integration.service.effects import pay

pytestmark = pytest.mark.anyio

STREAMS = ("/v1/events", "/events")
QUARTER_S = 900  # four of them are as long as a session may idle


async def news(bank: World, robot: Agent, n: int) -> str:
    """Something every stream tells of; the review's id."""
    view = (await robot.submit(await pay(bank, 500), run_key=f"news-{n}")).json()
    review_id: str = view["effects"][0]["review"]["review_id"]
    return review_id


def cookie_of(visitor: Visitor, last: int = 0) -> dict[str, str]:
    return {"Cookie": f"countersign_dev={visitor.cookie}", "Last-Event-ID": str(last)}


@pytest.mark.parametrize("path", STREAMS)
async def test_a_stream_ends_with_its_session(bank: World, robot: Agent, path: str) -> None:
    maya = await bank.person("maya")
    async with served(bank) as port:
        async with events(port, cookie_of(maya), path) as stream:
            for n in range(3):
                bank.clock.pass_(seconds=QUARTER_S)
                await stream.until(await news(bank, robot, n))
            bank.clock.pass_(seconds=QUARTER_S)
            await news(bank, robot, 3)
            await stream.end()
        assert (await maya.get("/v1/reviews")).status_code == 401
        again = await bank.person("maya")
        async with events(port, cookie_of(again), path) as stream:
            await stream.until(await news(bank, robot, 4))
            await bank.service.sessions.sign_out(again.cookie)
            await stream.end()


async def test_an_idle_tab_asks_nothing(bank: World, robot: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tab is woken for reviews and tasks, and looks at its session before it says something."""
    maya = await bank.person("maya")
    cookie = cookie_of(maya, bank.service.feed.index)
    looks: list[str] = []
    find = bank.service.sessions._live

    def counted(conn: Any, given: str, now: datetime) -> Any:
        looks.append(given)
        return find(conn, given, now)

    async with served(bank) as port, AsyncExitStack() as tabs:
        opened = [await tabs.enter_async_context(events(port, cookie, "/events")) for _ in range(3)]
        await asyncio.sleep(0.2)
        monkeypatch.setattr(bank.service.sessions, "_live", counted)
        for n in range(5):
            await robot.submit(await pay(bank), run_key=f"released-{n}")
            await bank.service.sequencer.number()
            await bank.service.feed.refresh()
            await asyncio.sleep(0.02)
        assert looks == []
        review_id = await news(bank, robot, 0)
        for tab in opened:
            await tab.until(review_id)
        assert len(looks) == 3, "one for each that said something"


@pytest.mark.parametrize("path", STREAMS)
async def test_nobody_holds_too_many_streams(bank: World, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST_OF_ONE", 2)
    maya, omar = await bank.person("maya"), await bank.person("omar")
    cookie = cookie_of(maya)
    async with served(bank) as port, events(port, cookie, path):
        async with events(port, cookie, path):
            async with asyncio.timeout(5):
                refused = await maya.get(path)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "15")
            async with events(port, cookie_of(omar), path):
                pass
        async with asyncio.timeout(5):
            while await is_refused(port, cookie, path):  # noqa: ASYNC110  a socket closes when it closes
                await asyncio.sleep(0.05)


async def is_refused(port: int, cookie: dict[str, str], path: str) -> bool:
    """Whether another stream is one too many."""
    try:
        async with events(port, cookie, path):
            return False
    except AssertionError:
        return True


async def test_only_what_a_person_opens_keeps_them_signed_in(bank: World, robot: Agent) -> None:
    maya, review_id = await bank.person("maya"), await news(bank, robot, 0)
    for path in ("/", "/v1/reviews") * 4:
        bank.clock.pass_(seconds=QUARTER_S)
        assert (await maya.get(path)).status_code == 200
    for path in (
        "/queue/live?since=0",
        f"/reviews/{review_id}/live?since=0",
    ):  # what a page fetches by itself
        maya = await bank.person("maya")
        for status in (200, 200, 200, 401):
            bank.clock.pass_(seconds=QUARTER_S)
            assert (await maya.get(path)).status_code == status
