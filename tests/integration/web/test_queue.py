"""Tabs, filters, the review beside the list, reviews alike decided together, and what is told of news meanwhile."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from html import unescape

import httpx2
import pytest
from policy_service.channels.web.ports import QueueEvent

from policy_service.channels.web import live
from policy_service.workflow.reading.queue import Tab, Wanted
from policy_service.workflow.reviews.shown import BATCH, view_of
from tests.fakes import reviews
from tests.fakes.pages import holds
from tests.fakes.web_queue import World
from tests.integration.web.conftest import OWN_PAGE, Visitor

pytestmark = pytest.mark.anyio


def rows(text: str) -> list[str]:
    return re.findall(r'<li class="row[^"]*" data-review="(\w+)"', text)


def counts(text: str) -> list[str]:
    nav = text.split('<nav class="tabs"')[1].split("</nav>")[0]
    return re.findall(r'<span class="n[^"]*">([^<]+)</span>', nav)


@pytest.fixture
def credits(world: World) -> list[str]:
    """Four small refunds of one kind."""
    for n in range(4):
        world.put(reviews.credit(n))
    return [f"rev_credit{n}" for n in range(4)]


# ---------------------------------------------------------------------------------------------- tabs, filters


async def test_a_tab_and_its_filters_are_the_address(world: World, visitor: Visitor) -> None:
    mine = ["rev_01KAHX04QE", "rev_hostile", "rev_01KAHV6T3M"]
    for path, shown in {
        "/": mine,
        "/?tab=me": mine,
        "/?tab=open": [*mine, "rev_owner"],
        "/?tab=mine": ["rev_owner"],
        "/?tab=open&agent=ship-bot": ["rev_01KAHX04QE"],
        "/?tab=open&risk=low&agent=": ["rev_owner"],
        "/?text=48,210+CUST": ["rev_hostile"],
    }.items():
        answer = await visitor.get(path)
        assert (answer.status_code, rows(answer.text)) == (200, shown), path
        assert counts(answer.text) == ["3", "4", "1", "2"]
    text = (await visitor.get("/?tab=open&agent=ship-bot&risk=high")).text
    hrefs = [unescape(href) for href in re.findall(r'class="chip chip-on" href="([^"]+)"', text)]
    assert hrefs == ["/?tab=open&risk=high", "/?tab=open&agent=ship-bot"]  # each chip takes its filter away
    holds(text, 'href="/?tab=open">Clear all')
    await visitor.get(hrefs[0])
    assert world.wanted == Wanted(tab=Tab.OPEN, risk="high")


async def test_decided_ones_say_what_became_of_them(world: World, visitor: Visitor) -> None:
    text = (await visitor.get("/?tab=decided")).text
    assert set(rows(text)) == {"rev_denied", "rev_01KAHQ2W8B"}
    holds(text, "Denied</span>", "Fired</span>", "<title>(3) Queue", without=["data-due"])
    assert re.search(r'id="icon" href="/static/\w+/badge.svg"', text)  # title and icon tell what waits
    world.pages.clear()
    text = (await visitor.get("/")).text
    holds(text, "<title>Queue")
    assert re.search(r'id="icon" href="/static/\w+/logo.svg#mark"', text)


NOWHERE = {
    "tab=everything": "there are me, open, mine, decided",
    "risk=none": "there are low, medium, high",
    "order=amount": "there are due, newest",
    "page=2": "has no filter 'page'",
    "tab=me&tab=open": "names 'tab' twice",
    "agent=" + "a" * 201: "holds 200 characters at most",
    "tab=decided&group=finance": "are not filtered by group",
    "tab=decided&text=refund": "are not filtered by text",
}


async def test_an_address_that_asks_for_what_there_is_not_is_refused(visitor: Visitor) -> None:
    for query, says in NOWHERE.items():
        answer = await visitor.get(f"/?{query}")
        assert (answer.status_code, says in unescape(answer.text)) == (400, True), query
        assert rows(answer.text) == []
    text = (await visitor.get("/?text=%3Cimg+src%3Dx%3E%E2%80%AE%22")).text  # a filter is text, never markup
    holds(text, "No review on this tab matches.", without=["<img", "\u202e"])


async def test_an_empty_tab_says_what_it_would_show(world: World, visitor: Visitor) -> None:
    pages = dict(world.pages)
    world.pages.clear()
    for tab, says in {
        "me": "Nothing waits for you.",
        "open": "Nothing waits for anybody.",
        "mine": "Nothing of your agents waits.",
        "decided": "Nothing has been decided yet.",
    }.items():
        text = (await visitor.get(f"/?tab={tab}")).text
        holds(text, f"<h1>{says}</h1>", "@approval")
        assert counts(text) == ["0", "0", "0", "0"]
    world.pages.update({name: replace(page, why_not="not in the group") for name, page in pages.items()})
    holds((await visitor.get("/")).text, 'href="/?tab=open"', "4 open for others")


# -------------------------------------------------------------------------------------------------- split view


async def test_a_review_stands_beside_the_list(world: World, visitor: Visitor) -> None:
    text = (await visitor.get("/?tab=open&review=rev_hostile")).text
    assert rows(text) == ["rev_01KAHX04QE", "rev_hostile", "rev_01KAHV6T3M", "rev_owner"]
    assert re.findall(r'class="row row-on" data-review="(\w+)"', text) == ["rev_hostile"]
    holds(text, 'href="/?tab=open&amp;review=rev_owner"', 'action="/reviews/rev_hostile/votes"')
    assert (text.count("<h1"), text.count('id="feed"')) == (1, 1)
    alone = (await visitor.get("/reviews/rev_hostile")).text
    body = alone.split('<div class="review">')[1].split("</main>")[0]
    for piece in re.findall(r"[^\s].*", body):
        assert piece in text or "aria-current" in piece
    assert (await visitor.get("/?review=rev_none")).status_code == 404
    text = (await visitor.get("/?tab=open&risk=high&review=rev_hostile")).text
    [path] = [unescape(path) for path in re.findall(r'hx-get="(/queue/live[^"]*)"', text)]
    world.put(reviews.refund("rev_new"))
    world.tell("review_settled", "rev_hostile")
    back = 'href="/?tab=open&amp;risk=high&amp;review=rev_hostile"'
    holds((await visitor.get(path)).text, back, 'data-settled="rev_hostile"', 'data-waits="4"')


# ------------------------------------------------------------------------------------------------------- batch


def boxes(text: str) -> dict[str, str]:
    return dict(re.findall(r'<input type="checkbox" name="(line-\d+)" value="([^"]*)"', text))


async def ticked(visitor: Visitor) -> dict[str, str]:
    """Every line of the batch."""
    return boxes((await visitor.get("/alike/rev_credit0")).text)


async def press(
    visitor: Visitor, verdict: str, headers: dict[str, str] = OWN_PAGE, **fields: str
) -> httpx2.Response:
    form = {"csrf_token": visitor.session.csrf, "verdict": verdict, **fields}
    return await visitor.client.post("/alike/rev_credit0/votes", data=form, headers=headers)


async def test_rows_of_one_kind_are_one_row(world: World, visitor: Visitor, credits: list[str]) -> None:
    text = (await visitor.get("/")).text
    assert len(rows(text)) == 4
    holds(text, "4 alike", "$5.00 to</span>", "$8.00", 'href="/alike/rev_credit0"')
    text = (await visitor.get("/alike/rev_credit2")).text
    assert rows(text) == credits
    assert "checked" not in text
    holds(text.split('id="approve"')[1], "This cannot be undone.")
    for name, value in zip(credits, boxes(text).values(), strict=True):
        page = world.pages[name]
        assert value == f"{name} 1 {page.effect_digest} {page.txn_digest} {view_of(page, BATCH).digest}"
        assert page.effect_digest[:4] in text
    for name, status in (("rev_none", 404), ("rev_01KAHV6T3M", 400)):  # one of no kind is decided on its own
        assert (await visitor.get(f"/alike/{name}")).status_code == status
    world.pages.pop("rev_credit0"), world.pages.pop("rev_credit1")
    assert "alike" not in (await visitor.get("/")).text  # two are read as quickly as one


async def test_each_ticked_line_is_a_vote(world: World, visitor: Visitor, credits: list[str]) -> None:
    lines = await ticked(visitor)
    del lines["line-2"]
    answer = await press(visitor, "approve", note="as agreed", **lines)
    assert answer.status_code == 200
    holds(answer.text, "3 of 3 votes counted")
    kept = [world.pages[name] for name in ("rev_credit0", "rev_credit2", "rev_credit3")]
    assert world.cast == [
        (page.review_id, "approve", page.rev, page.effect_digest, page.txn_digest, "as agreed")
        for page in kept
    ]
    assert world.pages["rev_credit1"].state == "open"


async def test_one_that_changed_is_refused_alone(world: World, visitor: Visitor, credits: list[str]) -> None:
    lines = await ticked(visitor)
    world.pages["rev_credit1"] = replace(world.pages["rev_credit1"], effect_digest="f" * 64)
    world.pages["rev_credit2"] = replace(world.pages["rev_credit2"], state="expired")
    answer = await press(visitor, "deny", pick="Not now", **lines)
    holds(
        answer.text, "2 of 4 votes counted", "You read another revision", "It has settled meanwhile (expired)"
    )
    assert {(name, reason) for name, *_, reason in world.cast} == {
        ("rev_credit0", "Not now"),
        ("rev_credit3", "Not now"),
    }


LINE = "rev_credit0 1 a b c"
BAD_BATCHES: list[tuple[dict[str, str], int]] = [
    ({"verdict": "approve"}, 400),
    ({"verdict": "release", "line-1": LINE}, 400),
    ({"verdict": "deny", "line-1": LINE}, 400),
    ({"verdict": "approve", "line-1": "rev_credit0 1 a b"}, 400),
    ({"verdict": "approve", "line-1": "rev_credit0 -1 a b c"}, 400),
    ({"verdict": "break_glass", "reason": "the site is down", "line-1": LINE}, 400),
    ({"verdict": "approve", "line-51": LINE}, 400),
    ({"verdict": "approve", "line-1": LINE, "line-2": LINE}, 400),
    ({"verdict": "approve", "line-1": LINE, "csrf_token": "another"}, 403),
]


async def test_a_batch_takes_nothing_else(world: World, visitor: Visitor, credits: list[str]) -> None:
    """J2: never across agents, never a high risk, nothing that deceives, whatever the form names."""
    for fields, code in BAD_BATCHES:
        assert (await press(visitor, **fields)).status_code == code, fields
    lines = await ticked(visitor)
    elsewhere: list[dict[str, str]] = [{}, {"Origin": "https://evil.example"}]
    for headers in elsewhere:
        assert (await press(visitor, "approve", headers, **lines)).status_code == 403
    odd, memo = world.pages["rev_credit1"], reviews.arg("memo", "a\u202eb", "string")
    world.pages["rev_credit1"] = reviews.with_args(odd, *odd.args[1:], memo)
    text = (await visitor.get("/alike/rev_credit0")).text
    assert len(boxes(text)) == 3
    holds(text, "it is decided on its own")
    world.put(replace(reviews.credit(9), review_id="rev_other", agent="another-desk"))
    wrong = [world.pages[name] for name in ("rev_other", "rev_01KAHV6T3M", "rev_credit1")]
    sent = {
        f"line-{n}": f"{page.review_id} {page.rev} {page.effect_digest} {page.txn_digest} {'0' * 64}"
        for n, page in enumerate(wrong, start=1)
    }
    holds((await press(visitor, "approve", **sent)).text, "0 of 3 votes counted")
    assert world.cast == []


async def test_keys_are_turned_off_by_a_form_and_stay_off(visitor: Visitor) -> None:
    assert "data-keys" not in (await visitor.get("/")).text
    form = {"csrf_token": visitor.session.csrf, "keys": "off", "back": "/?tab=open"}
    for changed in ({"keys": "maybe"}, {"csrf_token": "x"}):
        answer = await visitor.client.post("/keys", data=form | changed, headers=OWN_PAGE)
        assert (answer.status_code in (400, 403), "set-cookie" in answer.headers) == (True, False)
    answer = await visitor.client.post("/keys", data=form, headers=OWN_PAGE)
    assert (answer.status_code, answer.headers["location"]) == (303, "/?tab=open")
    assert 'data-keys="off"' in (await visitor.get("/")).text
    await visitor.client.post("/keys", data=form | {"keys": "on"}, headers=OWN_PAGE)
    assert "data-keys" not in (await visitor.get("/")).text


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
