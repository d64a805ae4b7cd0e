"""Budgets through the wire: what a meter shows, what is held, and what brings it back (I-10)."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from policy_service.storage.core import find
from policy_service.storage.tables import DecisionRow
from policy_service.workflow.effects.activate import reevaluate_open_effects
from tests.fakes.pages import holds
from tests.fakes.payments import ANYBODY, Payments
from tests.fakes.world import Agent, Clock, Visitor, World
from tests.integration.service.effects import call, mail, pay, ship
from tests.integration.service.engines import ENGINES, each_engine
from tests.integration.service.metered import ASKS, CALLS, CAP, CAPS, METERS, counted_pay, held, metered
from tests.integration.service.test_context_panel import page_of, panel_of
from tests.integration.service.together.bank import Bank
from tests.integration.service.together.test_outcomes import undone

__all__ = ["each_engine"]  # a budget is kept on each engine in its own way

_run_keys = (f"run-{n}" for n in itertools.count())


@pytest.fixture
def folder(tmp_path: Path) -> Payments:
    """A bundle with meters."""
    return metered(tmp_path / "bundle")


@pytest.fixture
def clock() -> Clock:
    """A meter that counts a day sees one day."""
    return Clock.from_noon()


async def submitted(agent: Agent, *effects: dict[str, Any], key: str | None = None) -> Any:
    return (await agent.submit(*effects, run_key=key or next(_run_keys))).json()


async def became(agent: Agent, *effects: dict[str, Any]) -> list[str]:
    """The states of a new submission's effects."""
    return states(await submitted(agent, *effects))


def states(view: dict[str, Any]) -> list[str]:
    return [effect["state"] for effect in view["effects"]]


async def dry(bank: Bank, robot: Agent, amount: int, account: str = "dry") -> bool:
    """Whether a dry run of this payment passes: it takes nothing."""
    body = {"run_key": "dry", "effects": [await pay(bank, amount, account)]}
    answer = await robot.send("POST", "/v1/evaluations", body)
    assert answer.status_code == 200, answer.text
    return bool(answer.json()["effects"][0]["decision"]["outcome"] != "deny")


async def edge(bank: Bank, robot: Agent, amount: int, account: str = "dry") -> bool:
    """Whether exactly this amount still passes, and one more does not."""
    return await dry(bank, robot, amount, account) and not await dry(bank, robot, amount + 1, account)


async def left(bank: Bank, robot: Agent, amount: int) -> bool:
    """Whether this is left of the one agent's budget, as it finds out and as the table says."""
    return await edge(bank, robot, amount) and await bank.service.db.read(held) == CAP - amount


async def spent(agent: Agent, *effects: dict[str, Any], outcomes: tuple[str, ...] = ()) -> dict[str, Any]:
    """A submission that was redeemed, and reported effect by effect."""
    view = await submitted(agent, *effects)
    attempt = f"attempt-{view['txn'][:12]}"
    assert (await agent.spend(view, attempt))["redeemed"]
    results = {"fired": {"result": {"id": "p"}}}
    report = [
        {"effect_id": effect["effect_id"], "outcome": outcome, **results.get(outcome, {})}
        for effect, outcome in zip(view["effects"], outcomes, strict=False)
    ]
    assert not report or (await agent.report(attempt, *report)).status_code == 200
    return view


# ------------------------------------------------------------------------------------------------------- what is held


async def test_what_is_released_or_waits_is_held_and_the_cap_is_exact(bank: Bank, robot: Agent) -> None:
    assert await became(robot, await pay(bank, 300)) == ["released"]
    view = await submitted(robot, await pay(bank, 600))
    assert states(view) == ["review"]
    refused = await submitted(robot, await pay(bank, 101))
    assert (states(refused), refused["effects"][0]["decision"]["policies"]) == (["denied"], ["cap"])
    assert await left(bank, robot, 100)  # what is denied takes nothing
    assert await became(robot, await pay(bank, 100)) == ["released"]
    assert await left(bank, robot, 0)
    maya = await bank.person("maya")
    holds(
        await page_of(maya, view), '<b>spent</b> <span class="muted">per principal, 24h</span>',
        '<b>shipped</b> <span class="muted">per resource, day, UTC</span>',
        "300 before, 600 for this effect, 100 left of 1,000", without=["meter spent"],
    )  # fmt: skip
    meters: Any = (await panel_of(bank, maya, view)).meters  # as of the reservation
    shown = [(one.name, one.before, one.this, one.limit.total) for one in meters]
    assert shown == [("spent", 300, 600, 1_000), ("shipped", 1, 1, 10)]
    assert (meters[0].until, meters[0].limit.policy_id, meters[0].limit.asks) == (None, "cap", False)
    assert meters[1].until > bank.clock()
    decision_id = view["effects"][0]["decision"]["decision_id"]
    (row,) = await bank.service.db.read(lambda conn: find(conn, DecisionRow, decision_id=decision_id))
    facts = [(fact["source"], fact["value"]) for fact in row.facts]
    assert facts == [("meter spent", "300"), ("meter shipped", "1")]


async def test_scenario_54_a_cap_of_nothing_denies_all(bank: Bank, robot: Agent) -> None:
    for cap, amount in ((0, 1), (-1, 0), (-1_000_000, 1)):
        await bank.policies(ANYBODY + CAPS.replace(f"> {CAP}", f"> {cap}"))
        refused = await submitted(robot, await pay(bank, amount))
        assert (states(refused), refused["effects"][0]["decision"]["policies"]) == (["denied"], ["cap"])
    assert await bank.service.db.read(held) == 0


async def test_effects_of_one_submission_see_each_other_in_order(bank: Bank, robot: Agent) -> None:
    assert await became(robot, *[await pay(bank, 400, f"a{n}") for n in range(2)]) == ["released"] * 2
    refused = await became(robot, *[await pay(bank, 150, f"b{n}") for n in range(2)])
    assert refused == ["withdrawn", "denied"]
    assert await left(bank, robot, 200)  # the first took its part, and gave it back with its sibling's end
    effects = [await pay(bank, amount, f"c{n}") for n, amount in enumerate((120, 120, 80))]
    effects.insert(1, await mail(bank))
    answer = (await robot.send("POST", "/v1/evaluations", {"run_key": "dry", "effects": effects})).json()
    said = [effect["decision"]["outcome"] for effect in answer["effects"]]
    assert said == ["release", "release", "deny", "release"]  # a dry run as well, and it takes nothing
    assert await left(bank, robot, 200)


# --------------------------------------------------------------------------------------------------- what comes back


async def test_what_ends_unspent_comes_back(bank: Bank, robot: Agent, maya: Visitor) -> None:
    denied = await submitted(robot, await pay(bank, 600))
    assert await left(bank, robot, 400)
    assert (await maya.vote(denied, "deny", reason="no")).status_code == 200
    assert await left(bank, robot, CAP)
    log = [body for kind, body in await bank.log(denied["txn"]) if kind == "effect_denied"]
    assert [body["given_back"] for body in log] == [True]
    withdrawn = await submitted(robot, await pay(bank, 300))
    await robot.send("POST", f"/v1/transactions/{withdrawn['txn']}/withdraw", {})
    assert await bank.service.db.read(held) == 0
    revoked = await submitted(robot, await pay(bank, 300))
    await bank.operator("revoke-transaction", {"txn": revoked["txn"], "reason": "wrong"})
    assert await bank.service.db.read(held) == 0
    assert states(await submitted(robot, await pay(bank, 600), key="a")) == ["review"]
    second = await submitted(robot, await pay(bank, 900), key="a")  # the superseded one gives back as well
    assert (second["rev"], states(second)) == (2, ["review"])
    assert await left(bank, robot, 100)
    await robot.send("POST", f"/v1/transactions/{second['txn']}/withdraw", {})
    for _ in range(2):  # the same list again takes nothing more
        third = await submitted(robot, await pay(bank, 900), key="a")
        assert (third["rev"], states(third)) == (3, ["review"])
        assert await left(bank, robot, 100)
    bank.clock.pass_(hours=25)  # it expires
    await bank.sweep()
    assert await bank.service.db.read(held) == 0


async def test_only_a_persons_word_gives_back(bank: Bank, robot: Agent, maya: Visitor) -> None:
    for outcome in ("unused", "failed", "fired"):
        await spent(robot, await pay(bank, 100), outcomes=(outcome,))
    doubted = [await spent(robot, await pay(bank, 100), outcomes=("unknown",)) for _ in range(2)]
    assert await left(bank, robot, CAP - 500)
    for view, answer, held_now in zip(doubted, ("fired", "not_fired"), (500, 400), strict=True):
        assert (await maya.settle(await maya.task(view, "unknown"), answer)).status_code == 200
        assert await left(bank, robot, CAP - held_now)


async def test_a_redeemer_that_is_not_the_agent_gives_it_back(bank: Bank, robot: Agent) -> None:
    warehouse = await bank.agent("warehouse")
    for n, outcome in enumerate(["fired", "unknown", "failed", "unused"] * 3):
        view = await submitted(robot, await ship(bank))
        assert (await warehouse.spend(view, f"w-{n}"))["redeemed"]
        report = {"effect_id": view["effects"][0]["effect_id"], "outcome": outcome}
        assert (await warehouse.report(f"w-{n}", report)).status_code == 200
    answers = [await became(robot, await ship(bank)) for _ in range(5)]
    assert answers == [["released"]] * 4 + [["denied"]]  # six of twelve stayed taken


async def test_what_was_compensated_stays_taken(bank: Bank, robot: Agent) -> None:
    unpay = METERS + '[meters.undone]\ncount = true\nof = ["unpay"]\nper = "principal"\nwindow = "day"\n'
    once = '@id("once") forbid (principal, action == Action::"unpay", resource) when { context.history.undone >= 1 };'
    bank.folder.write("meters.toml", unpay).policies(ANYBODY + ASKS + CAPS + once)
    assert await bank.activate()
    found = []
    for account in ("a", "b"):
        effects = await pay(bank, 300, account), await mail(bank, account)
        view = await spent(robot, *effects, outcomes=("fired", "failed"))
        found.append((await undone(robot, view)).json()["effect"]["state"])
    assert found == ["released", "denied"]
    assert await left(bank, robot, CAP - 600)


# ------------------------------------------------------------------------------------------------------ time passes


async def test_a_rolling_window_lets_go_of_what_is_older(bank: Bank, robot: Agent) -> None:
    begin = datetime(2026, 11, 21, 12, tzinfo=UTC)
    for account, hours in (("a", 0), ("b", 23)):
        bank.clock.stop_at(begin + timedelta(hours=hours))
        await spent(robot, await pay(bank, 400, account))
    bank.clock.stop_at(begin + timedelta(hours=24) - timedelta(microseconds=1))
    assert await edge(bank, robot, 200)
    bank.clock.stop_at(begin + timedelta(hours=24))
    assert await edge(bank, robot, 600)


MIDNIGHTS = [
    # in Berlin, after the day of 25 hours; then in UTC, where no timezone is named (scenario 50)
    ('window = "day"\ntimezone = "Europe/Berlin"', (2026, 10, 24, 22, 1), (2026, 10, 25, 23)),
    ('window = "day"', (2026, 11, 23, 0), (2026, 11, 24, 0)),
]


async def test_a_calendar_window_begins_at_midnight(bank: Bank, robot: Agent) -> None:
    for window, begin, end in MIDNIGHTS:
        await bank.write("meters.toml", METERS.replace('window = "day"', window))
        bank.clock.stop_at(datetime(*begin, tzinfo=UTC))
        for _ in range(CALLS):
            assert await became(robot, await pay(bank, 1)) == ["released"]
        midnight = datetime(*end, tzinfo=UTC)
        bank.clock.stop_at(midnight - timedelta(microseconds=1))
        assert not await dry(bank, robot, 1, "acme")
        bank.clock.stop_at(midnight)
        assert await dry(bank, robot, 1, "acme")


# ---------------------------------------------------------------------------------------------- asked about again


async def test_asked_again_it_sees_what_was_held_before_it(bank: Bank, robot: Agent, maya: Visitor) -> None:
    first = await submitted(robot, await pay(bank, 700, "a"))
    await submitted(robot, await pay(bank, 300, "b"))  # this fills the budget, its own part included
    await maya.vote(first)
    seen = await robot.see(first["txn"])
    assert states(seen) == ["released"]
    assert (await robot.spend(seen, "a"))["redeemed"]
    renewal = {"effect_ids": [seen["effects"][0]["effect_id"]]}
    assert (await robot.send("POST", "/v1/redemptions/a/renew", renewal)).json()["redeemed"]


async def test_a_lower_cap_ends_the_latest_first(bank: Bank, robot: Agent) -> None:
    views = [await submitted(robot, await pay(bank, 250, f"a{n}")) for n in range(4)]
    await bank.policies(ANYBODY + ASKS + CAPS.replace(f"> {CAP}", "> 500"))
    found = [states(await robot.see(view["txn"])) for view in views]
    assert found == [["released"], ["released"], ["denied"], ["denied"]]
    assert await bank.service.db.read(held) == 500
    tokens = [(await robot.release(view)).json()["releases"] for view in views[:2]]
    bank.folder.policies(ANYBODY + ASKS + CAPS.replace(f"> {CAP}", "> 300"))
    await bank.service.active.reload()  # in force, and nothing open was asked about: the redemption asks
    redeemed = [(await robot.redeem(token, f"r{n}")).json()["redeemed"] for n, token in enumerate(tokens)]
    assert redeemed == [True, False]


async def test_a_meter_that_comes_later_counts_what_is(bank: Bank, robot: Agent) -> None:
    bank.folder.write("meters.toml", "").policies(ANYBODY + ASKS)
    assert await bank.activate()
    await spent(robot, await pay(bank, 400, "spent"))
    views = [await submitted(robot, await pay(bank, 400, f"a{n}")) for n in range(3)]
    tokens = (await robot.release(views[0])).json()["releases"]
    assert await bank.service.db.read(held) == 0
    bank.folder.write("meters.toml", METERS).policies(ANYBODY + ASKS + CAPS)
    await bank.service.active.reload()
    assert (await robot.redeem(tokens, "a")).json()["redeemed"]
    assert await left(bank, robot, 600)  # counted where it is redeemed, as it was not evaluated before
    await reevaluate_open_effects(bank.service.ctx)
    found = [states(await robot.see(view["txn"])) for view in views]
    assert sorted(found) == [["denied"], ["redeemed"], ["released"]]
    assert await left(bank, robot, 200)


async def test_another_window_counts_what_is_stored(bank: Bank, robot: Agent) -> None:
    for account, amount, hour in (("a", 400, 12), ("b", 100, 18)):
        bank.clock.stop_at(datetime(2026, 11, 21, hour, tzinfo=UTC))
        await spent(robot, await pay(bank, amount, account))
    shorter = METERS.replace("meters.spent", "meters.lately").replace("24h", "3h")
    bank.folder.write("meters.toml", shorter)
    await bank.policies(ANYBODY + CAPS.replace("history.spent", "history.lately"))
    assert await edge(bank, robot, 900)
    bank.folder.write("meters.toml", METERS.replace('per = "principal"', 'per = "resource"'))
    await bank.policies(ANYBODY + CAPS)
    for account, amount in (("a", 600), ("b", 900), ("c", 1_000)):
        assert await edge(bank, robot, amount, account)


# ------------------------------------------------------------------------------------------------------- many at once


async def at_once(
    replicas: list[World], agents: list[Agent], lists: list[list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Submit every list, the agents by turns, each at the next replica; again where it waited too long."""
    for agent in agents:  # it knows a nonce, so no answer asks for one
        await agent.submit(await mail(replicas[0]), run_key="first")

    async def one(n: int) -> dict[str, Any]:
        of, http = agents[n % len(agents)], replicas[n % len(replicas)].http
        agent = Agent(of.name, of.key, http, of.clock, of.nonce)
        while True:
            answer = await agent.submit(*lists[n], run_key=f"run-{n}", idempotency_key=f"run-{n}")
            if answer.status_code != 503:
                assert answer.is_success, answer.text
                view: dict[str, Any] = answer.json()
                return view

    return await asyncio.gather(*(one(n) for n in range(len(lists))))


@pytest.mark.parametrize("engine", ENGINES)
async def test_sixty_four_at_once_never_exceed_a_cap_and_reach_it(replicas: list[World]) -> None:
    lists = [[await pay(replicas[0], 30, f"a{n}")] for n in range(64)]
    views = await at_once(replicas, [await replicas[0].agent("robot")], lists)
    assert Counter(states(view)[0] for view in views) == {"released": CAP // 30, "denied": 64 - CAP // 30}
    assert await replicas[0].service.db.read(held) == CAP // 30 * 30


@pytest.mark.parametrize("engine", ["postgresql"])
async def test_submissions_in_crossing_order_never_deadlock(replicas: list[World], folder: Payments) -> None:
    folder.policies(ANYBODY + CAPS.replace(f"{CALLS} ", "1000000 "))
    for replica in replicas:
        await replica.activate()
    lists = []
    for n in range(24):
        order = [f"acme-{m % 4}" for m in range(n % 4, n % 4 + 4)]
        lists.append([await pay(replicas[0], 1, account) for account in (order if n % 2 else order[::-1])])
    with capture_logs() as lines:
        views = await at_once(replicas, [await replicas[0].agent(f"robot-{n}") for n in range(4)], lists)
    assert [states(view) for view in views] == [["released"] * 4] * 24
    assert [line for line in lines if line["event"] == "unit_rerun"] == []  # no deadlock had to be broken
    assert await replicas[0].service.db.read(held) == 24 * 4


# ------------------------------------------------------------------------------------------------------- edges


async def test_a_call_that_does_not_fit_takes_nothing(bank: Bank, robot: Agent) -> None:
    for args in ({"amount": -900}, {"amount": "900"}, {"amount": 900, "account": 5}, {}):
        assert await became(robot, await call(bank, "pay", {"account": "acme", **args})) == ["denied"]
    view = await submitted(robot, await pay(bank, 600))
    assert await left(bank, robot, CAP - 600)
    await bank.write("tools/pay.json", counted_pay(title="Another"))  # nor one that fits no more
    assert states(await robot.see(view["txn"])) == ["denied"]
    assert await bank.service.db.read(held) == 0
    long = "".join(chr(0x20000 + n) for n in range(1_000))  # longer than an index of PostgreSQL takes
    assert await became(robot, await pay(bank, 1, long)) == ["released"]
    assert await left(bank, robot, CAP - 1)
