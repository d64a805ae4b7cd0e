"""The log by index, by page and as it grows, each line once; and streams, which end with their session."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, suppress
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Connection, select

from policy_service.channels import streams
from policy_service.identity.agents import Caller
from policy_service.queries import audit_log as history
from policy_service.storage.core import table
from policy_service.storage.system_tables import AuditRow
from tests.fakes.pages import holds
from tests.fakes.payments import gate, person
from tests.fakes.streaming import events, served
from tests.fakes.world import Agent, Visitor
from tests.integration.service.effects import mail, pay
from tests.integration.service.engines import SQLITE_IN_SHORT
from tests.integration.service.together.bank import Bank, refusal
from tests.integration.service.together.test_outcomes import undone

pytestmark = pytest.mark.parametrize("engine", SQLITE_IN_SHORT)


async def story(bank: Bank, robot: Agent) -> dict[str, Any]:
    """A payment that is asked about, approved, spent, reported and taken back."""
    view: dict[str, Any] = (await robot.submit(await pay(bank, 500), await mail(bank))).json()
    await (await bank.person("maya")).vote(view)
    await robot.spend(await robot.see(view["txn"]), "a1")
    one, two = (seen["effect_id"] for seen in view["effects"])
    fired = {"effect_id": one, "outcome": "fired", "result": {"id": "p1"}}
    await robot.report("a1", fired, {"effect_id": two, "outcome": "failed"})
    undo = (await undone(robot, view)).json()
    await robot.redeem([undo["release"]], "undo-1")
    await robot.report("undo-1", {"effect_id": undo["effect"]["effect_id"], "outcome": "fired"})
    await bank.service.sequencer.number()
    await bank.service.feed.refresh()
    return view


async def pages(who: Agent | Visitor, limit: int) -> list[dict[str, Any]]:
    """The whole log as somebody reads it, page by page."""
    found: list[dict[str, Any]] = []
    after = 0
    while True:
        path = f"/v1/audit?after={after}&limit={limit}"
        page = (await (who.get(path) if isinstance(who, Visitor) else who.send("GET", path))).json()
        found += page["rows"]
        if (after := page.get("next")) is None:
            return found


def indexes(conn: Connection) -> list[int | None]:
    rows = table(AuditRow).c
    return [index for (index,) in conn.execute(select(rows.idx).order_by(rows.audit_id))]


async def test_every_reader_reads_each_own_row_once(bank: Bank, robot: Agent) -> None:
    view, maya = await story(bank, robot), await bank.person("maya")
    other = await bank.agent("other")
    theirs = (await other.submit(await pay(bank))).json()
    await bank.service.sequencer.number()
    written = await bank.service.db.read(indexes)
    assert written == list(range(1, len(written) + 1)) and len(written) > 20
    for limit in (1, 7, 200):
        found = await pages(maya, limit)
        assert [row["index"] for row in found] == written
    assert {"agent_enrolled", "signed_in", "effect_redeemed"} <= {row["kind"] for row in found}
    assert {row["txn"] for row in await pages(robot, 5)} == {view["txn"]}
    assert {row["txn"] for row in await pages(other, 5)} == {theirs["txn"]}
    rows = await pages(robot, 200)
    async with served(bank) as port:  # and so do events, from the one named
        async with events(port, {**proof(robot), "Last-Event-ID": "0"}) as stream:
            streamed = [await stream.event() for _ in rows]
        named = [(row["index"], row["kind"]) for row in rows]
        assert [(int(one["id"]), one["event"]) for one in streamed] == named
        data = json.loads(streamed[0]["data"])
        assert data["txn"] == view["txn"]
        assert set(data) <= {"index", "kind", "txn", "effect_id", "rev", "review_id"}
        async with events(port, {**proof(robot), "Last-Event-ID": streamed[-3]["id"]}) as stream:
            later = [(await stream.event())["id"] for _ in range(2)]
            assert later == [event["id"] for event in streamed[-2:]]


async def test_a_page_looks_so_far(bank: Bank, robot: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_MAX_PAGE_SCAN", 10)
    other = await bank.agent("other")
    for n in range(5):
        await other.submit(await pay(bank), run_key=f"r-{n}")
    view = (await robot.submit(await pay(bank))).json()
    await bank.service.sequencer.number()
    assert (await robot.send("GET", "/v1/audit")).json() == {"rows": [], "next": 10}
    found = await pages(robot, 2)
    assert {row["txn"] for row in found} == {view["txn"]}
    assert found[0]["kind"] == "transaction_submitted" and len(found) > 2
    assert len(await pages(await bank.person("maya"), 200)) > 10, "who may see every line is asked for none"


async def test_many_waiting_readers_cost_one_query(
    bank: Bank, robot: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events are kept in memory with their parties; no other reader is woken, and none queries."""
    ctx, index = bank.service.ctx, bank.service.feed.index
    names = [f"agent-{n}" for n in range(300)] + ["robot"]
    watchers = [history.AuditReader(Caller(name, None)) for name in names]
    waiting = [asyncio.create_task(history.wait_for_events(ctx, one, index, 1.5)) for one in watchers]
    view = (await robot.submit(await pay(bank))).json()
    await bank.service.sequencer.number()
    reads: list[Any] = []
    read = ctx.db.read
    monkeypatch.setattr(ctx.db, "read", lambda query: (reads.append(query), read(query))[1])
    await bank.service.feed.refresh()
    *others, (events, _) = await asyncio.gather(*waiting)
    assert {event.txn for event in events} == {view["txn"]}
    assert {(len(found), reached) for found, reached in others} == {(0, bank.service.feed.index)}
    assert len(reads) < 20, "the feed's own, not one for each who waits"


async def test_a_row_names_the_actor_and_quotes_no_text(bank: Bank, robot: Agent) -> None:
    approved = (await robot.submit(await pay(bank, 500), await pay(bank, 600))).json()
    for effect, name in enumerate(["maya", "tomas"]):
        await (await bank.person(name)).vote(approved, effect=effect)
    assert (await robot.see(approved["txn"]))["state"] == "ready"
    effect_ = await pay(bank, 500, account="acme-and-sons")
    denied = (await robot.submit(effect_, run_key="denied", claimed={"purpose": "thanks"})).json()
    await (await bank.person("maya")).vote(denied, "deny", reason="a private reason")
    await bank.service.sequencer.number()
    rows = await pages(robot, 200)
    votes = [row for row in rows if row["kind"] == "vote_recorded" and row["txn"] == approved["txn"]]
    assert [(row["actor"]["id"], row["body"]["verdict"], row["effect_id"]) for row in votes] == [
        (person(name), "approve", one["effect_id"])
        for name, one in zip(["maya", "tomas"], approved["effects"], strict=True)
    ]
    actors = {row["kind"]: row["actor"] for row in rows}
    assert actors["transaction_submitted"] == {"type": "agent", "id": "robot"}
    assert actors["effect_denied"] == {"type": "person", "id": person("maya")}
    assert actors["decision_made"] == {"type": "service"}
    holds(json.dumps(rows), without=["acme-and-sons", "thanks", "a private reason"])


async def test_the_size_and_the_place_of_a_page_are_limited(bank: Bank, robot: Agent) -> None:
    for n in range(45):
        await robot.submit(await pay(bank), await mail(bank), run_key=f"r{n}")
    await bank.service.sequencer.number()
    for limit, rows in (("", 50), ("&limit=1000", 200)):
        page = (await robot.send("GET", f"/v1/audit?after=0{limit}")).json()
        assert len(page["rows"]) == rows and page["next"] == page["rows"][-1]["index"]
    for wrong in ("after=-1", "after=x", "limit=0", "limit=5000", "after=9007199254740993"):
        assert refusal(await robot.send("GET", f"/v1/audit?{wrong}")) == (400, "invalid_request"), wrong
    for last in (b"x", b"-1", b"1.5", b"9" * 20, "²".encode("latin-1")):
        answer = await robot.send("GET", "/v1/events", headers={"Last-Event-ID": last})
        assert refusal(answer) == (400, "invalid_request"), last


def cookie_of(visitor: Visitor, last: int = 0) -> dict[str, str]:
    return {"Cookie": f"countersign_dev={visitor.cookie}", "Last-Event-ID": str(last)}


def proof(robot: Agent) -> dict[str, str]:
    return {"Agent-Proof": robot.proof("GET", "/v1/events")}


async def test_events_come_as_they_happen(bank: Bank, robot: Agent) -> None:
    other, maya = await bank.agent("other"), await bank.person("maya")
    await robot.send("GET", "/v1/tools/pay")
    async with served(bank) as port:
        async with events(port, proof(robot)) as stream:
            await asyncio.sleep(0.1)
            await other.submit(await pay(bank))
            view = (await robot.submit(await pay(bank, 500))).json()
            event = await stream.event()
            assert event["event"] == "transaction_submitted"
            assert json.loads(event["data"])["txn"] == view["txn"]
        await bank.service.sequencer.number()
        await bank.service.feed.refresh()
        async with events(port, cookie_of(maya, bank.service.feed.index)) as stream:  # a person hears of all
            await asyncio.sleep(0.1)
            await bank.rules(gate("more", "legal"))
            kinds: set[str] = set()
            while not {"decision_made", "review_asks_more"} <= kinds:
                kinds.add((await stream.event())["event"])
    assert (await robot.see(view["txn"]))["state"] == "review"


STREAMS = ("/v1/events", "/events")
QUARTER_S = 900  # four of them are as long as a session may idle


async def news(bank: Bank, robot: Agent, n: int) -> Any:
    """An event of every stream; the review's id."""
    view = (await robot.submit(await pay(bank, 500), run_key=f"news-{n}")).json()
    return view["effects"][0]["review"]["review_id"]


@pytest.mark.parametrize("path", STREAMS)
async def test_a_stream_ends_with_its_session(bank: Bank, robot: Agent, path: str, maya: Visitor) -> None:
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


async def test_an_idle_tab_asks_nothing(bank: Bank, robot: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tab is woken for reviews and tasks, and looks at its session before it says something."""
    cookie = cookie_of(await bank.person("maya"), bank.service.feed.index)
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
async def test_streams_of_a_person_are_limited(
    bank: Bank, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAX_STREAMS_PER_CALLER", 2)
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
            while True:  # a socket closes when it closes
                with suppress(AssertionError):
                    async with events(port, cookie, path):
                        break
                await asyncio.sleep(0.05)


async def test_only_what_a_person_opens_keeps_them_signed_in(bank: Bank, robot: Agent) -> None:
    maya, review_id = await bank.person("maya"), await news(bank, robot, 0)
    for path in ("/", "/v1/reviews") * 4:
        bank.clock.pass_(seconds=QUARTER_S)
        assert (await maya.get(path)).status_code == 200
    # what a page fetches by itself
    for path in ("/queue/live?since=0", f"/reviews/{review_id}/live?since=0"):
        maya = await bank.person("maya")
        for status in (200, 200, 200, 401):
            bank.clock.pass_(seconds=QUARTER_S)
            assert (await maya.get(path)).status_code == status
