"""The queue over the real service: who sees what under which tab, filters, batches, and one row that is broken."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import unescape
from typing import Any

import pytest
from sqlalchemy import text

from policy_service.queries.queue import QueueFilter, Tab
from policy_service.storage.core import table
from policy_service.storage.review_tables import ReviewGroupRow
from policy_service.workflow.effects.activate import reevaluate_open_effects
from tests.fakes.payments import ANYBODY, PAY, Payments, gate, person
from tests.fakes.world import URL, Agent, Visitor, World
from tests.integration.service.effects import pay
from tests.integration.service.engines import SQLITE_IN_SHORT
from tests.integration.service.stepping_up import review_of
from tests.integration.service.test_pages_of_reviews import ask, seen

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("engine", SQLITE_IN_SHORT),
]

NO_VIEW = "0" * 64  # of a page that was never drawn


def ids(rows: Iterable[Any]) -> list[str]:
    return [row.review_id for row in rows]


async def asked(bank: World) -> dict[str, set[str]]:
    """Who is asked about what, as the index has it."""
    rows = await bank.service.db.read(lambda conn: conn.execute(table(ReviewGroupRow).select()).all())
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row.review_id, set()).add(row.asked)
    return found


async def test_whom_a_review_asks_follows_its_gates_and_ends_with_it(
    bank: World, folder: Payments, robot: Agent
) -> None:
    maya, ingrid = await bank.person("maya"), await bank.person("ingrid")
    [view] = await ask(bank, robot, 1)
    assert await asked(bank) == {review_of(view): {"finance"}}
    folder.policies(ANYBODY + gate("fin", "finance") + gate("law", "legal"))
    await bank.activate()
    await bank.sweep()
    await reevaluate_open_effects(bank.service.ctx)
    assert (await asked(bank))[review_of(view)] == {"finance", "legal"}
    assert review_of(view) in ids((await seen(bank, ingrid, wanted=QueueFilter())).rows)
    await maya.vote(view, "deny", reason="no")
    assert await asked(bank) == {}


async def test_each_tab_shows_what_it_says(bank: World, folder: Payments, robot: Agent) -> None:
    folder.policies(ANYBODY + gate("fin", "finance", "context.input.amount >= 500"))
    await bank.activate()
    owned = await bank.agent("owned", owner=person("maya"))
    maya = await bank.person("maya")
    theirs = await ask(bank, robot, 3)
    [own] = await ask(bank, owned, 1)
    assert (await maya.vote(theirs[0], "deny", reason="no")).status_code == 200
    tabs = {tab: ids((await seen(bank, maya, wanted=QueueFilter(tab=tab))).rows) for tab in Tab}
    assert set(tabs[Tab.ME]) == {review_of(view) for view in theirs[1:]}
    assert set(tabs[Tab.OPEN]) == {review_of(view) for view in [*theirs[1:], own]}
    assert tabs[Tab.MINE] == [review_of(own)]
    assert tabs[Tab.DECIDED] == [review_of(theirs[0])]
    counts = (await seen(bank, maya)).counts
    told = [count.words for count in (counts.me, counts.open, counts.mine, counts.decided)]
    assert told == ["2", "3", "1", "1"]
    # what Cedar refuses is not what a person needs to do
    permits = '@id("may") permit (principal, action == Action::"approve", resource);\n'
    maya_not = f'(principal == User::"{person("maya")}", action == Action::"approve", resource);'
    folder.rules(permits, '@id("not-maya") forbid ', maya_not)
    assert await bank.activate()
    page = await seen(bank, maya, wanted=QueueFilter())
    assert (page.rows, page.counts.me.number) == ((), 0)
    assert len((await seen(bank, await bank.person("tomas"), wanted=QueueFilter())).rows) == 3
    assert not [row for row in (await seen(bank, maya)).rows if row.can_vote]


async def test_pages_follow_each_other_without_a_gap_or_a_repeat(bank: World, robot: Agent) -> None:
    owned = await bank.agent("owned", owner=person("ingrid"))
    maya, ingrid = await bank.person("maya"), await bank.person("ingrid")
    views = await ask(bank, owned, 5)

    async def pages(reader: Visitor, wanted: QueueFilter) -> list[str]:
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
        assert await pages(reader, QueueFilter(tab=tab, order="due")) == expected, tab
        assert await pages(reader, QueueFilter(tab=tab, order="newest")) == expected[::-1], tab
    for view in views:
        await maya.vote(view, "deny", reason="no")
    for order in ("due", "newest"):
        assert await pages(maya, QueueFilter(tab=Tab.DECIDED, order=order)) == expected[::-1]


async def test_filters_narrow_each_tab(bank: World, folder: Payments, robot: Agent) -> None:
    other, fin_only = await bank.agent("other"), "context.input.amount == 500"
    law = gate("law", "finance|legal", "context.input.amount == 501")
    folder.policies(ANYBODY + gate("fin", "finance", fin_only) + law)
    await bank.activate()
    everything = [review_of(view) for view in await ask(bank, robot, 2)]
    both = review_of((await ask(bank, other, 1, amount=501))[0])
    everything.append(both)
    maya, ingrid = await bank.person("maya"), await bank.person("ingrid")
    risk = next(row.risk for row in (await seen(bank, maya)).rows)
    for visitor, filters, expected in (
        (maya, {"agent": "other"}, [both]),
        (maya, {"tool": "pay"}, everything),
        (maya, {"tool": "mail"}, []),
        (maya, {"group": "legal"}, []),  # she is asked, but not as one of them
        (ingrid, {"group": "legal"}, [both]),
        (maya, {"tab": Tab.OPEN, "group": "legal"}, [both]),
        (maya, {"tab": Tab.OPEN, "text": "ACME"}, everything),
        (maya, {"tab": Tab.OPEN, "text": "no such words"}, []),
        (maya, {"tab": Tab.OPEN, "risk": risk}, everything),
        (maya, {"tab": Tab.OPEN, "risk": "high" if risk != "high" else "low"}, []),
    ):
        found = ids((await seen(bank, visitor, wanted=QueueFilter(**filters))).rows)
        assert sorted(found) == sorted(expected), filters


async def test_a_filter_stops_after_its_window_and_goes_on_from_there(
    bank: World, robot: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("policy_service.queries.queue.WINDOW", 2)
    other = await bank.agent("other")
    await ask(bank, robot, 3)
    [late] = await ask(bank, other, 1)
    maya = await bank.person("maya")
    wanted = QueueFilter(agent="other")
    first = await seen(bank, maya, wanted=wanted)
    assert (first.rows, first.looked_through) == ((), 2)
    assert first.next_cursor is not None
    assert ids((await seen(bank, maya, wanted=wanted, cursor=first.next_cursor)).rows) == [review_of(late)]
    answer = await maya.get("/?agent=other")
    assert "Search further" in answer.text
    assert "No match among these 2 reviews" in answer.text


async def test_a_review_that_cannot_be_read_keeps_nobody_from_the_others(bank: World, robot: Agent) -> None:
    """J6: a poison row is told as such, and the page stands."""
    maya = await bank.person("maya")
    views = await ask(bank, robot, 5)
    of = [view["effects"][0]["effect_id"] for view in views]
    spoils = [
        text("UPDATE effects SET args = :bad WHERE effect_id = :of").bindparams(of=of[0], bad=b"\xff\x00{"),
        text("UPDATE effects SET gates = '[{}]' WHERE effect_id = :of").bindparams(of=of[1]),
        text("UPDATE effects SET tool_digest = 'x' WHERE effect_id = :of").bindparams(of=of[2]),
    ]
    await bank.service.db.write(lambda tx: [tx.conn.execute(spoil).rowcount for spoil in spoils])
    for path in ("/", "/?tab=open", "/?tab=open&text=pay"):
        answer = await maya.get(path)
        assert answer.status_code == 200, path
        drawn = re.findall(r'data-review="(\w+)"', answer.text)
        assert {review_of(view) for view in views[3:]} <= set(drawn)
    broken = {row.review_id: row.broken for row in (await seen(bank, maya)).rows}
    assert broken == {review_of(view): place < 2 for place, view in enumerate(views)}


async def test_more_reviews_than_a_page_holds_are_paged_and_counted_up_to_a_cap(
    bank: World, robot: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J2: how many there are changes neither the length of a page nor what it costs."""
    monkeypatch.setattr("policy_service.queries.queue.COUNT_CAP", 20)
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
    calls = [await pay(bank, first + n) for n in range(how_many)]
    return [(await robot.submit(call, run_key=f"{first}-{n}")).json() for n, call in enumerate(calls)]


async def calm(bank: World, folder: Payments, *, risk: str = "low", **annotations: str) -> None:
    """Payments are of low risk, and finance is asked about all of them."""
    folder.rules(gate("fin", "finance", **annotations))
    folder.write("tools/pay.json", PAY | {"risk": risk})
    assert await bank.activate()


async def test_reviews_alike_are_decided_by_votes_of_their_own(
    bank: World, folder: Payments, robot: Agent
) -> None:
    await calm(bank, folder)
    views = await small(bank, robot, 5)
    maya, ingrid = await bank.person("maya"), await bank.person("ingrid")
    assert "5 alike" in (await maya.get("/")).text
    lines = await alike_page(maya, review_of(views[0]))
    assert len(lines) == 5
    assert await alike_page(ingrid, review_of(views[0])) == {}  # who may not vote finds nothing to tick
    told = await send(ingrid, review_of(views[0]), verdict="approve", **dict(list(lines.items())[:1]))
    assert "0 of 1 vote counted" in told
    told = await send(maya, review_of(views[0]), verdict="approve", **dict(list(lines.items())[:2]))
    assert "2 of 2 votes counted" in told
    await robot.submit(await pay(bank, 700), run_key="500-3")  # a new revision is refused by itself
    rest = dict(list(lines.items())[2:])
    told = await send(maya, review_of(views[2]), verdict="deny", reason="too many", **rest)
    assert "2 of 3 votes counted" in told
    states = [(await robot.see(view["txn"]))["state"] for view in views]
    assert states == ["ready", "ready", "ended", "review", "ended"]
    for view in views[:2]:
        [body] = [body for kind, body in await bank.log(view["txn"]) if kind == "vote_recorded"]
        assert body["channel"] == "web"


async def test_what_differs_in_anything_that_decides_is_not_alike(
    bank: World, folder: Payments, robot: Agent
) -> None:
    maya, other = await bank.person("maya"), await bank.agent("other")
    for why, asking, risk in (
        ("passkey", {"step_up": "passkey"}, "low"),
        ("reason", {"reason": ""}, "low"),
        ("risk", {}, "medium"),
    ):
        await calm(bank, folder, risk=risk, **asking)
        own = (await robot.submit(await pay(bank, 500), run_key=why)).json()
        assert (await maya.get(f"/alike/{review_of(own)}")).status_code == 400
        await robot.send("POST", f"/v1/transactions/{own['txn']}/withdraw", {})
    await calm(bank, folder)
    more = gate("more", "finance", "context.input.amount >= 600")
    folder.rules(gate("fin", "finance", "context.input.amount < 600"), more)
    await bank.activate()
    [mine] = await small(bank, robot, 1)
    others = [
        *await small(bank, other, 2, 510),
        *await small(bank, robot, 2, 700),
        (await robot.submit(await pay(bank, 550), await pay(bank, 551), run_key="two")).json(),
    ]
    page = (await maya.get("/")).text
    assert (len(re.findall(r'data-review="', page)), " alike" in page) == (7, False)
    lines = await alike_page(maya, review_of(mine))
    assert [value.split()[0] for value in lines.values()] == [review_of(mine)]
    for view in others:
        effect = view["effects"][0]
        stamp = f"{view['rev']} {effect['effect_digest']} {view['txn_digest']} {NO_VIEW}"
        line = {"line-1": f"{review_of(view)} {stamp}"}
        assert "0 of 1 vote counted" in await send(maya, review_of(mine), verdict="approve", **line)
    assert len(await asked(bank)) == 1 + 2 + 2 + 2
