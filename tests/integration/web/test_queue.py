"""Tabs, filters, the review beside the list, and reviews alike decided together, as the pages have them."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import httpx2
import pytest

from policy_service.workflow.reading.queue import Tab, Wanted
from policy_service.workflow.reviews.shown import BATCH, view_of
from tests.fakes import reviews
from tests.fakes.web_queue import World
from tests.integration.web.conftest import OWN_PAGE, Visitor

pytestmark = pytest.mark.anyio


def rows(text: str) -> list[str]:
    return re.findall(r'<li class="row[^"]*" data-review="(\w+)"', text)


def counts(text: str) -> list[str]:
    nav = text.split('<nav class="tabs"')[1].split("</nav>")[0]
    return re.findall(r'<span class="n[^"]*">([^<]+)</span>', nav)


def credits(world: World, how_many: int = 4) -> list[str]:
    """Small refunds of one kind."""
    for n in range(how_many):
        world.put(reviews.credit(n))
    return [f"rev_credit{n}" for n in range(how_many)]


def boxes(text: str) -> dict[str, str]:
    return dict(re.findall(r'<input type="checkbox" name="(line-\d+)" value="([^"]*)"', text))


# ---------------------------------------------------------------------------------------------- tabs, filters


ADDRESSES = {
    "/": ["rev_01KAHX04QE", "rev_hostile", "rev_01KAHV6T3M"],
    "/?tab=me": ["rev_01KAHX04QE", "rev_hostile", "rev_01KAHV6T3M"],
    "/?tab=open": ["rev_01KAHX04QE", "rev_hostile", "rev_01KAHV6T3M", "rev_owner"],
    "/?tab=mine": ["rev_owner"],
    "/?tab=open&agent=ship-bot": ["rev_01KAHX04QE"],
    "/?tab=open&risk=low&agent=": ["rev_owner"],
    "/?text=48,210+CUST": ["rev_hostile"],
}


async def test_a_tab_and_its_filters_are_the_address(visitor: Visitor) -> None:
    for path, shown in ADDRESSES.items():
        answer = await visitor.get(path)
        assert (answer.status_code, rows(answer.text)) == (200, shown), path
        assert counts(answer.text) == ["3", "4", "1", "2"]


async def test_decided_ones_say_what_became_of_them(visitor: Visitor) -> None:
    text = (await visitor.get("/?tab=decided")).text
    assert set(rows(text)) == {"rev_denied", "rev_01KAHQ2W8B"}
    assert "Denied</span>" in text
    assert "Fired</span>" in text
    assert "data-due" not in text


async def test_every_filter_that_is_on_is_a_chip_that_takes_it_away(visitor: Visitor, world: World) -> None:
    text = (await visitor.get("/?tab=open&agent=ship-bot&risk=high")).text
    hrefs = [unescape(href) for href in re.findall(r'class="chip chip-on" href="([^"]+)"', text)]
    assert hrefs == ["/?tab=open&risk=high", "/?tab=open&agent=ship-bot"]
    await visitor.get(hrefs[0])
    assert world.wanted == Wanted(tab=Tab.OPEN, risk="high")
    assert 'href="/?tab=open">Clear all' in text


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


async def test_a_filter_is_text_and_never_markup(visitor: Visitor) -> None:
    text = (await visitor.get("/?text=%3Cimg+src%3Dx%3E%E2%80%AE%22")).text
    assert "<img" not in text
    assert "\u202e" not in text
    assert "No review on this tab matches." in text


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
        assert f"<h1>{says}</h1>" in text
        assert "@approval" in text
        assert counts(text) == ["0", "0", "0", "0"]
    world.pages.update({name: replace(page, why_not="not in the group") for name, page in pages.items()})
    text = (await visitor.get("/")).text
    assert 'href="/?tab=open"' in text
    assert "4 open for others" in text


async def test_the_title_and_the_icon_tell_what_waits(world: World, visitor: Visitor) -> None:
    text = (await visitor.get("/?tab=decided")).text
    assert "<title>(3) Queue" in text
    assert re.search(r'id="icon" href="/static/\w+/badge.svg"', text)
    world.pages.clear()
    text = (await visitor.get("/")).text
    assert "<title>Queue" in text
    assert re.search(r'id="icon" href="/static/\w+/logo.svg#mark"', text)


# -------------------------------------------------------------------------------------------------- split view


async def test_a_review_stands_beside_the_list(visitor: Visitor) -> None:
    text = (await visitor.get("/?tab=open&review=rev_hostile")).text
    assert rows(text) == ["rev_01KAHX04QE", "rev_hostile", "rev_01KAHV6T3M", "rev_owner"]
    assert re.findall(r'class="row row-on" data-review="(\w+)"', text) == ["rev_hostile"]
    assert 'href="/?tab=open&amp;review=rev_owner"' in text
    assert 'action="/reviews/rev_hostile/votes"' in text
    assert (text.count("<h1"), text.count('id="feed"')) == (1, 1)
    alone = (await visitor.get("/reviews/rev_hostile")).text
    body = alone.split('<div class="review">')[1].split("</main>")[0]
    for piece in re.findall(r"[^\s].*", body):
        assert piece in text or "aria-current" in piece
    assert (await visitor.get("/?review=rev_none")).status_code == 404


async def test_the_live_fragment_leads_back_to_the_same_tab(world: World, visitor: Visitor) -> None:
    text = (await visitor.get("/?tab=open&risk=high&review=rev_hostile")).text
    [path] = [unescape(path) for path in re.findall(r'hx-get="(/queue/live[^"]*)"', text)]
    world.put(reviews.refund("rev_new"))
    world.tell("review_settled", "rev_hostile")
    fragment = (await visitor.get(path)).text
    assert 'href="/?tab=open&amp;risk=high&amp;review=rev_hostile"' in fragment
    assert 'data-settled="rev_hostile"' in fragment
    assert 'data-waits="4"' in fragment


# ------------------------------------------------------------------------------------------------------- batch


async def test_rows_of_one_kind_are_one_row_that_leads_to_all_of_them(world: World, visitor: Visitor) -> None:
    credits(world)
    text = (await visitor.get("/")).text
    assert len(rows(text)) == 4
    assert "4 alike" in text
    assert "$5.00 to</span>" in text and "$8.00" in text
    assert 'href="/alike/rev_credit0"' in text
    world.pages.pop("rev_credit0"), world.pages.pop("rev_credit1")
    assert "alike" not in (await visitor.get("/")).text  # two are read as quickly as one


async def test_a_batch_lists_every_line_with_its_digest_and_ticks_none(
    world: World, visitor: Visitor
) -> None:
    names = credits(world)
    text = (await visitor.get("/alike/rev_credit2")).text
    assert rows(text) == names
    assert "checked" not in text
    assert "This cannot be undone." in text.split('id="approve"')[1]
    for name, value in zip(names, boxes(text).values(), strict=True):
        page = world.pages[name]
        assert value == f"{name} 1 {page.effect_digest} {page.txn_digest} {view_of(page, BATCH).digest}"
        assert page.effect_digest[:4] in text


async def press(
    visitor: Visitor, verdict: str, headers: dict[str, str] = OWN_PAGE, **fields: str
) -> httpx2.Response:
    form = {"csrf_token": visitor.session.csrf, "verdict": verdict, **fields}
    return await visitor.client.post("/alike/rev_credit0/votes", data=form, headers=headers)


async def test_each_ticked_line_is_a_vote_of_its_own(world: World, visitor: Visitor) -> None:
    credits(world)
    ticked = boxes((await visitor.get("/alike/rev_credit0")).text)
    del ticked["line-2"]
    answer = await press(visitor, "approve", note="as agreed", **ticked)
    assert answer.status_code == 200
    assert "3 of 3 votes counted" in answer.text
    for name, (voted, verdict, rev, effect, txn, reason) in zip(
        ("rev_credit0", "rev_credit2", "rev_credit3"), world.cast, strict=True
    ):
        page = world.pages[name]
        assert (voted, verdict, reason) == (name, "approve", "as agreed")
        assert (rev, effect, txn) == (page.rev, page.effect_digest, page.txn_digest)
    assert world.pages["rev_credit1"].state == "open"


async def test_one_that_changed_is_refused_and_the_others_proceed(world: World, visitor: Visitor) -> None:
    credits(world)
    ticked = boxes((await visitor.get("/alike/rev_credit0")).text)
    world.pages["rev_credit1"] = replace(world.pages["rev_credit1"], effect_digest="f" * 64)
    world.pages["rev_credit2"] = replace(world.pages["rev_credit2"], state="expired")
    answer = await press(visitor, "deny", pick="Not now", **ticked)
    assert "2 of 4 votes counted" in answer.text
    assert "You read another revision" in answer.text
    assert "It has settled meanwhile (expired)" in answer.text
    assert {name for name, *_ in world.cast} == {"rev_credit0", "rev_credit3"}
    assert {reason for *_, reason in world.cast} == {"Not now"}


async def test_a_batch_takes_no_review_of_another_kind(world: World, visitor: Visitor) -> None:
    """J2: never across agents, never a high risk, whatever the form names."""
    credits(world)
    world.put(replace(reviews.credit(9), review_id="rev_other", agent="another-desk"))
    lines = [world.pages[name] for name in ("rev_other", "rev_01KAHV6T3M")]
    sent = {
        f"line-{n}": f"{page.review_id} {page.rev} {page.effect_digest} {page.txn_digest} {'0' * 64}"
        for n, page in enumerate(lines, start=1)
    }
    answer = await press(visitor, "approve", **sent)
    assert "0 of 2 votes counted" in answer.text
    assert world.cast == []


async def test_a_line_with_anything_in_it_that_deceives_has_no_box(world: World, visitor: Visitor) -> None:
    credits(world)
    odd, memo = world.pages["rev_credit1"], reviews.arg("memo", "a\u202eb", "string")
    page = world.pages["rev_credit1"] = reviews.with_args(odd, *odd.args[1:], memo)
    text = (await visitor.get("/alike/rev_credit0")).text
    assert len(boxes(text)) == 3
    assert "it is decided on its own" in text
    line = f"rev_credit1 1 {page.effect_digest} {page.txn_digest} {'0' * 64}"
    await press(visitor, "approve", **{"line-1": line})
    assert world.cast == []


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


async def test_a_batch_that_is_not_as_it_should_be_casts_nothing(world: World, visitor: Visitor) -> None:
    credits(world)
    for fields, code in BAD_BATCHES:
        assert (await press(visitor, **fields)).status_code == code, fields
    ticked = boxes((await visitor.get("/alike/rev_credit0")).text)
    elsewhere: list[dict[str, str]] = [{}, {"Origin": "https://evil.example"}]
    for headers in elsewhere:
        assert (await press(visitor, "approve", headers, **ticked)).status_code == 403
    assert world.cast == []


@pytest.mark.parametrize(("name", "code"), [("rev_none", 404), ("rev_01KAHV6T3M", 400)])
async def test_what_is_one_of_no_kind_is_decided_on_its_own(visitor: Visitor, name: str, code: int) -> None:
    assert (await visitor.get(f"/alike/{name}")).status_code == code


# -------------------------------------------------------------------------------------------------------- keys


async def test_keys_are_turned_off_by_a_form_and_stay_off(visitor: Visitor) -> None:
    assert "data-keys" not in (await visitor.get("/")).text
    form = {"csrf_token": visitor.session.csrf, "keys": "off", "back": "/?tab=open"}
    for changed in ({"keys": "maybe"}, {"csrf_token": "x"}):
        answer = await visitor.client.post("/keys", data=form | changed, headers=OWN_PAGE)
        assert answer.status_code in (400, 403)
        assert "set-cookie" not in answer.headers
    answer = await visitor.client.post("/keys", data=form, headers=OWN_PAGE)
    assert (answer.status_code, answer.headers["location"]) == (303, "/?tab=open")
    assert 'data-keys="off"' in (await visitor.get("/")).text
    await visitor.client.post("/keys", data=form | {"keys": "on"}, headers=OWN_PAGE)
    assert "data-keys" not in (await visitor.get("/")).text
