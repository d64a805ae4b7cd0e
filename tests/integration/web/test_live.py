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
from tests.fakes.web_queue import World
from tests.integration.web.conftest import Visitor

pytestmark = pytest.mark.anyio


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
    seen = await read_until(stream, b"id: 7")
    [data] = [line[6:] for line in seen.decode().splitlines() if line.startswith("data: ")]
    assert json.loads(data) == {"kind": "review_opened", "review_id": "rev_new"}
    assert b"event: review" in seen
    assert b"<" not in seen


async def test_the_stream_goes_on_where_it_was_left(world: World, visitor: Visitor) -> None:
    seen = await read_until(live.stream(world, world, visitor.cookie, 4, None), b"id: 6")
    assert b"id: 4\n" not in seen
    assert b"id: 5\n" in seen


async def test_a_page_about_one_review_hears_of_that_one_only(
    world: World, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "HEARTBEAT_SECONDS", 0.2)
    seen = await read_until(live.stream(world, world, visitor.cookie, 0, "rev_hostile"), b"still here")
    assert seen.count(b"event: review") == 1


async def test_the_stream_ends_with_its_session(
    world: World, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_news = live.stream(world, world, visitor.cookie, 0, None)
    await anext(with_news)
    monkeypatch.setattr(live, "HEARTBEAT_SECONDS", 0.2)
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
    assert f"/events?after={since}" in page and pill in page
    assert (await visitor.get(pill)).text.strip() == ""
    world.put(reviews.refund("rev_new1"))
    assert "1 new, show it" in (await visitor.get(pill)).text
    world.put(reviews.refund("rev_new2"))
    world.put(reviews.refund("rev_new2"))
    assert "2 new, show them" in (await visitor.get(pill)).text
    world.tell("review_settled", "rev_hostile")
    assert "2 new, 1 decided, show them" in (await visitor.get(pill)).text


async def test_a_review_says_what_happened_meanwhile(world: World, visitor: Visitor) -> None:
    page = (await visitor.get("/reviews/rev_01KAHX04QE")).text
    path = re.search(r'hx-get="(/reviews/rev_01KAHX04QE/live[^"]*)"', page)[1]  # type: ignore[index]
    assert (await visitor.get(path)).text.strip() == ""
    world.tell("vote_recorded", "rev_hostile")
    assert (await visitor.get(path)).text.strip() == ""
    stands = world.pages["rev_01KAHX04QE"]
    world.put(replace(stands, votes=(*stands.votes, stands.votes[0])), "vote_recorded")
    assert "A vote came in: 2 of 3 now, load again" in (await visitor.get(path)).text


async def test_whoever_voted_is_not_told_of_their_own_vote(world: World, visitor: Visitor) -> None:
    """It is on the page they come back to, though the log numbers it a moment later."""
    stands = world.pages["rev_01KAHX04QE"]
    world.pages["rev_01KAHX04QE"] = replace(stands, state="met", effect_state="released")
    page = (await visitor.get("/reviews/rev_01KAHX04QE")).text
    world.tell("vote_recorded", "rev_01KAHX04QE")
    world.tell("review_settled", "rev_01KAHX04QE")
    path = re.search(r'hx-get="(/reviews/rev_01KAHX04QE/live[^"]*)"', page)[1]  # type: ignore[index]
    assert (await visitor.get(path)).text.strip() == ""


def test_what_opened_and_settled_meanwhile_is_neither() -> None:
    told = [("review_opened", "a"), ("review_settled", "a"), ("review_settled", "b")]
    assert live.tell([QueueEvent(n, kind, review) for n, (kind, review) in enumerate(told, 1)]) == (0, 1)
