"""Budgets through the wire, on both engines: what a meter shows, what is held, and what brings it back (I-10)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from policy_service.storage.core import find
from policy_service.storage.tables import DecisionRow
from tests.fakes.log_check import faults_of_log
from tests.fakes.payments import ANYBODY, Payments, gate
from tests.fakes.world import Agent, Clock, World, running
from tests.integration.service.effects import call, mail, pay, ship
from tests.integration.service.engines import ENGINES
from tests.integration.service.metered import ASKS, CALLS, CAP, CAPS, METERS, counted_pay, held, metered

pytestmark = pytest.mark.anyio


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """A budget is kept on each engine in its own way."""
    chosen: str = request.param
    return chosen


@pytest.fixture
def folder(tmp_path: Path) -> Payments:
    """A bundle with meters."""
    return metered(tmp_path / "bundle")


@pytest.fixture
def clock() -> Clock:
    """A meter that counts a day sees one day."""
    return Clock.from_noon()


async def submitted(agent: Agent, *effects: dict[str, Any], key: str) -> dict[str, Any]:
    view: dict[str, Any] = (await agent.submit(*effects, run_key=key)).json()
    return view


def states(view: dict[str, Any]) -> list[str]:
    return [effect["state"] for effect in view["effects"]]


async def room_for(bank: World, robot: Agent, amount: int) -> bool:
    """Whether a dry run of this payment passes: it takes nothing."""
    body = {"run_key": "dry", "effects": [await pay(bank, amount, f"dry-{amount}")]}
    answer = await robot.send("POST", "/v1/evaluations", body)
    assert answer.status_code == 200, answer.text
    return bool(answer.json()["effects"][0]["decision"]["outcome"] != "deny")


async def left(bank: World, robot: Agent) -> int:
    """What is left of the agent's budget, found out as an agent could."""
    low, high = 0, CAP + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if await room_for(bank, robot, middle) else (low, middle)
    assert low == CAP - await bank.service.db.read(held)
    return low


# ------------------------------------------------------------------------------------------------------- what is held


async def test_what_is_released_and_what_waits_holds_its_part_and_the_cap_is_exact(
    bank: World, robot: Agent
) -> None:
    assert states(await submitted(robot, await pay(bank, 300), key="a")) == ["released"]
    assert states(await submitted(robot, await pay(bank, 600), key="b")) == ["review"]
    refused = await submitted(robot, await pay(bank, 101), key="c")
    assert states(refused) == ["denied"]
    assert refused["effects"][0]["decision"]["policies"] == ["cap"]
    assert await left(bank, robot) == 100  # what is denied takes nothing
    assert states(await submitted(robot, await pay(bank, 100), key="d")) == ["released"]
    assert await left(bank, robot) == 0


async def test_scenario_54_a_cap_of_nothing_or_less_denies_every_payment(
    bank: World, robot: Agent, folder: Payments
) -> None:
    for n, (cap, amount) in enumerate([(0, 1), (-1, 0), (-1, 1), (-1_000_000, 1)]):
        folder.policies(ANYBODY + CAPS.replace(f"> {CAP}", f"> {cap}"))
        await bank.activate()
        refused = await submitted(robot, await pay(bank, amount), key=f"{n}")
        assert states(refused) == ["denied"], f"a cap of {cap} let {amount} through"
        assert refused["effects"][0]["decision"]["policies"] == ["cap"]
    assert await bank.service.db.read(held) == 0


async def test_each_agent_has_a_budget_of_its_own_and_each_resource_one(bank: World, robot: Agent) -> None:
    other = await bank.agent("other")
    for n in range(CALLS):
        agent = robot if n % 2 else other
        assert states(await submitted(agent, await pay(bank, 1), key=f"call-{n}")) == ["released"]
    refused = await submitted(other, await pay(bank, 1), key="one-more")
    assert (states(refused), refused["effects"][0]["decision"]["policies"]) == (["denied"], ["calls"])
    assert states(await submitted(other, await pay(bank, 1, "elsewhere"), key="elsewhere")) == ["released"]
    assert states(await submitted(other, await pay(bank, CAP - 6, "x"), key="the-rest")) == ["review"]


async def test_effects_of_one_submission_see_each_other_in_order(bank: World, robot: Agent) -> None:
    list_of = [await pay(bank, 400, f"a{n}") for n in range(2)]
    assert states(await submitted(robot, *list_of, key="fits")) == ["released", "released"]
    assert states(await submitted(robot, *[await pay(bank, 150, f"b{n}") for n in range(2)], key="not")) == [
        "withdrawn",
        "denied",
    ]
    assert await left(bank, robot) == 200  # the first took its part, and gave it back with its sibling's end


async def test_a_dry_run_sees_the_meters_and_its_own_list(bank: World, robot: Agent) -> None:
    await submitted(robot, await pay(bank, 500), key="a")
    effects = [
        await pay(bank, 300, "x"),
        await mail(bank),
        await pay(bank, 300, "y"),
        await pay(bank, 200, "z"),
    ]
    answer = (await robot.send("POST", "/v1/evaluations", {"run_key": "dry", "effects": effects})).json()
    said = [effect["decision"]["outcome"] for effect in answer["effects"]]
    assert said == ["release", "release", "deny", "release"]
    assert await left(bank, robot) == 500


async def test_people_read_what_the_meters_showed(bank: World, robot: Agent) -> None:
    await submitted(robot, await pay(bank, 300), key="a")
    waiting = await submitted(robot, await pay(bank, 600), key="b")
    maya = await bank.person("maya")
    page = (await maya.get(f"/reviews/{waiting['effects'][0]['review']['review_id']}")).text
    for told in (
        '<b>spent</b> <span class="muted">per principal, 24h</span>',
        '<b>shipped</b> <span class="muted">per resource, day, UTC</span>',
    ):
        assert told in page, told
    decision = waiting["effects"][0]["decision"]["decision_id"]
    (facts,) = await bank.service.db.read(
        lambda conn: [row.facts for row in find(conn, DecisionRow, decision_id=decision)]
    )
    assert [(fact["source"], fact["value"]) for fact in facts] == [
        ("meter spent", "300"),
        ("meter shipped", "1"),
    ]


# --------------------------------------------------------------------------------------------------- what comes back


async def test_what_ends_unspent_comes_back(bank: World, robot: Agent) -> None:
    maya = await bank.person("maya")
    denied = await submitted(robot, await pay(bank, 600), key="denied")
    assert await left(bank, robot) == 400
    assert (await maya.vote(denied, "deny", reason="no")).status_code == 200
    assert await left(bank, robot) == CAP
    withdrawn = await submitted(robot, await pay(bank, 300), key="withdrawn")
    await robot.send("POST", f"/v1/transactions/{withdrawn['txn']}/withdraw", {})
    assert await left(bank, robot) == CAP
    revoked = await submitted(robot, await pay(bank, 300), key="revoked")
    await bank.operator("revoke-transaction", {"txn": revoked["txn"], "reason": "wrong"})
    assert await left(bank, robot) == CAP
    await submitted(robot, await pay(bank, 300), key="expired")
    bank.clock.pass_(hours=2)
    await bank.sweep()
    assert await left(bank, robot) == CAP
    log = [body for kind, body in await bank.log(denied["txn"]) if kind == "effect_denied"]
    assert [body["given_back"] for body in log] == [True]


async def test_the_agents_own_word_gives_nothing_back(bank: World, robot: Agent) -> None:
    for outcome in ("unused", "failed", "unknown", "fired"):
        view = await submitted(robot, await pay(bank, 100), key=outcome)
        assert (await robot.spend(view, f"attempt-{outcome}"))["redeemed"]
        told = {"effect_id": view["effects"][0]["effect_id"], "outcome": outcome}
        assert (await robot.report(f"attempt-{outcome}", told)).status_code == 200
    assert await left(bank, robot) == CAP - 400


async def test_a_redeemer_that_is_not_the_agent_gives_it_back(bank: World, robot: Agent) -> None:
    warehouse = await bank.agent("warehouse")
    for n, outcome in enumerate(["fired", "unknown", "failed", "unused"] * 3):
        view = await submitted(robot, await ship(bank), key=f"ship-{n}")
        assert states(view) == ["released"]
        assert (await warehouse.spend(view, f"w-{n}"))["redeemed"]
        told = {"effect_id": view["effects"][0]["effect_id"], "outcome": outcome}
        assert (await warehouse.report(f"w-{n}", told)).status_code == 200
    answers = [states(await submitted(robot, await ship(bank), key=f"more-{n}")) for n in range(5)]
    assert answers == [["released"]] * 4 + [["denied"]]  # six of twelve stayed taken


async def test_a_person_gives_it_back(bank: World, robot: Agent) -> None:
    for key, answer in (("gone", "fired"), ("not", "not_fired")):
        view = await submitted(robot, await pay(bank, 200), key=key)
        await robot.spend(view, f"attempt-{key}")
        told = {"effect_id": view["effects"][0]["effect_id"], "outcome": "unknown"}
        await robot.report(f"attempt-{key}", told)
        maya = await bank.person("maya")
        assert (await maya.settle(await maya.task(view, "unknown"), answer)).status_code == 200
    assert await left(bank, robot) == CAP - 200


async def test_a_revision_that_is_superseded_gives_back_and_the_next_takes_anew(
    bank: World, robot: Agent
) -> None:
    assert states(await submitted(robot, await pay(bank, 600), key="a")) == ["review"]
    second = await submitted(robot, await pay(bank, 900), key="a")
    assert (second["rev"], states(second)) == (2, ["review"])
    assert await left(bank, robot) == 100
    await robot.send("POST", f"/v1/transactions/{second['txn']}/withdraw", {})
    third = await submitted(robot, await pay(bank, 900), key="a")
    assert (third["rev"], states(third)) == (3, ["review"])
    again = await submitted(robot, await pay(bank, 900), key="a")  # the same list again takes nothing more
    assert (again["rev"], await left(bank, robot)) == (3, 100)


async def test_what_was_compensated_stays_taken_and_what_takes_it_back_counts_where_it_is_named(
    bank: World, robot: Agent, folder: Payments
) -> None:
    unpay = METERS + '[meters.undone]\ncount = true\nof = ["unpay"]\nper = "principal"\nwindow = "day"\n'
    once = '@id("once") forbid (principal, action == Action::"unpay", resource) when { context.history.undone >= 1 };'
    folder.write("meters.toml", unpay).policies(ANYBODY + ASKS + CAPS + once)
    assert await bank.activate()
    found = []
    for key in ("a", "b"):
        view = await submitted(robot, await pay(bank, 300, key), await mail(bank, key), key=key)
        await robot.spend(view, f"attempt-{key}")
        one, two = (effect["effect_id"] for effect in view["effects"])
        fired = {"effect_id": one, "outcome": "fired", "result": {"id": key}}
        await robot.report(f"attempt-{key}", fired, {"effect_id": two, "outcome": "failed"})
        undo = await robot.send("POST", f"/v1/transactions/{view['txn']}/compensate", {"effect_id": one})
        found.append(undo.json()["effect"]["state"])
    assert found == ["released", "denied"]
    assert await left(bank, robot) == CAP - 600


# ------------------------------------------------------------------------------------------------------ time passes


async def test_a_rolling_window_lets_go_of_what_is_older(bank: World, robot: Agent) -> None:
    begin = datetime(2026, 11, 21, 12, tzinfo=UTC)
    bank.clock.stop_at(begin)
    view = await submitted(robot, await pay(bank, 400, "a"), key="a")
    await robot.spend(view, "a")
    bank.clock.stop_at(begin + timedelta(hours=23))
    view = await submitted(robot, await pay(bank, 400, "b"), key="b")
    await robot.spend(view, "b")
    bank.clock.stop_at(begin + timedelta(hours=24) - timedelta(microseconds=1))
    assert (await room_for(bank, robot, 200), await room_for(bank, robot, 201)) == (True, False)
    bank.clock.stop_at(begin + timedelta(hours=24))
    assert (await room_for(bank, robot, 600), await room_for(bank, robot, 601)) == (True, False)


async def test_a_calendar_window_begins_anew_at_local_midnight(
    bank: World, robot: Agent, folder: Payments
) -> None:
    berlin = METERS.replace('window = "day"', 'window = "day"\ntimezone = "Europe/Berlin"')
    folder.write("meters.toml", berlin)
    assert await bank.activate()
    bank.clock.stop_at(datetime(2026, 10, 24, 22, 1, tzinfo=UTC))  # the day of 25 hours has begun there
    for n in range(CALLS):
        assert states(await submitted(robot, await pay(bank, 1), key=f"c{n}")) == ["released"]
    bank.clock.stop_at(datetime(2026, 10, 25, 22, 59, tzinfo=UTC))
    assert not await room_for_call(bank, robot)
    bank.clock.stop_at(datetime(2026, 10, 25, 23, 0, tzinfo=UTC))
    assert await room_for_call(bank, robot)


async def test_scenario_50_where_no_timezone_is_named_a_day_begins_anew_at_midnight_utc(
    bank: World, robot: Agent
) -> None:
    bank.clock.stop_at(datetime(2026, 11, 23, 0, 0, tzinfo=UTC))
    for n in range(CALLS):
        assert states(await submitted(robot, await pay(bank, 1), key=f"c{n}")) == ["released"]
    bank.clock.stop_at(datetime(2026, 11, 23, 23, 59, 59, 999_999, tzinfo=UTC))
    assert not await room_for_call(bank, robot)
    bank.clock.stop_at(datetime(2026, 11, 24, 0, 0, tzinfo=UTC))
    assert await room_for_call(bank, robot)


async def room_for_call(bank: World, robot: Agent) -> bool:
    body = {"run_key": "dry", "effects": [await pay(bank, 1)]}
    answer = (await robot.send("POST", "/v1/evaluations", body)).json()
    return bool(answer["effects"][0]["decision"]["outcome"] != "deny")


async def test_a_clock_that_jumps_back_frees_nothing_and_counts_nothing_twice(
    bank: World, robot: Agent
) -> None:
    right = datetime(2026, 11, 21, 12, tzinfo=UTC)
    bank.clock.stop_at(right + timedelta(hours=30))  # it is ahead
    ahead = await submitted(robot, await pay(bank, 300, "a"), key="a")
    bank.clock.stop_at(right)
    assert (await room_for(bank, robot, 700), await room_for(bank, robot, 701)) == (True, False)
    after = await submitted(robot, await pay(bank, 700, "b"), key="b")
    assert states(after) == ["review"]
    maya = await bank.person("maya")
    await maya.vote(after)  # asked again: it sees what was held before it, although that bears a later time
    assert states(await robot.see(after["txn"])) == ["released"]
    assert states(await robot.see(ahead["txn"])) == ["released"]
    assert not await room_for(bank, robot, 1)


# ---------------------------------------------------------------------------------------------- asked about again


async def test_asked_again_an_effect_sees_what_was_held_before_it(bank: World, robot: Agent) -> None:
    first = await submitted(robot, await pay(bank, 700, "a"), key="a")
    # this fills the budget, its own part included
    await submitted(robot, await pay(bank, 300, "b"), key="b")
    maya = await bank.person("maya")
    await maya.vote(first)
    seen = await robot.see(first["txn"])
    assert states(seen) == ["released"]
    assert (await robot.spend(seen, "a"))["redeemed"]
    answer = await robot.send(
        "POST", "/v1/redemptions/a/renew", {"effect_ids": [seen["effects"][0]["effect_id"]]}
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["redeemed"]


async def test_a_lower_cap_ends_what_no_longer_fits_the_latest_first(
    bank: World, robot: Agent, folder: Payments
) -> None:
    views = [await submitted(robot, await pay(bank, 250, f"a{n}"), key=f"a{n}") for n in range(4)]
    folder.policies(ANYBODY + ASKS + CAPS.replace(f"> {CAP}", "> 500"))
    assert await bank.activate()
    assert [states(await robot.see(view["txn"])) for view in views] == [
        ["released"], ["released"], ["denied"], ["denied"],
    ]  # fmt: skip
    assert await bank.service.db.read(held) == 500


async def test_a_lower_cap_that_a_replica_has_not_asked_about_yet_stops_the_redemption(
    bank: World, robot: Agent, folder: Payments
) -> None:
    views = [await submitted(robot, await pay(bank, 250, f"a{n}"), key=f"a{n}") for n in range(2)]
    tokens = [(await robot.release(view)).json()["releases"] for view in views]
    folder.policies(ANYBODY + ASKS + CAPS.replace(f"> {CAP}", "> 300"))
    await bank.service.active.reload()  # in force, and nothing open was asked about
    spent = [(await robot.redeem(token, f"r{n}")).json()["redeemed"] for n, token in enumerate(tokens)]
    assert spent == [True, False]


async def test_a_meter_that_comes_later_counts_what_is_open_from_then_on(
    bank: World, robot: Agent, folder: Payments
) -> None:
    folder.write("meters.toml", "").policies(ANYBODY + ASKS)
    assert await bank.activate()
    spent = await submitted(robot, await pay(bank, 400, "spent"), key="spent")
    await robot.spend(spent, "spent")
    views = [await submitted(robot, await pay(bank, 400, f"a{n}"), key=f"a{n}") for n in range(3)]
    assert await bank.service.db.read(held) == 0
    folder.write("meters.toml", METERS).policies(ANYBODY + ASKS + CAPS)
    assert await bank.activate()
    found = [states(await robot.see(view["txn"])) for view in views]
    assert sorted(found) == [["denied"], ["released"], ["released"]]
    assert await left(bank, robot) == 200


async def test_one_that_was_missed_until_its_redemption_is_counted_there(
    bank: World, robot: Agent, folder: Payments
) -> None:
    folder.write("meters.toml", "").policies(ANYBODY + ASKS)
    assert await bank.activate()
    view = await submitted(robot, await pay(bank, 400, "a"), await pay(bank, 400, "b"), key="a")
    tokens = (await robot.release(view)).json()["releases"]
    folder.write("meters.toml", METERS).policies(ANYBODY + ASKS + CAPS)
    await bank.service.active.reload()
    assert (await robot.redeem(tokens, "a")).json()["redeemed"]
    assert await left(bank, robot) == 200


async def test_another_window_another_per_and_another_name_count_what_is_stored(
    bank: World, robot: Agent, folder: Payments
) -> None:
    bank.clock.stop_at(datetime(2026, 11, 21, 12, tzinfo=UTC))
    await robot.spend(await submitted(robot, await pay(bank, 400, "a"), key="a"), "a")
    bank.clock.stop_at(datetime(2026, 11, 21, 18, tzinfo=UTC))
    await robot.spend(await submitted(robot, await pay(bank, 100, "b"), key="b"), "b")
    shorter = METERS.replace("meters.spent", "meters.lately").replace("24h", "3h")
    folder.write("meters.toml", shorter).policies(ANYBODY + CAPS.replace("history.spent", "history.lately"))
    assert await bank.activate()
    assert (await room_for(bank, robot, 900), await room_for(bank, robot, 901)) == (True, False)
    folder.write("meters.toml", METERS.replace('per = "principal"', 'per = "resource"')).policies(
        ANYBODY + CAPS
    )
    assert await bank.activate()
    outcomes = []
    for account, amount in (("a", 600), ("a", 601), ("b", 900), ("c", 1_000)):
        body = {"run_key": "dry", "effects": [await pay(bank, amount, account)]}
        answer = (await robot.send("POST", "/v1/evaluations", body)).json()
        outcomes.append(answer["effects"][0]["decision"]["outcome"])
    assert outcomes == ["release", "deny", "release", "release"]


# ------------------------------------------------------------------------------------------------------- many at once


@pytest.fixture
async def replicas(tmp_path: Path, engine: str, database: dict[str, str]) -> AsyncIterator[list[World]]:
    """The service, twice over one database where the engine allows it."""
    folder, clock = metered(tmp_path / "bundle"), Clock()
    folder.policies(ANYBODY + CAPS.replace(f"{CALLS} ", "1000000 "))
    async with AsyncExitStack() as stack:
        started = [
            await stack.enter_async_context(
                running(tmp_path / f"data-{n}", folder.path, clock=clock, **database)
            )
            for n in range(1 if engine == "sqlite" else 2)
        ]
        yield started
        assert await started[0].service.db.read(faults_of_log) == []


def doors(agent: Agent, replicas: list[World], count: int) -> list[Agent]:
    """One agent, so many times, each of them at the next replica's door."""
    return [
        Agent(agent.name, agent.key, replicas[n % len(replicas)].http, agent.clock, agent.nonce)
        for n in range(count)
    ]


async def patiently(agent: Agent, *effects: dict[str, Any], key: str) -> dict[str, Any]:
    """Submit, and again under the same key when the service says that it waited too long: this machine may be busy."""
    while True:
        answer = await agent.submit(*effects, run_key=key, idempotency_key=key)
        if answer.status_code != 503:
            assert answer.is_success, answer.text
            view: dict[str, Any] = answer.json()
            return view


async def test_sixty_four_at_once_never_exceed_a_cap_and_reach_it(replicas: list[World]) -> None:
    robot = await replicas[0].agent("robot")
    # it knows a nonce, so no answer asks for one
    await robot.submit(await mail(replicas[0]), run_key="first")
    calls = [await pay(replicas[0], 30, f"a{n}") for n in range(64)]
    views = await asyncio.gather(
        *(patiently(at, calls[n], key=f"run-{n}") for n, at in enumerate(doors(robot, replicas, 64)))
    )
    assert Counter(states(view)[0] for view in views) == {"released": CAP // 30, "denied": 64 - CAP // 30}
    assert await replicas[0].service.db.read(held) == CAP // 30 * 30


async def test_submissions_that_touch_meters_in_crossing_order_never_wait_in_a_ring(
    replicas: list[World],
) -> None:
    agents = [await replicas[0].agent(f"robot-{n}") for n in range(4)]
    for agent in agents:
        await agent.submit(await mail(replicas[0]), run_key="first")
    accounts = [f"acme-{n}" for n in range(4)]

    async def crossing(n: int) -> list[str]:
        agent = doors(agents[n % 4], replicas[n % len(replicas) :], 1)[0]
        order = accounts[n % 4 :] + accounts[: n % 4]
        effects = [await pay(replicas[0], 1, account) for account in (order if n % 2 else reversed(order))]
        return states(await patiently(agent, *effects, key=f"run-{n}"))

    with capture_logs() as lines:
        found = await asyncio.gather(*(crossing(n) for n in range(24)))
    assert found == [["released"] * 4] * 24
    assert [line for line in lines if line["event"] == "unit_rerun"] == []  # no deadlock had to be broken
    assert await replicas[0].service.db.read(held) == 24 * 4


# ------------------------------------------------------------------------------------------------------- edges


async def test_no_amount_is_too_large_for_a_meter(bank: World, robot: Agent, folder: Payments) -> None:
    """A thousand of the largest numbers leave 64 bits; neither the sum nor a rule that adds to it errs."""
    never = '@id("cap") forbid (principal, action == Action::"pay", resource) when { context.history.spent + '
    folder.policies(ANYBODY + never + "context.input.amount < 0 };")
    assert await bank.activate()
    largest = 2**53 - 1
    for n in range(2):
        effects = [await pay(bank, largest, f"a{n}-{m}") for m in range(64)]
        assert set(states(await submitted(robot, *effects, key=f"a{n}"))) == {"released"}
    assert await bank.service.db.read(held) == 128 * largest


async def test_a_call_that_does_not_fit_its_manifest_takes_nothing(bank: World, robot: Agent) -> None:
    for n, args in enumerate([{"amount": -900}, {"amount": "900"}, {"amount": 900, "account": 5}, {}]):
        view = await submitted(robot, await call(bank, "pay", {"account": "acme", **args}), key=f"wrong-{n}")
        assert states(view) == ["denied"]
    long = "".join(chr(0x20000 + n) for n in range(1_000))  # longer than an index of PostgreSQL takes
    fits = await submitted(robot, await pay(bank, 1, long), key="long")
    assert states(fits) == ["released"], fits["effects"][0]["decision"]["reasons"]
    assert await left(bank, robot) == CAP - 1


async def test_a_changed_manifest_of_an_open_effect_takes_nothing_more(
    bank: World, robot: Agent, folder: Payments
) -> None:
    view = await submitted(robot, await pay(bank, 600), key="a")
    folder.write("tools/pay.json", counted_pay(title="Another"))
    assert await bank.activate()
    assert states(await robot.see(view["txn"])) == ["denied"]
    assert await left(bank, robot) == CAP


async def test_a_gate_may_read_a_meter(bank: World, robot: Agent, folder: Payments) -> None:
    asks = gate("much-today", "finance", "context.history.spent + context.input.amount > 300")
    folder.policies(ANYBODY + CAPS + asks)
    assert await bank.activate()
    assert [states(await submitted(robot, await pay(bank, 150, f"a{n}"), key=f"a{n}")) for n in range(3)] == [
        ["released"],
        ["released"],
        ["review"],
    ]
