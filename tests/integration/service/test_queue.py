"""The queue over the real service: who sees what under which tab, filters, batches, and one row that is broken."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import unescape
from typing import Any

import pytest
from sqlalchemy import text

from policy_service.storage.asked import AskedRow
from policy_service.storage.core import table
from policy_service.workflow.effects.activate import ask_about_open
from policy_service.workflow.reading.queue import Tab, Wanted
from tests.fakes.payments import ANYBODY, PAY, Payments, gate, person
from tests.fakes.world import URL, Agent, Visitor, World
from tests.integration.service.effects import pay
from tests.integration.service.engines import SQLITE_IN_SHORT
from tests.integration.service.test_pages_of_reviews import ask, seen

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("engine", SQLITE_IN_SHORT),
]

NO_VIEW = "0" * 64  # of a page that was never drawn


def ids(rows: Iterable[Any]) -> list[str]:
    return [row.review_id for row in rows]


def review_of(view: dict[str, Any]) -> str:
    found: str = view["effects"][0]["review"]["review_id"]
    return found


async def asked(bank: World) -> dict[str, set[str]]:
    """Who is asked about what, as the index has it."""
    rows = await bank.service.db.read(lambda conn: conn.execute(table(AskedRow).select()).all())
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row.review_id, set()).add(row.asked)
    return found


async def test_each_tab_shows_what_it_says(bank: World, folder: Payments, robot: Agent) -> None:
    folder.policies(ANYBODY + gate("fin", "finance", "context.input.amount >= 500"))
    await bank.activate()
    owned = await bank.agent("owned", owner=person("maya"))
    maya = await bank.person("maya")
    theirs = await ask(bank, robot, 3)
    [own] = await ask(bank, owned, 1)
    assert (await maya.vote(theirs[0], "deny", reason="no")).status_code == 200
    tabs = {tab: ids((await seen(bank, maya, wanted=Wanted(tab=tab))).rows) for tab in Tab}
    assert set(tabs[Tab.ME]) == {review_of(view) for view in theirs[1:]}
    assert set(tabs[Tab.OPEN]) == {review_of(view) for view in [*theirs[1:], own]}
    assert tabs[Tab.MINE] == [review_of(own)]
    assert tabs[Tab.DECIDED] == [review_of(theirs[0])]
    counts = (await seen(bank, maya)).counts
    told = [count.words for count in (counts.me, counts.open, counts.mine, counts.decided)]
    assert told == ["2", "3", "1", "1"]


async def test_whom_a_review_asks_follows_its_gates_and_ends_with_it(
    bank: World, folder: Payments, robot: Agent
) -> None:
    maya = await bank.person("maya")
    [view] = await ask(bank, robot, 1)
    assert await asked(bank) == {review_of(view): {"finance"}}
    folder.policies(ANYBODY + gate("fin", "finance") + gate("law", "legal"))
    await bank.activate()
    await bank.sweep()
    await ask_about_open(bank.service.ctx)
    assert (await asked(bank))[review_of(view)] == {"finance", "legal"}
    ingrid = await bank.person("ingrid")
    assert review_of(view) in ids((await seen(bank, ingrid, wanted=Wanted())).rows)
    await maya.vote(view, "deny", reason="no")
    assert await asked(bank) == {}


async def test_what_cedar_refuses_is_not_what_a_person_needs_to_do(
    bank: World, folder: Payments, robot: Agent
) -> None:
    permits = '@id("may") permit (principal, action == Action::"approve", resource);\n'
    narrows = (
        permits + '@id("not-maya") forbid (principal == User::"%s", action == Action::"approve", resource);'
    )
    folder.policies(
        ANYBODY + gate("fin", "finance", "context.input.amount >= 500") + narrows % person("maya")
    )
    assert await bank.activate()
    views = await ask(bank, robot, 3)
    maya, tomas = await bank.person("maya"), await bank.person("tomas")
    page = await seen(bank, maya, wanted=Wanted())
    assert (page.rows, page.counts.me.number) == ((), 0)
    assert len((await seen(bank, tomas, wanted=Wanted())).rows) == len(views)
    assert not [row for row in (await seen(bank, maya)).rows if row.can_vote]


async def test_pages_follow_each_other_without_a_gap_or_a_repeat(bank: World, robot: Agent) -> None:
    owned = await bank.agent("owned", owner=person("ingrid"))
    maya, ingrid = await bank.person("maya"), await bank.person("ingrid")
    views = await ask(bank, owned, 5)

    async def pages(reader: Visitor, wanted: Wanted) -> list[str]:
        found, cursor = [], None
        for _ in range(3):
            page = await seen(bank, reader, limit=2, cursor=cursor, wanted=wanted)
            found += ids(page.rows)
            cursor = page.next_cursor
        assert cursor is None
        return found

    expected = [review_of(view) for view in views]
    for tab in (Tab.ME, Tab.OPEN, Tab.MINE):
        reader = ingrid if tab is Tab.MINE else maya
        assert await pages(reader, Wanted(tab=tab, order="due")) == expected, tab
        assert await pages(reader, Wanted(tab=tab, order="newest")) == expected[::-1], tab
    for view in views:
        await maya.vote(view, "deny", reason="no")
    for order in ("due", "newest"):
        assert await pages(maya, Wanted(tab=Tab.DECIDED, order=order)) == expected[::-1]


async def test_filters_narrow_each_tab(bank: World, folder: Payments, robot: Agent) -> None:
    other = await bank.agent("other")
    folder.policies(
        ANYBODY
        + gate("fin", "finance", "context.input.amount == 500")
        + gate("law", "finance|legal", "context.input.amount == 501")
    )
    await bank.activate()
    fin, law = await ask(bank, robot, 2), await ask(bank, other, 1, amount=501)
    maya, ingrid = await bank.person("maya"), await bank.person("ingrid")

    async def found(visitor: Visitor, **filters: Any) -> set[str]:
        return set(ids((await seen(bank, visitor, wanted=Wanted(**filters))).rows))

    everything = {review_of(view) for view in [*fin, *law]}
    assert await found(maya, agent="other") == {review_of(law[0])}
    assert await found(maya, tool="pay") == everything
    assert await found(maya, tool="mail") == set()
    assert await found(maya, group="legal") == set()  # she is asked, but not as one of them
    assert await found(ingrid, group="legal") == {review_of(law[0])}
    assert await found(maya, tab=Tab.OPEN, group="legal") == {review_of(law[0])}
    assert await found(maya, tab=Tab.OPEN, text="ACME") == everything
    assert await found(maya, tab=Tab.OPEN, text="no such words") == set()
    risk = next(row.risk for row in (await seen(bank, maya)).rows)
    assert await found(maya, tab=Tab.OPEN, risk=risk) == everything
    assert await found(maya, tab=Tab.OPEN, risk="high" if risk != "high" else "low") == set()


async def test_a_filter_stops_after_its_window_and_goes_on_from_there(
    bank: World, robot: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("policy_service.workflow.pages.queue.WINDOW", 2)
    other = await bank.agent("other")
    await ask(bank, robot, 3)
    [late] = await ask(bank, other, 1)
    maya = await bank.person("maya")
    wanted = Wanted(agent="other")
    first = await seen(bank, maya, wanted=wanted)
    assert (first.rows, first.looked_through) == ((), 2)
    assert first.next_cursor is not None
    following = await seen(bank, maya, wanted=wanted, cursor=first.next_cursor)
    assert ids(following.rows) == [review_of(late)]
    answer = await maya.get("/?agent=other")
    assert "Look further" in answer.text
    assert "Nothing like that among these 2 reviews" in answer.text


@pytest.mark.parametrize(
    "harm", ["args = :bad", "gates = '[{}]'", "resource_id = resource_id, tool_digest = 'x'"]
)
async def test_a_review_that_cannot_be_read_keeps_nobody_from_the_others(
    bank: World, robot: Agent, harm: str
) -> None:
    """J6: a poison row is told as such, and the page stands."""
    views = await ask(bank, robot, 3)
    effect_id = views[1]["effects"][0]["effect_id"]

    def spoil(tx: Any) -> None:
        tx.conn.execute(
            text(f"UPDATE effects SET {harm} WHERE effect_id = :of"),
            {"of": effect_id} | ({"bad": b"\xff\x00{"} if ":bad" in harm else {}),
        )

    await bank.service.db.write(spoil)
    maya = await bank.person("maya")
    for path in ("/", "/?tab=open", "/?tab=open&text=pay"):
        answer = await maya.get(path)
        assert answer.status_code == 200, path
        assert {review_of(views[0]), review_of(views[2])} <= set(
            re.findall(r'data-review="(\w+)"', answer.text)
        )
    page = await seen(bank, maya)
    assert len(page.rows) == 3
    assert [row.broken for row in page.rows] == [False, "tool_digest" not in harm, False]


async def test_more_reviews_than_a_page_holds_are_paged_and_counted_up_to_a_cap(
    bank: World, robot: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J2: how many there are changes neither the length of a page nor what it costs."""
    monkeypatch.setattr("policy_service.workflow.pages.queue.COUNT_CAP", 20)
    await ask(bank, robot, 27)
    maya = await bank.person("maya")
    answer = await maya.get("/")
    assert answer.text.count("data-review=") == 25
    assert answer.text.count("20+") >= 2
    following = re.search(r'href="(/\?cursor=[^"]+)">Show the next ones', answer.text)
    assert following is not None
    assert (await maya.get(unescape(following[1]))).text.count("data-review=") == 2


# ------------------------------------------------------------------------------------------------------ batch


async def alike_page(visitor: Visitor, review_id: str) -> dict[str, str]:
    answer = await visitor.get(f"/alike/{review_id}")
    assert answer.status_code == 200, answer.text
    return dict(re.findall(r'<input type="checkbox" name="(line-\d+)" value="([^"]*)"', answer.text))


async def send(visitor: Visitor, review_id: str, **fields: str) -> str:
    answer = await visitor.http.post(
        f"/alike/{review_id}/votes",
        data={"csrf_token": visitor.csrf, **fields},
        headers={"Cookie": f"countersign_dev={visitor.cookie}", "Origin": URL},
    )
    assert answer.status_code == 200, answer.text
    return answer.text


async def small(bank: World, robot: Agent, how_many: int, first: int = 500) -> list[dict[str, Any]]:
    """Payments that stand alone, of different amounts."""
    return [
        (await robot.submit(await pay(bank, first + n), run_key=f"{first}-{n}")).json()
        for n in range(how_many)
    ]


async def calm(bank: World, folder: Payments, **annotations: str) -> None:
    """Payments are of low risk, and finance is asked about all of them."""
    folder.rules(gate("fin", "finance", **annotations))
    folder.write("tools/pay.json", PAY | {"risk": "low"})
    assert await bank.activate()


async def test_reviews_alike_are_decided_by_votes_of_their_own(
    bank: World, folder: Payments, robot: Agent
) -> None:
    await calm(bank, folder)
    views = await small(bank, robot, 4)
    maya = await bank.person("maya")
    assert "4 alike" in (await maya.get("/")).text
    lines = await alike_page(maya, review_of(views[0]))
    assert len(lines) == 4
    ingrid = await bank.person("ingrid")  # who may not vote finds nothing to tick
    assert await alike_page(ingrid, review_of(views[0])) == {}
    told = await send(ingrid, review_of(views[0]), verdict="approve", **dict(list(lines.items())[:1]))
    assert "0 of 1 vote counted" in told
    told = await send(maya, review_of(views[0]), verdict="approve", **dict(list(lines.items())[:3]))
    assert "3 of 3 votes counted" in told
    states = [(await robot.see(view["txn"]))["state"] for view in views]
    assert states == ["ready", "ready", "ready", "review"]
    for view in views[:3]:
        [body] = [body for kind, body in await bank.log(view["txn"]) if kind == "vote_recorded"]
        assert body["channel"] == "web"


async def test_a_new_revision_is_refused_by_itself(bank: World, folder: Payments, robot: Agent) -> None:
    await calm(bank, folder)
    views = await small(bank, robot, 3)
    maya = await bank.person("maya")
    lines = await alike_page(maya, review_of(views[0]))
    await robot.submit(await pay(bank, 700), run_key="500-1")
    told = await send(maya, review_of(views[0]), verdict="deny", reason="too many", **lines)
    assert "2 of 3 votes counted" in told
    assert [(await robot.see(view["txn"]))["state"] for view in views] == ["ended", "review", "ended"]


@pytest.mark.parametrize("why", ["step_up", "reason", "risk", "two effects", "another agent", "another gate"])
async def test_what_differs_in_anything_that_decides_is_not_alike(
    bank: World, folder: Payments, robot: Agent, why: str
) -> None:
    annotations = {"step_up": {"step_up": "passkey"}, "reason": {"reason": ""}}.get(why, {})
    await calm(bank, folder, **annotations)
    if why == "risk":
        folder.write("tools/pay.json", PAY | {"risk": "medium"})
        await bank.activate()
    if why == "another gate":
        folder.rules(
            gate("fin", "finance", "context.input.amount < 600")
            + gate("more", "finance", "context.input.amount >= 600")
        )
        await bank.activate()
    mine = await small(bank, robot, 1)
    maya = await bank.person("maya")
    if why in ("step_up", "reason", "risk"):
        assert (await maya.get(f"/alike/{review_of(mine[0])}")).status_code == 400
        return
    if why == "another agent":
        others = await small(bank, await bank.agent("other"), 2, 510)
    elif why == "another gate":
        others = await small(bank, robot, 2, 700)
    else:
        others = [
            (await robot.submit(await pay(bank, 550), await pay(bank, 551), run_key=f"two-{n}")).json()
            for n in range(2)
        ]
    lines = await alike_page(maya, review_of(mine[0]))
    assert [value.split()[0] for value in lines.values()] == [review_of(mine[0])]
    for view in others:
        value = f"{review_of(view)} {view['rev']} {view['effects'][0]['effect_digest']} {view['txn_digest']} {NO_VIEW}"
        told = await send(maya, review_of(mine[0]), verdict="approve", **{"line-1": value})
        assert "0 of 1 vote counted" in told
        assert (await robot.see(view["txn"]) if why != "another agent" else view)["state"] == "review"


async def test_rows_of_two_agents_are_never_one_row(bank: World, folder: Payments, robot: Agent) -> None:
    await calm(bank, folder)
    await small(bank, robot, 2)
    await small(bank, await bank.agent("other"), 2, 510)
    text = (await (await bank.person("maya")).get("/")).text
    assert len(re.findall(r'data-review="', text)) == 4
    assert " alike" not in text
