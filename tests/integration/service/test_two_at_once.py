"""Two people decide at the same instant, one by the form of the web page and one over the API: one outcome, which both
see. On each engine; on PostgreSQL each of the two is at a replica of their own.

Who comes first is not known; a round is begun by either side in turn, and on a busy machine each order is seen.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.fakes.log_check import faults_of_log
from tests.fakes.payments import ANYBODY, Payments, gate, person
from tests.fakes.world import Agent, Clock, Visitor, World, running
from tests.integration.service.effects import pay
from tests.integration.service.engines import ENGINES, SQLITE_IN_SHORT

pytestmark = pytest.mark.anyio

ONE = 500  # what one person lets go

ROUNDS = range(2)


@pytest.fixture(params=SQLITE_IN_SHORT)
def engine(request: pytest.FixtureRequest) -> str:
    """Races are decided on each engine in its own way."""
    chosen: str = request.param
    return chosen


@dataclass
class Two:
    """Two people who may vote on the same, each with a client of their own, and the agent that asks."""

    world: World
    robot: Agent
    web: Visitor
    api: Visitor
    owner: Visitor  # of the agent, at the web's door

    async def asked(self, amount: int, run_key: str) -> dict[str, Any]:
        """Something waits for them."""
        call = await pay(self.world, amount)
        view: dict[str, Any] = (await self.robot.submit(call, run_key=run_key)).json()
        assert view["state"] == "review"
        return view

    async def form(self, view: dict[str, Any], verdict: str) -> dict[str, str]:
        """The form as the page of the review has it, filled in."""
        page = await self.web.http.get(f"{path_of(view)}?full=1", headers=_of_a_page(self.web))
        shown = dict(re.findall(r'name="(view_digest|view_parts)" value="([^"]*)"', page.text))
        assert shown, "the page has no form"
        return {
            "csrf_token": self.web.csrf, "verdict": verdict, "rev": str(view["rev"]), "reason": "looked at it",
            "effect_digest": view["effects"][0]["effect_digest"], "txn_digest": view["txn_digest"], **shown,
        }  # fmt: skip

    async def send(self, view: dict[str, Any], form: dict[str, str]) -> httpx2.Response:
        """The button is pressed."""
        path = f"{path_of(view)}/votes"
        return await self.web.http.post(path, data=form, headers=_of_a_page(self.web))

    async def seen(self, view: dict[str, Any]) -> tuple[str, str]:
        """What each of them reads now of the review they decided: the page's words, and the state the API tells."""
        page = await self.web.http.get(path_of(view), headers=_of_a_page(self.web))
        told = await self.api.get(f"/v1{path_of(view)}")
        assert (page.status_code, told.status_code) == (200, 200)
        words = [name for name, said in SAYS.items() if said in page.text]
        assert len(words) == 1, words
        return words[0], told.json()["state"]


SAYS = {
    "denied": "Nothing fired. The agent was told.",
    "met": "may fire it now, once.",
    "replaced": "Replaced by revision 2",
}

"""What the page says of a review in that state."""


def path_of(view: dict[str, Any]) -> str:
    """Where a review lies, on the web and over the API."""
    return f"/reviews/{view['effects'][0]['review']['review_id']}"


def _of_a_page(visitor: Visitor) -> dict[str, str]:
    return {name: value for name, value in visitor.headers().items() if name in {"Cookie", "Origin"}}


@pytest.fixture
async def two(tmp_path: Path, engine: str, database: dict[str, str]) -> AsyncIterator[Two]:
    """A service, twice over one database where the engine allows it; at the end its log is sound (I-8)."""
    folder, clock = Payments(tmp_path / "bundle"), Clock()
    folder.people({"all": ("maya", "tomas", "ingrid")})
    folder.policies(ANYBODY + gate("one", "all", "context.input.amount > 100"))
    async with AsyncExitStack() as stack:
        doors = [running(tmp_path / f"data-{n}", folder.path, clock=clock, **database) for n in (1, 2)]
        here = there = await stack.enter_async_context(doors[0])
        if engine != "sqlite":
            there = await stack.enter_async_context(doors[1])
        transport, address = httpx2.ASGITransport(there.app), there.settings.public_url
        client = httpx2.AsyncClient(transport=transport, base_url=address, timeout=20)
        api = replace(await here.person("tomas"), http=await stack.enter_async_context(client))
        robot = await here.agent("robot", owner=person("jonas"))
        yield Two(here, robot, await here.person("maya"), api, await here.person("jonas"))
        assert await here.service.db.read(faults_of_log) == []


async def at_once(
    turn: int, web: Awaitable[httpx2.Response], api: Awaitable[httpx2.Response]
) -> tuple[httpx2.Response, httpx2.Response]:
    """Both wait at a barrier, and go in the same instant; who is scheduled first changes by turns."""
    barrier = asyncio.Barrier(2)

    async def go(ask: Awaitable[httpx2.Response]) -> httpx2.Response:
        await barrier.wait()
        return await ask

    if turn % 2:
        second, first = await asyncio.gather(go(api), go(web))
        return first, second
    first, second = await asyncio.gather(go(web), go(api))
    return first, second


async def test_one_approves_and_one_denies(two: Two) -> None:
    for n, (web, api) in enumerate([("approve", "deny"), ("deny", "approve")] * 2):
        view = await two.asked(ONE, f"against-{n}")
        form = await two.form(view, web)
        asked = two.send(view, form), two.api.vote(view, api, reason="no such parcel")
        answers = await at_once(n // 2, *asked)
        await told_of_their_votes(two, view, answers)
        page, told = await two.seen(view)
        assert page == told == answers[1].json()["state"]
        effect = (await two.robot.see(view["txn"]))["effects"][0]
        assert effect["state"] == {"met": "released", "denied": "denied"}[told]
        decided, late = ("approve", "deny") if told == "met" else ("deny", "approve")
        cast = await two.world.log(view["txn"])
        voted = [(body["verdict"], body["late"]) for kind, body in cast if kind == "vote_recorded"]
        assert sorted(voted) == sorted([(decided, False), (late, True)])


async def told_of_their_votes(two: Two, view: dict[str, Any], answers: Sequence[httpx2.Response]) -> None:
    """Both are taken; whose came second on the web reads that it was not counted."""
    cast = [body for kind, body in await two.world.log(view["txn"]) if kind == "vote_recorded"]
    late = {body["channel"]: body["late"] for body in cast}
    assert [answer.status_code for answer in answers] == [409 if late["web"] else 303, 200]
    assert ("Your vote was not counted" in answers[0].text) is late["web"]


async def released_once(two: Two, view: dict[str, Any]) -> None:
    """There is one release, and it can be spent."""
    kinds = [kind for kind, _ in await two.world.log(view["txn"])]
    assert (kinds.count("effect_released"), kinds.count("review_settled")) == (1, 1)
    ready = await two.robot.see(view["txn"])
    assert (await two.robot.spend(ready, f"attempt-{view['txn']}"))["redeemed"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("by", ["the agent", "its owner"])
async def test_one_approves_while_other_arguments_are_accepted(two: Two, by: str) -> None:
    """Either these bytes were approved, or they are dead: never both."""
    for n in ROUNDS:
        view = await two.asked(ONE, f"{by}-{n}")
        name = await two.api.proposed(view, {"account": "acme", "amount": ONE + 1})
        if by == "the agent":  # it speaks the API, and Maya votes on the web
            form = await two.form(view, "approve")
            voted, taken = await at_once(n, two.send(view, form), two.robot.accept(name))
            said = (303, 200)
        else:  # the owner has a page, and Tomas votes over the API
            sent = {"csrf_token": two.owner.csrf}
            accepting = two.owner.http.post(
                f"/proposals/{name}/accept", data=sent, headers=_of_a_page(two.owner)
            )
            taken, voted = await at_once(n, accepting, two.api.vote(view))
            said = (200, 303)
        after = await two.robot.see(view["txn"])
        if after["rev"] == 1:
            assert (voted.status_code, taken.status_code) == (said[0], 409)
            assert await two.seen(view) == ("met", "met")
            await released_once(two, view)
        else:
            assert (voted.status_code, taken.status_code) == (409, said[1])
            assert await two.seen(view) == ("replaced", "withdrawn")
            assert (after["rev"], after["state"]) == (2, "review"), "an old vote is live"
            # An agent may not have more than so many questions open, which in many rounds it would.
            assert (await two.robot.send("POST", f"/v1/transactions/{view['txn']}/withdraw", {})).is_success
