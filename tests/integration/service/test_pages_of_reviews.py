"""A page of the queue costs the same few queries however long it is, and a row nobody can read breaks none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event, select, update
from sqlmodel import col

from policy_service import metrics
from policy_service.queries import effects as effect_text
from policy_service.queries import repository
from policy_service.queries.queue import QueueFilter, QueuePage, Tab, queue_page
from policy_service.queries.vote_eligibility import voter_from_person
from policy_service.storage import core
from policy_service.storage.core import rows_of, table
from policy_service.storage.tables import EffectRow
from tests.fakes.pages import holds, words
from tests.fakes.payments import ANYBODY, Payments, gate, person
from tests.fakes.world import Agent, Visitor, World
from tests.integration.service.effects import pay
from tests.integration.service.stepping_up import review_of

pytestmark = pytest.mark.anyio

FEW, MANY = 3, 20
AT_MOST = 26  # with whatever the session and the page around it ask


async def ask(bank: World, robot: Agent, how_many: int, amount: int = 500) -> list[dict[str, Any]]:
    """Questions to finance; each on a transaction of two, so that siblings are read too."""
    return [
        (await robot.submit(await pay(bank, amount), await pay(bank, n + 1), run_key=f"{amount}-{n}")).json()
        for n in range(how_many)
    ]


@contextmanager
def queries(bank: World) -> Iterator[list[str]]:
    """What is asked of the database meanwhile, but for what follows the log."""
    asked: list[str] = []

    def note(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if statement.startswith("SELECT") and "audit" not in statement:
            asked.append(statement)

    engine = bank.service.db._readers
    event.listen(engine, "before_cursor_execute", note)
    yield asked
    event.remove(engine, "before_cursor_execute", note)


async def caught_up(bank: World) -> None:
    """Who follows the log has read it to its end, and asks nothing meanwhile."""
    await bank.service.sequencer.number()
    await bank.service.feed.refresh()


ALL = QueueFilter(tab=Tab.OPEN)


async def seen(
    bank: World, visitor: Visitor, limit: int = 50, cursor: str | None = None, wanted: QueueFilter = ALL
) -> QueuePage:
    """The queue as the page has it."""
    session = await bank.service.sessions.find(visitor.cookie)
    assert session is not None
    return await queue_page(bank.service.ctx, voter_from_person(session.person), wanted, cursor, limit)


async def test_a_long_page_takes_no_more_queries_than_a_short_one(bank: World, robot: Agent) -> None:
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


async def test_what_a_person_has_voted_on_or_owns_does_not_wait_for_them(bank: World, robot: Agent) -> None:
    owned = await bank.agent("owned", owner=person("maya"))
    await ask(bank, owned, 1)
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


async def test_the_lesson_of_an_empty_queue_asks_a_group_of_the_bundle(bank: World) -> None:
    for who, group in (("maya", "finance"), ("ingrid", "legal"), ("nobody", "cfo")):
        page = words((await (await bank.person(who)).get("/")).text)
        assert f'@approval("{group}")' in page.replace(" ", ""), who


PATHS = ("/", "/?tab=open&text=pay", "/v1/reviews", "/tasks", "/v1/tasks", "/agents/robot", "/audit")


async def test_a_page_reads_what_it_shows(bank: World, robot: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def poisoned(bank: World, robot: Agent, **values: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A review whose effect was written over by a hand that was not ours, and one beside it."""
    bad = (await robot.submit(await pay(bank, 500), run_key="bad")).json()
    good = (await robot.submit(await pay(bank, 600, "beta"), run_key="good")).json()
    if values:
        await written_over(bank, bad, **values)
    return bad, good


async def written_over(bank: World, view: dict[str, Any], **values: Any) -> None:
    which = col(EffectRow.effect_id) == view["effects"][0]["effect_id"]
    query = update(EffectRow).where(which).values(**values)
    assert await bank.service.db.write(lambda tx: tx.conn.execute(query).rowcount) == 1


def told() -> float:
    return metrics.REGISTRY.get_sample_value("countersign_rows_broken_total") or 0.0


async def nothing_of_it_goes_on(bank: World, maya: Visitor, bad: dict[str, Any]) -> None:
    """A vote on it releases nothing."""
    await maya.vote(bad)
    row = await bank.service.db.read(lambda conn: conn.execute(_row(bad)).one())
    assert row.state in {"review", "denied"}


def _row(view: dict[str, Any]) -> Any:
    return select(table(EffectRow)).where(col(EffectRow.effect_id) == view["effects"][0]["effect_id"])


async def test_a_row_that_cannot_be_read_breaks_no_page_and_is_told(bank: World, robot: Agent) -> None:
    bad, good = await poisoned(bank, robot)
    maya = await bank.person("maya")
    fields = ("args", "gates")
    row = await bank.service.db.read(lambda conn: conn.execute(_row(bad)).one())
    sound = {name: getattr(row, name) for name in fields}
    for values in BROKEN:
        await written_over(bank, bad, **(sound | values))
        before, queue = told(), await maya.get("/")
        assert queue.status_code == 200
        holds(queue.text, f"/reviews/{review_of(good)}", f"/reviews/{review_of(bad)}", "cannot be read")
        assert told() > before
        listed = (await maya.get("/v1/reviews")).json()["reviews"]
        assert [one["review_id"] for one in listed] == [review_of(good)]
        alone = await maya.get(f"/v1/reviews/{review_of(bad)}")
        assert (alone.status_code, alone.json()["code"]) == (500, "internal")
        page = await maya.get(f"/reviews/{review_of(bad)}")
        assert page.status_code == 500
        assert "<form" not in page.text or 'name="verdict"' not in page.text
    await nothing_of_it_goes_on(bank, maya, bad)
    assert (await maya.vote(good)).json()["state"] == "met"


@pytest.mark.parametrize("values", BROKEN[1::2], ids=["args", "gates"])
async def test_a_row_that_cannot_be_read_holds_up_no_job(
    bank: World, robot: Agent, folder: Payments, values: dict[str, Any]
) -> None:
    bad, good = await poisoned(bank, robot, **values)
    await bank.sweep()
    folder.policies(ANYBODY + gate("all", "legal"))
    await bank.activate()
    seen = (await robot.see(good["txn"]))["effects"][0]
    assert any("legal" in need["groups"] for need in seen["review"]["needs"])
    bank.clock.pass_(hours=25)
    await bank.sweep()
    assert (await robot.see(good["txn"]))["state"] == "ended"
    row = await bank.service.db.read(lambda conn: conn.execute(_row(bad)).one())
    assert row.state in {"expired", "review", "denied"}


async def test_a_sentence_may_raise(bank: World, robot: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = await poisoned(bank, robot)
    usual = effect_text._value_piece

    def raising(manifest: Any, args: Any, *rest: Any, **more: Any) -> Any:
        if args["account"] == "acme":
            raise RuntimeError("a template of that day")
        return usual(manifest, args, *rest, **more)

    monkeypatch.setattr(effect_text, "_value_piece", raising)
    maya = await bank.person("maya")
    queue = await maya.get("/")
    assert queue.status_code == 200
    holds(queue.text, f"/reviews/{review_of(good)}", review_of(bad), "cannot be read")


async def test_a_tool_that_is_gone_breaks_no_page(bank: World, robot: Agent, folder: Payments) -> None:
    bad, good = await poisoned(bank, robot)
    maya = await bank.person("maya")
    await written_over(bank, bad, tool="gone", tool_digest="0" * 64)
    queue = await maya.get("/")
    assert queue.status_code == 200
    holds(queue.text, review_of(good), review_of(bad))
    page = await maya.get(f"/reviews/{review_of(bad)}")
    assert page.status_code == 200
    holds(page.text, "does not contain this version")
    await nothing_of_it_goes_on(bank, maya, bad)
    assert (await maya.vote(good)).json()["state"] == "met"
