"""Meters against a naive account: the sums agree for any agents, people and clocks (I-10).

The account keeps a list of all reservations and sums it for each call. It trusts the service's states of effects, which
the model test checks, and no amounts.
"""

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fakes.payments import ANYBODY
from tests.fakes.world import Agent, World, running
from tests.integration.service.effects import pay
from tests.integration.service.metered import ASKS, CALLS, CAP, CAPS, metered

LONG = settings().max_examples > 1_000  # HYPOTHESIS_PROFILE=long
FEW = 4  # calls on one account in a day
ENDED_UNSPENT = {"denied", "expired", "withdrawn", "revoked"}
_names = itertools.count()

CALL = st.tuples(st.sampled_from([0, 200, 400, 501, 600]), st.sampled_from("ab"))
OUTCOME = st.sampled_from(["unused", "failed", "fired"])
STEP = st.one_of(
    st.tuples(st.just("submit"), st.lists(CALL, min_size=1, max_size=3)),
    st.tuples(st.sampled_from(["deny", "approve", "withdraw", "redeem"]), st.integers(0, 9)),
    st.tuples(st.just("report"), st.tuples(st.integers(0, 9), OUTCOME)),
    st.tuples(st.just("wait"), st.integers(-300, 900)),  # minutes; a clock may be put back
)


@dataclass
class Part:
    """The reservation of one effect."""

    at: datetime
    amount: int
    account: str
    state: str


@dataclass
class Story:
    """One agent, its submissions, and the account of them."""

    world: World
    robot: Agent
    parts: list[Part] = field(default_factory=list)
    views: list[dict[str, Any]] = field(default_factory=list)
    taken: list[list[Part]] = field(default_factory=list)

    def fits(self, amount: int, account: str, now: datetime) -> bool:
        held = [part for part in self.parts if part.state not in ENDED_UNSPENT]
        spent = sum(part.amount for part in held if part.at > now - timedelta(hours=24))
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        calls = sum(part.account == account and part.at >= midnight for part in held)
        return spent + amount <= CAP and calls < FEW

    async def submit(self, calls: list[tuple[int, str]]) -> None:
        now, mine = self.world.clock(), []
        for amount, account in calls:
            state = "held" if self.fits(amount, account, now) else "denied"
            mine.append(Part(now, amount, account, state))
            self.parts.append(mine[-1])
        effects = [
            await pay(self.world, amount, f"{self.robot.name}-{account}") | {"n": n}
            for n, (amount, account) in enumerate(calls)
        ]
        view = (await self.robot.submit(*effects, run_key=f"run-{len(self.views)}")).json()
        found = [effect["state"] == "denied" for effect in view["effects"]]
        assert found == [part.state == "denied" for part in mine], (calls, self.parts)
        assert not any(found) or view["state"] == "ended"
        self.views.append(view)
        self.taken.append(mine)
        await self.look()

    async def look(self) -> None:
        """Read the current states of all effects."""
        for n, mine in enumerate(self.taken):
            self.views[n] = await self.robot.see(self.views[n]["txn"])
            for part, effect in zip(mine, self.views[n]["effects"], strict=True):
                part.state = effect["state"]

    async def step(self, what: str, which: Any) -> None:
        if what == "submit":
            await self.submit(which)
        elif what == "wait":
            self.world.clock.pass_(minutes=which)
            await self.world.sweep()
        elif what == "fire":
            call, outcome = which
            await self.submit([call])
            await self.about("redeem", -1)
            await self.look()
            await self.about("report", (-1, outcome))
        elif self.views:
            await self.about(what, which)
        await self.look()

    async def about(self, what: str, which: Any) -> None:
        index, outcome = which if what == "report" else (which, "")
        n = index % len(self.views)
        view = self.views[n]
        if what in {"deny", "approve"} and any(effect["state"] == "review" for effect in view["effects"]):
            effect = [one["state"] for one in view["effects"]].index("review")
            maya = await self.world.person("maya")
            assert (await maya.vote(view, what, effect=effect, reason="so")).status_code == 200
        elif what == "withdraw" and view["state"] in {"review", "ready"}:
            await self.robot.send("POST", f"/v1/transactions/{view['txn']}/withdraw", {})
        elif what == "redeem" and view["state"] == "ready":
            # what fitted still fits
            assert (await self.robot.spend(view, f"{self.robot.name}-{n}"))["redeemed"]
        elif what == "report" and view["state"] == "redeemed":
            outcomes = [{"effect_id": one["effect_id"], "outcome": outcome} for one in view["effects"]]
            assert (await self.robot.report(f"{self.robot.name}-{n}", *outcomes)).status_code == 200

    def never_over(self) -> bool:
        """Whether every reservation fitted, with those before it, into its window."""
        held = [part for part in self.parts if part.state not in ENDED_UNSPENT]
        return all(
            sum(one.amount for one in held[: n + 1] if one.at > part.at - timedelta(hours=24)) <= CAP
            for n, part in enumerate(held)
        )


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as one:
        yield one


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, runner: asyncio.Runner) -> Iterator[World]:
    folder = metered(tmp_path_factory.mktemp("metered") / "bundle")
    folder.policies(ANYBODY + ASKS + CAPS.replace(f">= {CALLS} ", f">= {FEW} "))
    context = running(tmp_path_factory.mktemp("data") / "data", folder.path)
    started = runner.run(context.__aenter__())
    yield started
    runner.run(context.__aexit__(None, None, None))


SPEND = [("submit", [(400, "a")]), ("submit", [(600, "a")]), ("submit", [(401, "b")])]


@settings(max_examples=500 if LONG else 8)
@example(steps=[("fire", ((400, "a"), "unused")), ("fire", ((400, "b"), "failed")), ("submit", [(300, "a")])])
@example(steps=[("submit", [(600, "a")]), ("deny", 0), ("submit", [(501, "a"), (400, "b")]), ("approve", 1)])
@example(steps=[SPEND[0], ("wait", 120), SPEND[1], ("wait", -240), SPEND[2]])
@given(steps=st.lists(STEP, min_size=4, max_size=16))
def test_meters_equal_the_reference_account(world: World, runner: asyncio.Runner, steps: list[Any]) -> None:
    async def run_story() -> None:
        world.clock.stop_at(datetime(2026, 11, 21, 12, tzinfo=UTC))
        story = Story(world, await world.agent(f"robot-{next(_names)}"))
        for what, which in steps:
            await story.step(what, which)
            assert story.never_over()

    runner.run(run_story())
