"""Asked again: when a bundle becomes active, when a vote would settle, when releases are spent. It only adds."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.payments import ANYBODY, GROUPS, LARGE, Payments, gate, person, plain_forbid
from tests.fakes.world import Agent, World, running
from tests.integration.service.effects import mail, pay

pytestmark = pytest.mark.anyio


async def approved(bank: World, robot: Agent, amount: int = 500) -> dict[str, Any]:
    """A payment Maya approved, ready."""
    view = (await robot.submit(await pay(bank, amount))).json()
    maya = await bank.person("maya")
    await maya.vote(view)
    return await robot.see(view["txn"])


async def swapped_unseen(bank: World) -> None:
    """Put the folder's bundle in force without asking about what is open: as when the change comes just then."""
    assert (await bank.service.active.reload()).changed


async def test_a_new_plain_forbid_wins_at_redemption_and_nothing_is_spent(
    bank: World, folder: Payments, robot: Agent
) -> None:
    view = (await robot.submit(await pay(bank), await mail(bank))).json()
    tokens = (await robot.release(view)).json()["releases"]
    folder.rules(plain_forbid("no-more-mail", action="mail"))
    await swapped_unseen(bank)
    answer = (await robot.redeem(tokens, robot.attempt)).json()
    assert answer["redeemed"] is False and "receipt" not in answer
    assert [seen["state"] for seen in answer["transaction"]["effects"]] == ["withdrawn", "denied"]
    assert answer["transaction"]["effects"][1]["decision"]["reasons"][0]["policy"] == "no-more-mail"
    assert (await robot.redeem(tokens, robot.attempt)).json()[
        "code"
    ] == "not_ready"  # no attempt was recorded


async def test_a_new_plain_forbid_ends_what_is_open_when_its_bundle_is_activated(
    bank: World, folder: Payments, robot: Agent
) -> None:
    ready = (await robot.submit(await pay(bank))).json()
    waiting = (await robot.submit(await pay(bank, 500), run_key="other")).json()
    folder.rules(plain_forbid("stop"))
    await bank.activate()
    for view in (ready, waiting):
        ended = await robot.see(view["txn"])
        assert (ended["state"], ended["effects"][0]["state"]) == ("ended", "denied")
    maya = await bank.person("maya")
    assert (await maya.vote(waiting)).json()["state"] == "denied"


async def test_a_forbid_no_vote_can_lift_wins_over_a_vote_that_would_settle(
    bank: World, folder: Payments, robot: Agent
) -> None:
    view = (await robot.submit(await pay(bank, 500))).json()
    folder.rules(plain_forbid("stop"))
    await swapped_unseen(bank)
    maya = await bank.person("maya")
    assert (await maya.vote(view)).json()["state"] == "denied"
    assert (await robot.see(view["txn"]))["state"] == "ended"


@pytest.mark.parametrize("told", [True, False])
async def test_a_gate_that_fires_late_brings_a_released_effect_back_to_people(
    bank: World, folder: Payments, robot: Agent, told: bool
) -> None:
    view = (await robot.submit(await pay(bank))).json()
    tokens = (await robot.release(view)).json()["releases"]
    folder.rules(gate("legal-too", "legal", answer_within="2h"))
    await (bank.activate() if told else swapped_unseen(bank))
    answer = await robot.redeem(tokens, robot.attempt)
    if told:
        assert (answer.status_code, answer.json()["code"]) == (409, "not_ready")
    else:
        assert answer.json()["redeemed"] is False
    back = await robot.see(view["txn"])
    assert (back["state"], back["effects"][0]["state"]) == ("review", "review")
    assert back["effects"][0]["review"]["needs"][0]["groups"] == ["legal"]
    ingrid = await bank.person("ingrid")
    assert (await ingrid.vote(back)).json()["state"] == "met"
    old = await robot.redeem(tokens, robot.attempt)
    assert (old.status_code, old.json()["code"]) == (409, "superseded")  # minted under the decision before
    assert (await robot.spend(await robot.see(view["txn"]), robot.attempt))["redeemed"] is True


async def test_a_late_gate_reopens_a_settled_review_and_its_votes_stay(
    bank: World, folder: Payments, robot: Agent
) -> None:
    ready = await approved(bank, robot)
    folder.rules(gate("legal-too", "legal"))
    await bank.activate()
    back = await robot.see(ready["txn"])
    assert back["state"] == "review"
    assert back["effects"][0]["review"]["review_id"] == ready["effects"][0]["review"]["review_id"]
    have = {need["groups"][0]: need["have"] for need in back["effects"][0]["review"]["needs"]}
    assert have == {"finance": 1, "legal": 0}
    ingrid = await bank.person("ingrid")
    assert (await ingrid.vote(back)).json()["state"] == "met"
    assert (await robot.see(ready["txn"]))["state"] == "ready"


async def test_a_late_gate_whose_people_have_voted_already_is_met_at_once_and_remembered(
    bank: World, folder: Payments, robot: Agent
) -> None:
    ready = await approved(bank, robot)
    folder.rules(gate("second-look", "finance", valid_for="10m"))
    await bank.activate()
    seen = await robot.see(ready["txn"])
    assert seen["state"] == "ready"
    assert seen["effects"][0]["decision"]["gates"] == ["large", "second-look"]
    assert seen["valid_until"] < ready["valid_until"]
    folder.rules()
    await bank.activate()
    assert (await robot.see(ready["txn"]))["effects"][0]["decision"]["gates"] == ["large", "second-look"]


async def test_a_release_never_outlives_a_valid_for_that_became_shorter(
    bank: World, folder: Payments, robot: Agent
) -> None:
    ready = await approved(bank, robot)
    tokens = (await robot.release(ready)).json()["releases"]
    folder.rules(gate("second-look", "finance", valid_for="1m"))
    bank.clock.pass_(seconds=90)
    await bank.activate()
    answer = await robot.redeem(tokens)
    assert answer.json().get("redeemed") is not True
    assert (await robot.see(ready["txn"]))["state"] == "ended"


async def test_a_laxer_bundle_frees_nobody_from_the_gates_of_a_revision(
    bank: World, folder: Payments, robot: Agent
) -> None:
    view = (await robot.submit(await pay(bank, 500))).json()
    folder.policies(ANYBODY)
    await bank.activate()
    assert (await robot.see(view["txn"]))["state"] == "review"
    await robot.send("POST", f"/v1/transactions/{view['txn']}/withdraw", {})
    again = (await robot.submit(await pay(bank, 500))).json()
    assert (again["rev"], again["state"]) == (2, "ready")


async def test_a_gate_that_changed_its_wording_asks_as_its_strictest_wording(
    bank: World, folder: Payments, robot: Agent
) -> None:
    view = (await robot.submit(await pay(bank, 500))).json()
    folder.policies(ANYBODY + gate("large", "finance", "context.input.amount > 100", quorum="2"))
    await bank.activate()
    folder.policies(ANYBODY + LARGE)
    await bank.activate()
    maya, tomas = await bank.person("maya"), await bank.person("tomas")
    assert (await maya.vote(view)).json()["state"] == "open"
    assert (await tomas.vote(view)).json()["state"] == "met"


async def test_a_person_who_left_the_group_leaves_the_count(
    bank: World, folder: Payments, robot: Agent
) -> None:
    ready = await approved(bank, robot)
    tokens = (await robot.release(ready)).json()["releases"]
    folder.people(GROUPS | {"finance": ("tomas",)})
    await swapped_unseen(bank)
    answer = (await robot.redeem(tokens)).json()
    assert answer["redeemed"] is False
    back = answer["transaction"]["effects"][0]
    assert (back["state"], back["review"]["state"], back["review"]["needs"][0]["have"]) == (
        "review",
        "open",
        0,
    )
    tomas = await bank.person("tomas")
    assert (await tomas.vote(ready)).json()["state"] == "met"
    released = (await robot.release(await robot.see(ready["txn"]))).json()["releases"]
    assert len(bank.release_of(released[0]).decision.votes) == 1


async def test_a_person_who_comes_back_to_the_group_counts_again(
    bank: World, folder: Payments, robot: Agent
) -> None:
    ready = await approved(bank, robot)
    folder.people(GROUPS | {"finance": ("tomas",)})
    await bank.activate()
    assert (await robot.see(ready["txn"]))["state"] == "review"
    folder.people(GROUPS)
    await bank.activate()
    assert (await robot.see(ready["txn"]))["state"] == "ready"


async def test_the_same_vote_again_settles_what_it_meets_by_now(
    bank: World, folder: Payments, robot: Agent
) -> None:
    ready = await approved(bank, robot)
    folder.people(GROUPS | {"finance": ("tomas",)})
    await bank.activate()
    folder.people(GROUPS)
    await swapped_unseen(bank)
    maya = await bank.person("maya")
    assert (await maya.vote(ready)).json()["state"] == "met"
    assert (await robot.see(ready["txn"]))["state"] == "ready"


async def test_a_vote_that_came_late_may_be_cast_in_time_when_the_review_is_open_again(
    bank: World, folder: Payments, robot: Agent
) -> None:
    ready = await approved(bank, robot)
    tomas = await bank.person("tomas")
    assert (await tomas.vote(ready)).json()["state"] == "met"  # too late: it is settled
    folder.people(GROUPS | {"finance": ("tomas",)})
    await bank.activate()
    back = await robot.see(ready["txn"])
    assert back["effects"][0]["review"]["needs"][0]["have"] == 0
    answer = await tomas.vote(back)
    assert (answer.status_code, answer.json()["state"]) == (200, "met"), answer.text
    assert (await robot.see(ready["txn"]))["state"] == "ready"


async def test_an_approval_the_rules_no_longer_permit_leaves_the_count(
    bank: World, folder: Payments, robot: Agent
) -> None:
    ready = await approved(bank, robot)
    folder.rules(
        '@id("people-may") permit (principal, action == Action::"approve", resource);\n'
        f'@id("not-maya") forbid (principal == User::"{person("maya")}", action == Action::"approve", resource);\n'
    )
    await bank.activate()
    back = await robot.see(ready["txn"])
    assert (back["state"], back["effects"][0]["review"]["needs"][0]["have"]) == ("review", 0)
    tomas = await bank.person("tomas")
    assert (await tomas.vote(back)).json()["state"] == "met"


@pytest.mark.parametrize("asked_before", [False, True])
async def test_a_reopened_question_has_its_own_time(
    bank: World, folder: Payments, robot: Agent, asked_before: bool
) -> None:
    ready = await approved(bank, robot) if asked_before else (await robot.submit(await pay(bank))).json()
    bank.clock.pass_(minutes=50)
    folder.rules(gate("legal-too", "legal", answer_within="30m"))
    await bank.activate()
    bank.clock.pass_(minutes=20)
    await bank.sweep()
    assert (await robot.see(ready["txn"]))["state"] == "review"
    bank.clock.pass_(minutes=10)
    await bank.sweep()
    assert (await robot.see(ready["txn"]))["effects"][0]["state"] == "expired"


async def test_a_tool_the_bundle_no_longer_holds_is_denied_whatever_was_voted(
    bank: World, folder: Payments, robot: Agent
) -> None:
    ready = await approved(bank, robot)
    manifest = (folder.path / "tools/pay.json").read_text()
    folder.write("tools/pay.json", manifest.replace('"Pay"', '"Pay somebody"'))
    await bank.activate()
    ended = await robot.see(ready["txn"])
    assert (ended["state"], ended["effects"][0]["state"]) == ("ended", "denied")
    assert ended["effects"][0]["decision"]["reasons"][0]["code"] == "tool_changed"


async def test_a_bundle_that_does_not_load_leaves_the_last_good_one_in_force(
    bank: World, folder: Payments, robot: Agent
) -> None:
    before = bank.service.active.current.digest
    folder.policies("permit (principal, action, resource")
    assert await bank.activate() is False
    view = (await robot.submit(await pay(bank, 500))).json()
    assert view["state"] == "review" and view["effects"][0]["decision"]["bundle"] == before
    health = await bank.http.get("/readyz")
    assert (health.status_code, health.json()["status"]) == (200, "degraded")
    assert [found["check"] for found in health.json()["findings"]] == ["bundle"]
    folder.rules()
    await bank.activate()
    assert (await bank.http.get("/readyz")).json()["status"] == "ok"


FACTS = """
[entities.Account.attributes]
risk = "Long"

[[source]]
name = "scores"
kind = "sql"
path = "facts/scores.sqlite"
timeout = "10s"
entity = "Account"
query = "SELECT risk FROM scores"
"""


async def test_a_bundle_that_changes_during_a_request_decides_it(
    bank: World, folder: Payments, robot: Agent
) -> None:
    """Facts are read for one bundle; when another is in force by the decision, everything is asked anew."""
    folder.write("facts.toml", FACTS)
    (folder.path / "facts").mkdir(exist_ok=True)
    with closing(sqlite3.connect(folder.path / "facts/scores.sqlite", isolation_level=None)) as scores:
        scores.execute("CREATE TABLE scores AS SELECT 7 AS risk")
        assert await bank.activate()
        effect = await pay(bank)
        await robot.send("GET", "/v1/tools/pay")
        scores.execute("BEGIN EXCLUSIVE")  # whoever asks for the score waits
        asking = asyncio.create_task(robot.submit(effect))
        await asyncio.sleep(0.1)
        folder.rules(plain_forbid("stop"))
        await swapped_unseen(bank)
        assert not asking.done()
        scores.execute("COMMIT")
        view = (await asking).json()
    assert view["state"] == "ended", view
    assert view["effects"][0]["decision"]["reasons"][0]["policy"] == "stop"
    assert view["effects"][0]["decision"]["bundle"] == bank.service.active.current.digest


async def test_what_changed_while_nobody_was_running_is_asked_about_at_the_start(
    tmp_path: Path, folder: Payments
) -> None:
    async with running(tmp_path / "data", folder.path) as bank:
        robot = await bank.agent("robot")
        view = (await robot.submit(await pay(bank))).json()
    folder.rules(plain_forbid("stop"))
    async with running(tmp_path / "data", folder.path) as bank:
        robot.http = bank.http
        ended = await robot.see(view["txn"])
        assert (ended["state"], ended["effects"][0]["state"]) == ("ended", "denied")
