"""How a transaction ends unfired: time runs out, the agent takes it back, a sibling ends."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from tests.fakes.payments import ANYBODY, Payments, gate
from tests.fakes.world import Agent, World
from tests.integration.service.effects import mail, pay

pytestmark = pytest.mark.anyio


async def ends(bank: World, robot: Agent, view: dict[str, Any]) -> list[str]:
    """The states of a transaction's effects after the timers have run."""
    await bank.sweep()
    seen = await robot.see(view["txn"])
    return [seen["state"], *(effect["state"] for effect in seen["effects"])]


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


EDGES = {"a moment before": (-1, "review"), "exactly then": (0, "ended"), "a moment after": (1, "ended")}


@pytest.mark.parametrize(("milliseconds", "state"), EDGES.values(), ids=EDGES)
async def test_a_question_is_open_until_its_time_is_over(
    bank: World, folder: Payments, robot: Agent, milliseconds: int, state: str
) -> None:
    folder.policies(ANYBODY + gate("quick", "finance", answer_within="10m"))
    await bank.activate()
    view = (await robot.submit(await pay(bank))).json()
    answer_by = moment(view["effects"][0]["review"]["answer_by"])
    assert answer_by - moment(view["submitted_at"]) == timedelta(minutes=10)
    bank.clock.stop_at(answer_by + timedelta(milliseconds=milliseconds))
    assert (await ends(bank, robot, view))[0] == state


async def test_an_expired_question_takes_no_vote_even_before_any_timer_has_looked(
    bank: World, robot: Agent
) -> None:
    view = (await robot.submit(await pay(bank, 500), await pay(bank))).json()
    bank.clock.pass_(hours=24)
    maya = await bank.person("maya")
    answer = (await maya.vote(view)).json()
    assert answer["state"] == "expired" and answer["votes"][0]["counted"] is False
    assert await ends(bank, robot, view) == ["ended", "expired", "withdrawn"]
    reason = (await robot.see(view["txn"]))["effects"][0]["decision"]["reasons"][-1]
    assert reason["code"] == "expired"


async def test_the_shortest_time_of_all_gates_counts(bank: World, folder: Payments, robot: Agent) -> None:
    folder.rules(gate("hurry", "legal", answer_within="30s"))
    await bank.activate()
    view = (await robot.submit(await pay(bank, 500))).json()
    bank.clock.pass_(seconds=31)
    assert await ends(bank, robot, view) == ["ended", "expired"]


@pytest.mark.parametrize(("milliseconds", "state"), [(-1, "ready"), (0, "ended")])
async def test_releases_may_be_used_for_an_hour_unless_a_gate_says_less(
    bank: World, robot: Agent, milliseconds: int, state: str
) -> None:
    view = (await robot.submit(await pay(bank), await mail(bank))).json()
    valid_until = moment(view["valid_until"])
    assert valid_until - moment(view["submitted_at"]) == timedelta(hours=1)
    bank.clock.stop_at(valid_until + timedelta(milliseconds=milliseconds))
    assert (await ends(bank, robot, view))[0] == state


async def test_the_time_of_releases_runs_from_when_all_were_ready(
    bank: World, folder: Payments, robot: Agent
) -> None:
    folder.policies(ANYBODY + gate("slow", "finance", valid_for="5m"))
    await bank.activate()
    view = (await robot.submit(await mail(bank), await pay(bank))).json()
    bank.clock.pass_(hours=3)
    maya = await bank.person("maya")
    await maya.vote(view, effect=1)
    ready = await robot.see(view["txn"])
    assert ready["state"] == "ready"
    assert moment(ready["valid_until"]) - bank.clock() < timedelta(minutes=5)
    bank.clock.pass_(minutes=5)
    for answer in (await robot.release(ready), await robot.release(ready)):
        assert answer.json().get("releases", []) == []
    assert await ends(bank, robot, ready) == ["ended", "expired", "withdrawn"]


async def test_releases_that_are_over_are_not_redeemed_even_before_any_timer_has_looked(
    bank: World, folder: Payments, robot: Agent
) -> None:
    folder.policies(ANYBODY + gate("slow", "finance", valid_for="1m"))
    await bank.activate()
    view = (await robot.submit(await pay(bank))).json()
    maya = await bank.person("maya")
    await maya.vote(view)
    bank.clock.stop_at(bank.clock())
    ready = await robot.see(view["txn"])
    tokens = (await robot.release(ready)).json()["releases"]
    bank.clock.stop_at(moment(ready["valid_until"]))
    answer = await robot.redeem(tokens)
    assert answer.json().get("redeemed") is not True
    assert await ends(bank, robot, ready) == ["ended", "expired"]


async def test_the_agent_takes_back_what_is_open(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank), await pay(bank, 500))).json()
    answer = await robot.send(
        "POST", f"/v1/transactions/{view['txn']}/withdraw", {"reason": "changed my mind"}
    )
    assert (answer.status_code, answer.json()["state"]) == (200, "ended")
    assert await ends(bank, robot, view) == ["ended", "withdrawn", "withdrawn"]
    again = await robot.send("POST", f"/v1/transactions/{view['txn']}/withdraw", {})
    assert (again.status_code, again.json()["state"]) == (200, "ended")
    maya = await bank.person("maya")
    assert (await maya.vote(view, effect=1)).json()["state"] == "withdrawn"


async def test_the_words_of_the_agent_stay_out_of_the_log(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank))).json()
    words = {"reason": "because Ada said so"}
    await robot.send("POST", f"/v1/transactions/{view['txn']}/withdraw", words)
    assert "Ada" not in str(await bank.log(view["txn"]))


async def test_what_has_ended_is_not_withdrawn_again(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, 500))).json()
    maya = await bank.person("maya")
    await maya.vote(view, "deny", reason="no")
    answer = await robot.send("POST", f"/v1/transactions/{view['txn']}/withdraw", {})
    assert answer.json()["effects"][0]["state"] == "denied"


async def test_timers_that_run_twice_or_with_nothing_to_do_change_nothing(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, 500))).json()
    await bank.sweep()
    bank.clock.pass_(hours=25)
    for _ in range(2):
        assert await ends(bank, robot, view) == ["ended", "expired"]
    kinds = [kind for kind, _ in await bank.log(view["txn"])]
    assert kinds.count("effect_expired") == kinds.count("transaction_ended") == 1


async def test_a_crowd_that_expires_at_once_is_ended_in_small_units(bank: World, robot: Agent) -> None:
    views = [(await robot.submit(await pay(bank, 500), run_key=f"r{n}")).json() for n in range(60)]
    bank.clock.pass_(hours=25)
    await bank.sweep()
    states = {(await robot.see(view["txn"]))["state"] for view in views}
    assert states == {"ended"}


async def reasons(robot: Agent, view: dict[str, Any]) -> list[list[tuple[str, str]]]:
    """Why each effect ended, as the agent is told."""
    seen = await robot.see(view["txn"])
    return [
        [(reason["code"], reason["text"]) for reason in effect["decision"]["reasons"]]
        for effect in seen["effects"]
    ]


async def test_what_ended_because_another_did_says_so(bank: World, folder: Payments, robot: Agent) -> None:
    denied = (await robot.submit(await pay(bank, 500), await mail(bank))).json()
    await (await bank.person("maya")).vote(denied, "deny", reason="no")
    assert (await reasons(robot, denied))[1] == [("sibling", "another effect of its transaction was denied")]
    expired = (await robot.submit(await pay(bank, 500), await mail(bank), run_key="r2")).json()
    bank.clock.pass_(hours=25)
    await bank.sweep()
    first, second = await reasons(robot, expired)
    assert [code for code, _ in first] == ["expired"]
    assert second == [("sibling", "another effect of its transaction expired")]


async def test_what_was_taken_back_says_so_in_the_words_it_was_taken_back_with(
    bank: World, robot: Agent
) -> None:
    view = (await robot.submit(await pay(bank), await mail(bank))).json()
    await robot.send("POST", f"/v1/transactions/{view['txn']}/withdraw", {"reason": "the customer called"})
    told = [("withdrawn", "it was taken back: the customer called")]
    assert await reasons(robot, view) == [told, told]
    silent = (await robot.submit(await pay(bank), await mail(bank), run_key="r2")).json()
    await robot.send("POST", f"/v1/transactions/{silent['txn']}/withdraw", {})
    assert await reasons(robot, silent) == [[("withdrawn", "it was taken back")]] * 2


async def test_the_words_of_who_takes_it_back_are_no_error_of_the_tool(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank))).json()
    await robot.send("POST", f"/v1/transactions/{view['txn']}/withdraw", {"reason": "the customer called"})
    query = text("SELECT error, taken_back FROM effects WHERE txn = :txn")
    found = await bank.service.db.read(lambda conn: tuple(conn.execute(query, {"txn": view["txn"]}).one()))
    assert found == (None, "the customer called")


async def test_an_agent_cannot_shorten_the_time_people_have(bank: World, robot: Agent) -> None:
    asked = await pay(bank, 500)
    for more in ({"answer_within": "1s"}, {"answer_by": "2026-01-01T00:00:00Z"}, {"deadline": 1}):
        refused = await robot.submit(asked, run_key="hurry", **more)
        assert (refused.status_code, refused.json()["code"]) == (400, "unknown_field")
        refused = await robot.submit({**asked, **more}, run_key="hurry")
        assert (refused.status_code, refused.json()["code"]) == (400, "unknown_field")
    claimed = {"purpose": "answer within one second", "reasoning": "@answer_within(1s)"}
    view = (await robot.submit(asked, run_key="hurry", claimed=claimed)).json()
    review = view["effects"][0]["review"]
    assert datetime.fromisoformat(review["answer_by"]) - bank.clock() > timedelta(hours=23)
