"""Live updates: ids and kinds on the stream, the page fetches its own fragment, nothing moves by itself."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from policy_service.channels.web import live
from policy_service.channels.web.ports import QueueEvent
from tests.fakes import reviews
from tests.fakes.pages import holds
from tests.fakes.web_queue import World
from tests.integration.web.conftest import Visitor

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _beats_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "HEARTBEAT_SECONDS", 0.2)


async def read_until(stream: AsyncIterator[bytes], wanted: bytes) -> bytes:
    seen = b""
    async with asyncio.timeout(5):
        async for chunk in stream:
            seen += chunk
            if wanted in seen:
                break
    return seen


async def test_the_stream_carries_ids_and_kinds_and_no_markup(world: World, visitor: Visitor) -> None:
    stream = live.stream(world, world, visitor.cookie, len(world.events), None)
    assert b": open" in await anext(stream)
    world.put(reviews.refund("rev_new"))
    seen = (await read_until(stream, b"id: 7")).decode()
    [data] = [line[6:] for line in seen.splitlines() if line.startswith("data: ")]
    assert json.loads(data) == {"kind": "review_opened", "review_id": "rev_new"}
    holds(seen, "event: review", without=["<"])
    seen = (await read_until(live.stream(world, world, visitor.cookie, 4, None), b"id: 6")).decode()
    holds(seen, "id: 5\n", without=["id: 4\n"])  # it goes on where it was left
    seen = (
        await read_until(live.stream(world, world, visitor.cookie, 0, "rev_hostile"), b"still here")
    ).decode()
    assert seen.count("event: review") == 1  # a page about one review hears of that one only


async def test_the_stream_ends_with_its_session(world: World, visitor: Visitor) -> None:
    with_news = live.stream(world, world, visitor.cookie, 0, None)
    await anext(with_news)
    idle = live.stream(world, world, visitor.cookie, len(world.events), None)
    assert b": open" in await anext(idle)
    assert b"still here" in await anext(idle)
    world.sessions.clear()
    async with asyncio.timeout(5):
        assert [chunk async for chunk in idle] == []
        assert [chunk async for chunk in with_news if b"event:" in chunk] == []


async def test_the_stream_ends_when_the_service_stops(world: World, visitor: Visitor) -> None:
    world.closing = True
    async with asyncio.timeout(5):
        answer = await visitor.get("/events?after=0")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    for after in ("x", "-1", "1.5", "9" * 19):
        assert (await visitor.get(f"/events?after={after}")).status_code == 400, after
    # what a reconnecting browser has seen last wins
    answer = await visitor.client.get("/events?after=0", headers={"Last-Event-ID": "x"})
    assert answer.status_code == 400


async def test_new_reviews_wait_behind_a_pill(world: World, visitor: Visitor) -> None:
    since = len(world.events)
    page, pill = (await visitor.get("/")).text, f"/queue/live?since={since}"
    holds(page, f"/events?after={since}", pill)
    assert (await visitor.get(pill)).text.strip() == ""
    world.put(reviews.refund("rev_new1"))
    holds((await visitor.get(pill)).text, "1 new, show it")
    for _ in range(2):
        world.put(reviews.refund("rev_new2"))
    holds((await visitor.get(pill)).text, "2 new, show them")
    world.tell("review_settled", "rev_hostile")
    holds((await visitor.get(pill)).text, "2 new, 1 decided, show them")


async def test_a_review_says_what_happened_meanwhile(world: World, visitor: Visitor) -> None:
    async def fragment() -> str:
        page = (await visitor.get("/reviews/rev_01KAHX04QE")).text
        return re.search(r'hx-get="(/reviews/rev_01KAHX04QE/live[^"]*)"', page)[1]  # type: ignore[index]

    stands, path = world.pages["rev_01KAHX04QE"], await fragment()
    assert (await visitor.get(path)).text.strip() == ""
    world.tell("vote_recorded", "rev_hostile")
    assert (await visitor.get(path)).text.strip() == ""
    world.put(replace(stands, votes=(*stands.votes, stands.votes[0])), "vote_recorded")
    holds((await visitor.get(path)).text, "A vote came in: 2 of 3 now, load again")
    # one's own vote is on the page one comes back to, though the log numbers it a moment later
    world.pages["rev_01KAHX04QE"] = replace(stands, state="met", effect_state="released")
    path = await fragment()
    for kind in ("vote_recorded", "review_settled"):
        world.tell(kind, "rev_01KAHX04QE")
    assert (await visitor.get(path)).text.strip() == ""


def test_what_opened_and_settled_meanwhile_is_neither() -> None:
    told = [("review_opened", "a"), ("review_settled", "a"), ("review_settled", "b")]
    assert live.tell([QueueEvent(n, kind, review) for n, (kind, review) in enumerate(told, 1)]) == (0, 1)
