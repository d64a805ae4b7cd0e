"""The queue and its pages: tabs, filters, batches, a constant number of queries, and rows that cannot be read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from html import unescape
from typing import Any

import pytest
from sqlalchemy import event, select
from sqlmodel import col

from policy_service import metrics
from policy_service.queries import effects as effect_text
from policy_service.queries import repository
from policy_service.queries.queue import QueueFilter, QueuePage, Tab, queue_page
from policy_service.queries.vote_eligibility import voter_from_person
from policy_service.storage import core
from policy_service.storage.core import rows_of, table, update_rows
from policy_service.storage.review_tables import ReviewGroupRow
from policy_service.storage.tables import EffectRow
from policy_service.workflow.effects.activate import reevaluate_open_effects
from tests.fakes.pages import holds, words
from tests.fakes.payments import ANYBODY, PAY, gate, person
from tests.fakes.world import Agent, Visitor
from tests.integration.service.effects import pay
from tests.integration.service.engines import SQLITE_IN_SHORT
from tests.integration.service.stepping_up import Holder, review_of
from tests.integration.service.together.bank import Bank, refusal

pytestmark = pytest.mark.parametrize("engine", SQLITE_IN_SHORT)

FEW, MANY = 3, 20
AT_MOST = 26  # with the queries of the session and of the frame


async def ask(bank: Bank, robot: Agent, how_many: int, amount: int = 500) -> list[dict[str, Any]]:
    """Questions to finance; each on a transaction of two, so that siblings are read too."""
    return [
        (await robot.submit(await pay(bank, amount), await pay(bank, n + 1), run_key=f"{amount}-{n}")).json()
        for n in range(how_many)
    ]


@contextmanager
def queries(bank: Bank) -> Iterator[list[str]]:
    """What is asked of the database meanwhile, but for what follows the log."""
    asked: list[str] = []

    def note(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if statement.startswith("SELECT") and "audit" not in statement:
            asked.append(statement)

    engine = bank.service.db._readers
    event.listen(engine, "before_cursor_execute", note)
    yield asked
    event.remove(engine, "before_cursor_execute", note)


async def caught_up(bank: Bank) -> None:
    """Who follows the log has read it to its end, and asks nothing meanwhile."""
    await bank.service.sequencer.number()
    await bank.service.feed.refresh()


ALL = QueueFilter(tab=Tab.OPEN)


async def seen(
    bank: Bank, visitor: Visitor, limit: int = 50, cursor: str | None = None, wanted: QueueFilter = ALL
) -> QueuePage:
    """The queue as the page has it."""
    session = await bank.service.sessions.find(visitor.cookie)
    assert session is not None
    return await queue_page(bank.service.ctx, voter_from_person(session.person), wanted, cursor, limit)


async def test_a_long_page_takes_no_more_queries_than_a_short_one(bank: Bank, robot: Agent) -> None:
    maya = await bank.person("maya")
    asked: dict[str, list[int]] = {"/v1/reviews?limit=50": [], "/": []}
    for how_many, amount in ((FEW, 500), (MANY, 501)):
        await ask(bank, robot, how_many, amount)
        await caught_up(bank)
        for path, counts in asked.items():
            with queries(bank) as found:
                assert (await maya.get(path)).status_code == 200
            counts.append(len(found))
    for path, (short, long) in asked.items():
        assert long == short <= AT_MOST, path


async def test_what_a_person_has_voted_on_or_owns_does_not_wait_for_them(bank: Bank, robot: Agent) -> None:
    await ask(bank, await bank.agent("owned", owner=person("maya")), 1)
    [view] = await ask(bank, robot, 1, amount=5_000)
    maya, tomas = await bank.person("maya"), await bank.person("tomas")
    assert (await seen(bank, maya)).counts.me.number == 1
    assert (await maya.vote(view)).json()["state"] == "open"
    for visitor, waits in ((maya, 0), (tomas, 2), (await bank.person("jonas"), 0)):
        page = await seen(bank, visitor)
        can_vote = sum(row.can_vote for row in page.rows)
        assert (page.counts.open.number, page.counts.me.number, can_vote) == (2, waits, waits)
        first = await seen(bank, visitor, limit=1)  # over all pages
        following = await seen(bank, visitor, limit=1, cursor=first.next_cursor)
        assert first.counts == following.counts == page.counts


async def test_the_lesson_of_an_empty_queue_asks_a_group_of_the_bundle(bank: Bank) -> None:
    for who, group in (("maya", "finance"), ("ingrid", "legal"), ("stranger", "cfo")):
        page = words((await (await bank.person(who)).get("/")).text)
        assert f'@approval("{group}")' in page.replace(" ", ""), who


PATHS = ("/", "/?tab=open&text=pay", "/v1/reviews", "/tasks", "/v1/tasks", "/agents/robot", "/audit")


async def test_a_page_reads_what_it_shows(bank: Bank, robot: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """J1: an agent that asks otherwise again and again, each time at length, makes no page longer to read."""
    maya = await bank.person("maya")
    for n in range(1, 13):
        await robot.submit(await pay(bank, 500), await pay(bank, n), run_key="again and again")
    read: set[tuple[str, int]] = set()

    def note(model: Any, found: Any) -> list[Any]:
        known = rows_of(model, found)
        read.update((row.effect_id, row.rev) for row in known if isinstance(row, EffectRow))
        return known

    for module in (repository, core):
        monkeypatch.setattr(module, "rows_of", note)
    for path in PATHS:
        read.clear()
        assert (await maya.get(path)).status_code == 200
        assert len(read) <= (40 if path.startswith("/agents") else 2), (path, read)


# args that are no text, that end too early, that are no object; gates that are none
BROKEN: list[dict[str, Any]] = [
    {"args": b"\xff\xfe"}, {"args": b'{"account":"ac'}, {"args": b"[1]"}, {"gates": [{"what": "is this"}]},
]  # fmt: skip


async def poisoned(bank: Bank, robot: Agent, **values: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A review whose effect was overwritten in the database, and a good one."""
    bad = (await robot.submit(await pay(bank, 500), run_key="bad")).json()
    good = (await robot.submit(await pay(bank, 600, "beta"), run_key="good")).json()
    if values:
        await overwrite(bank, bad, **values)
    return bad, good


async def overwrite(bank: Bank, view: dict[str, Any], **values: Any) -> None:
    where = {"effect_id": view["effects"][0]["effect_id"]}
    await bank.service.db.write(lambda tx: update_rows(tx.conn, EffectRow, where, values))


async def row_of(bank: Bank, view: dict[str, Any]) -> Any:
    query = select(table(EffectRow)).where(col(EffectRow.effect_id) == view["effects"][0]["effect_id"])
    return await bank.service.db.read(lambda conn: conn.execute(query).one())


def broken_rows() -> float:
    return metrics.REGISTRY.get_sample_value("countersign_rows_broken_total") or 0.0


async def test_an_unreadable_row_is_reported_and_breaks_no_page(
    bank: Bank, robot: Agent, maya: Visitor
) -> None:
    bad, good = await poisoned(bank, robot)
    row = await row_of(bank, bad)
    for values in BROKEN:
        await overwrite(bank, bad, **({"args": row.args, "gates": row.gates} | values))
        for path in ("/", "/?tab=open", "/?tab=open&text=pay"):
            before, queue = broken_rows(), await maya.get(path)
            assert (queue.status_code, f"/reviews/{review_of(good)}" in queue.text) == (200, True)
            assert "text=" in path or f"/reviews/{review_of(bad)}" in queue.text
            assert broken_rows() > before
        assert "cannot be read" in (await maya.get("/")).text
        listed = (await maya.get("/v1/reviews")).json()["reviews"]
        assert [one["review_id"] for one in listed] == [review_of(good)]
        assert refusal(await maya.get(f"/v1/reviews/{review_of(bad)}")) == (500, "internal")
        page = await maya.get(f"/reviews/{review_of(bad)}")
        assert (page.status_code, 'name="verdict"' in page.text) == (500, False)
    await maya.vote(bad)
    assert (await row_of(bank, bad)).state in {"review", "denied"}
    assert (await maya.vote(good)).json()["state"] == "met"


@pytest.mark.parametrize("values", BROKEN[1::2], ids=["args", "gates"])
async def test_an_unreadable_row_stops_no_job(bank: Bank, robot: Agent, values: dict[str, Any]) -> None:
    bad, good = await poisoned(bank, robot, **values)
    await bank.sweep()
    await bank.policies(ANYBODY + gate("all", "legal"))
    seen = (await robot.see(good["txn"]))["effects"][0]
    assert any("legal" in need["groups"] for need in seen["review"]["needs"])
    bank.clock.pass_(hours=25)
    await bank.sweep()
    assert (await robot.see(good["txn"]))["state"] == "ended"
    assert (await row_of(bank, bad)).state in {"expired", "review", "denied"}


async def test_a_sentence_may_raise(
    bank: Bank, robot: Agent, maya: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = await poisoned(bank, robot)
    usual = effect_text._value_piece

    def raising(manifest: Any, args: Any, *rest: Any, **more: Any) -> Any:
        if args["account"] == "acme":
            raise RuntimeError("a template of that day")
        return usual(manifest, args, *rest, **more)

    monkeypatch.setattr(effect_text, "_value_piece", raising)
    holds((await maya.get("/")).text, f"/reviews/{review_of(good)}", review_of(bad), "cannot be read")


async def test_a_tool_that_is_gone_breaks_no_page(bank: Bank, robot: Agent, maya: Visitor) -> None:
    bad, good = await poisoned(bank, robot, tool="gone", tool_digest="0" * 64)
    holds((await maya.get("/")).text, review_of(good), review_of(bad))
    holds((await maya.get(f"/reviews/{review_of(bad)}")).text, "does not contain this version")
    await maya.vote(bad)
    assert (await row_of(bank, bad)).state in {"review", "denied"}
    assert (await maya.vote(good)).json()["state"] == "met"


# -- Tabs, filters and batches


NO_VIEW = "0" * 64  # of a page that was never drawn


def ids(rows: Iterable[Any]) -> list[str]:
    return [row.review_id for row in rows]


async def asked(bank: Bank) -> dict[str, set[str]]:
    """Who is asked about what, as the index has it."""
    rows = await bank.service.db.read(lambda conn: conn.execute(table(ReviewGroupRow).select()).all())
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row.review_id, set()).add(row.asked)
    return found


async def test_the_groups_of_a_review_follow_its_gates(bank: Bank, robot: Agent) -> None:
    maya, ingrid = await bank.person("maya"), await bank.person("ingrid")
    [view] = await ask(bank, robot, 1)
    assert await asked(bank) == {review_of(view): {"finance"}}
    await bank.policies(ANYBODY + gate("fin", "finance") + gate("law", "legal"))
    await bank.sweep()
    await reevaluate_open_effects(bank.service.ctx)
    assert (await asked(bank))[review_of(view)] == {"finance", "legal"}
    assert review_of(view) in ids((await seen(bank, ingrid, wanted=QueueFilter())).rows)
    await maya.vote(view, "deny", reason="no")
    assert await asked(bank) == {}


async def test_each_tab_shows_what_it_says(bank: Bank, robot: Agent, maya: Visitor) -> None:
    await bank.policies(ANYBODY + gate("fin", "finance", "context.input.amount >= 500"))
    owned = await bank.agent("owned", owner=person("maya"))
    theirs = await ask(bank, robot, 3)
    [own] = await ask(bank, owned, 1)
    assert (await maya.vote(theirs[0], "deny", reason="no")).status_code == 200
    tabs = {tab: ids((await seen(bank, maya, wanted=QueueFilter(tab=tab))).rows) for tab in Tab}
    assert set(tabs[Tab.ME]) == {review_of(view) for view in theirs[1:]}
    assert set(tabs[Tab.OPEN]) == {review_of(view) for view in [*theirs[1:], own]}
    assert (tabs[Tab.MINE], tabs[Tab.DECIDED]) == ([review_of(own)], [review_of(theirs[0])])
    counts = (await seen(bank, maya)).counts
    found = [one.words for one in (counts.me, counts.open, counts.mine, counts.decided)]
    assert found == ["2", "3", "1", "1"]
    # what Cedar refuses is not what a person needs to do
    permits = '@id("may") permit (principal, action == Action::"approve", resource);\n'
    maya_not = f'(principal == User::"{person("maya")}", action == Action::"approve", resource);'
    await bank.rules(permits, '@id("not-maya") forbid ', maya_not)
    page = await seen(bank, maya, wanted=QueueFilter())
    assert (page.rows, page.counts.me.number) == ((), 0)
    assert len((await seen(bank, await bank.person("tomas"), wanted=QueueFilter())).rows) == 3
    assert not [row for row in (await seen(bank, maya)).rows if row.can_vote]


async def test_pages_follow_each_other_without_a_gap_or_a_repeat(bank: Bank, robot: Agent) -> None:
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


async def test_filters_narrow_each_tab(bank: Bank, robot: Agent) -> None:
    other, fin_only = await bank.agent("other"), "context.input.amount == 500"
    law = gate("law", "finance|legal", "context.input.amount == 501")
    await bank.policies(ANYBODY + gate("fin", "finance", fin_only) + law)
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


async def test_a_filter_pages_by_window(bank: Bank, robot: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_long_queues_are_paged(bank: Bank, robot: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
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
    answer = await Holder(visitor).send(f"/alike/{review_id}/votes", **fields)
    assert answer.status_code == 200, answer.text
    return answer.text


async def small(bank: Bank, robot: Agent, how_many: int, first: int = 500) -> list[dict[str, Any]]:
    """Payments that stand alone, of different amounts."""
    calls = [await pay(bank, first + n) for n in range(how_many)]
    return [(await robot.submit(call, run_key=f"{first}-{n}")).json() for n, call in enumerate(calls)]


async def calm(bank: Bank, *, risk: str = "low", **annotations: str) -> None:
    """Payments are of low risk, and finance is asked about all of them."""
    bank.folder.rules(gate("fin", "finance", **annotations))
    await bank.write("tools/pay.json", PAY | {"risk": risk})


async def test_reviews_alike_are_decided_by_votes_of_their_own(bank: Bank, robot: Agent) -> None:
    await calm(bank)
    views = await small(bank, robot, 5)
    maya, ingrid = await bank.person("maya"), await bank.person("ingrid")
    assert "5 alike" in (await maya.get("/")).text
    lines = await alike_page(maya, review_of(views[0]))
    assert len(lines) == 5
    assert await alike_page(ingrid, review_of(views[0])) == {}  # who may not vote finds nothing to tick
    text = await send(ingrid, review_of(views[0]), verdict="approve", **dict(list(lines.items())[:1]))
    assert "0 of 1 vote counted" in text
    text = await send(maya, review_of(views[0]), verdict="approve", **dict(list(lines.items())[:2]))
    assert "2 of 2 votes counted" in text
    await robot.submit(await pay(bank, 700), run_key="500-3")  # a new revision is refused by itself
    rest = dict(list(lines.items())[2:])
    text = await send(maya, review_of(views[2]), verdict="deny", reason="too many", **rest)
    assert "2 of 3 votes counted" in text
    states = [(await robot.see(view["txn"]))["state"] for view in views]
    assert states == ["ready", "ready", "ended", "review", "ended"]
    for view in views[:2]:
        [body] = [body for kind, body in await bank.log(view["txn"]) if kind == "vote_recorded"]
        assert body["channel"] == "web"


async def test_what_differs_in_anything_that_decides_is_not_alike(bank: Bank, robot: Agent) -> None:
    maya, other = await bank.person("maya"), await bank.agent("other")
    passkey, reason = ({"step_up": "passkey"}, "low"), ({"reason": ""}, "low")
    for why, (asking, risk) in {"passkey": passkey, "reason": reason, "risk": ({}, "medium")}.items():
        await calm(bank, risk=risk, **asking)
        own = (await robot.submit(await pay(bank, 500), run_key=why)).json()
        assert (await maya.get(f"/alike/{review_of(own)}")).status_code == 400
        await robot.send("POST", f"/v1/transactions/{own['txn']}/withdraw", {})
    await calm(bank)
    more = gate("more", "finance", "context.input.amount >= 600")
    await bank.rules(gate("fin", "finance", "context.input.amount < 600"), more)
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
