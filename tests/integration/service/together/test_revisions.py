"""What a rerun finds (design section 6, "Revisions")."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.payments import Payments, gate, plain_forbid
from tests.fakes.world import Agent, World
from tests.integration.service.effects import mail, pay

pytestmark = pytest.mark.anyio


async def test_the_same_list_again_finds_the_same_review_and_its_votes(bank: World, robot: Agent) -> None:
    effect = await pay(bank, 5_000)
    first = (await robot.submit(effect)).json()
    maya = await bank.person("maya")
    await maya.vote(first)
    again = await robot.submit(effect)
    view = again.json()
    assert (again.status_code, view["rev"], view["state"]) == (200, 1, "review")
    assert view["effects"][0]["review"]["review_id"] == first["effects"][0]["review"]["review_id"]
    assert view["effects"][0]["review"]["needs"][0]["have"] == 1


async def test_another_list_supersedes_the_old_one_and_voids_its_votes(bank: World, robot: Agent) -> None:
    old = (await robot.submit(await pay(bank, 5_000))).json()
    maya, tomas = await bank.person("maya"), await bank.person("tomas")
    await maya.vote(old)
    answer = await robot.submit(await pay(bank, 5_000), await mail(bank))
    new = answer.json()
    assert (answer.status_code, new["rev"], new["state"]) == (201, 2, "review")
    assert new["effects"][0]["effect_id"] == old["effects"][0]["effect_id"]
    assert new["effects"][0]["review"]["review_id"] != old["effects"][0]["review"]["review_id"]
    assert new["effects"][0]["review"]["needs"][0]["have"] == 0
    stale = await tomas.vote(old)
    assert (stale.status_code, stale.json()["code"]) == (409, "stale_review")
    assert stale.json()["rev"] == 2
    assert stale.json()["review_id"] == new["effects"][0]["review"]["review_id"]
    assert (await tomas.vote(new)).json()["state"] == "open"  # Maya's vote was on the old list
    assert (await maya.vote(new)).json()["state"] == "met"


async def test_the_old_review_shows_as_withdrawn_and_superseded(bank: World, robot: Agent) -> None:
    old = (await robot.submit(await pay(bank, 500))).json()
    await robot.submit(await pay(bank, 600))
    maya = await bank.person("maya")
    shown = (await maya.get(f"/v1/reviews/{old['effects'][0]['review']['review_id']}")).json()
    assert shown["state"] == "withdrawn"
    assert shown["effect"]["state"] == "withdrawn"
    assert shown["effect"]["decision"]["reasons"][-1]["code"] == "superseded"
    assert "revision 2" in shown["effect"]["decision"]["reasons"][-1]["text"]


LISTS: dict[str, list[tuple[int, int]]] = {  # (amount, n) of the second list; the first is [(10, 0), (11, 0)]
    "in another order": [(11, 0), (10, 0)],
    "one fewer": [(10, 0)],
    "one more": [(10, 0), (11, 0), (12, 0)],
    "another amount": [(10, 0), (12, 0)],
    "another repeat": [(10, 0), (11, 1)],
}


@pytest.mark.parametrize("other", LISTS.values(), ids=LISTS)
async def test_any_other_list_is_another_revision_and_old_releases_are_dead(
    bank: World, robot: Agent, other: list[tuple[int, int]]
) -> None:
    old = (await robot.submit(await pay(bank, 10), await pay(bank, 11))).json()
    tokens = (await robot.release(old)).json()["releases"]
    effects = [await pay(bank, amount) | {"n": n} for amount, n in other]
    new = (await robot.submit(*effects)).json()
    assert (new["rev"], new["state"]) == (2, "ready")
    dead = await robot.redeem(tokens)
    assert (dead.status_code, dead.json()["code"]) == (409, "superseded"), dead.text
    assert dead.json()["rev"] == 2
    gone = await robot.release(old)
    assert (gone.status_code, gone.json()["code"]) == (409, "superseded")
    assert (await robot.spend(new))["redeemed"] is True


async def test_a_revision_nobody_has_seen_is_not_in_force(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank))).json()
    answer = await robot.release(view | {"rev": 2})
    assert (answer.status_code, answer.json()["code"]) == (409, "superseded")


async def test_the_same_list_after_its_end_is_decided_afresh(bank: World, robot: Agent) -> None:
    effect = await pay(bank, 500)
    old = (await robot.submit(effect)).json()
    maya = await bank.person("maya")
    await maya.vote(old)
    await robot.send("POST", f"/v1/transactions/{old['txn']}/withdraw", {"reason": "no more"})
    new = (await robot.submit(effect)).json()
    assert (new["rev"], new["state"]) == (2, "review")
    assert new["effects"][0]["review"]["needs"][0]["have"] == 0
    assert new["effects"][0]["effect_digest"] == old["effects"][0]["effect_digest"]
    stale = await maya.vote(old)
    assert (stale.status_code, stale.json()["code"]) == (409, "stale_review")
    assert stale.json()["changed"] == []  # the same bytes, and still another question


async def test_what_the_policy_denied_is_decided_afresh(bank: World, folder: Payments, robot: Agent) -> None:
    folder.rules('@id("never") forbid (principal, action == Action::"pay", resource);\n')
    await bank.activate()
    effect = await pay(bank)
    assert (await robot.submit(effect)).json()["state"] == "ended"
    folder.rules()
    await bank.activate()
    view = (await robot.submit(effect)).json()
    assert (view["rev"], view["state"]) == (2, "ready")


async def denied_by_maya(bank: World, robot: Agent, *effects: dict[str, Any]) -> dict[str, Any]:
    view: dict[str, Any] = (await robot.submit(*effects)).json()
    maya = await bank.person("maya")
    assert (await maya.vote(view, "deny", reason="not this month")).status_code == 200
    return view


async def test_what_a_person_denied_is_answered_again_and_nobody_is_asked_twice(
    bank: World, robot: Agent
) -> None:
    effect = await pay(bank, 500)
    old = await denied_by_maya(bank, robot, effect)
    answer = await robot.submit(effect)
    view = answer.json()
    assert (answer.status_code, view["rev"], view["state"]) == (200, 1, "ended")
    reason = view["effects"][0]["decision"]["reasons"][-1]
    assert reason["code"] == "denied_by_person" and "not this month" in reason["text"]
    assert view["txn"] == old["txn"]


async def test_a_denied_list_stays_denied_when_another_list_came_in_between(
    bank: World, robot: Agent
) -> None:
    effect = await pay(bank, 500)
    await denied_by_maya(bank, robot, effect)
    between = (await robot.submit(await pay(bank, 501))).json()
    assert (between["rev"], between["state"]) == (2, "review")
    again = await robot.submit(effect)
    view = again.json()
    assert (again.status_code, view["rev"], view["state"]) == (200, 1, "ended")
    assert view["superseded_by"] == 2
    assert view["effects"][0]["decision"]["reasons"][-1]["code"] == "denied_by_person"
    assert (await robot.see(view["txn"]))["state"] == "review"  # what is open was not touched


async def test_the_sibling_of_what_a_person_denied_is_answered_as_one(bank: World, robot: Agent) -> None:
    effects = [await pay(bank, 500), await pay(bank, 10)]
    await denied_by_maya(bank, robot, *effects)
    await robot.submit(await pay(bank, 501))
    view = (await robot.submit(*effects)).json()
    assert [seen["state"] for seen in view["effects"]] == ["denied", "withdrawn"]
    assert view["effects"][1]["decision"]["reasons"][-1]["code"] == "sibling"


async def test_another_list_than_the_denied_one_asks_people(bank: World, robot: Agent) -> None:
    await denied_by_maya(bank, robot, await pay(bank, 500))
    view = (await robot.submit(await pay(bank, 400))).json()
    assert (view["rev"], view["state"]) == (2, "review")


async def test_what_was_redeemed_answers_with_its_outcome_and_never_a_new_revision(
    bank: World, robot: Agent
) -> None:
    effect = await pay(bank)
    view = (await robot.submit(effect, attempt_id=robot.attempt)).json()
    for told, state in (("unknown", "unsettled"), ("fired", "settled")):
        await robot.report(robot.attempt, {"effect_id": view["effects"][0]["effect_id"], "outcome": told})
        again = await robot.submit(effect)
        assert (again.status_code, again.json()["rev"], again.json()["state"]) == (200, 1, state)
        assert again.json()["effects"][0]["outcome"]["outcome"] == told
        assert again.json()["releases"] == []


@pytest.mark.parametrize("outcome", [None, "fired", "failed", "unused", "unknown"])
async def test_another_list_under_a_spent_run_key_is_refused_with_what_is_known(
    bank: World, robot: Agent, outcome: str | None
) -> None:
    view = (await robot.submit(await pay(bank), attempt_id=robot.attempt)).json()
    effect_id = view["effects"][0]["effect_id"]
    if outcome is not None:
        await robot.report(robot.attempt, {"effect_id": effect_id, "outcome": outcome})
    answer = await robot.submit(await pay(bank, 11), attempt_id=f"{robot.attempt}-2")
    assert (answer.status_code, answer.json()["code"]) == (409, "already_redeemed")
    state = outcome or "redeemed"
    assert answer.json()["effects"] == [{"effect_id": effect_id, "seq": 1, "state": state}]
    assert (await robot.see(view["txn"]))["rev"] == 1


async def test_a_gate_that_is_in_force_now_counts_for_the_new_revision(
    bank: World, folder: Payments, robot: Agent
) -> None:
    view = (await robot.submit(await pay(bank))).json()
    await robot.send("POST", f"/v1/transactions/{view['txn']}/withdraw", {})
    folder.rules(gate("legal-too", "legal"))
    await bank.activate()
    again = (await robot.submit(await pay(bank))).json()
    assert again["state"] == "review"
    assert again["effects"][0]["decision"]["gates"] == ["legal-too"]


async def test_the_rest_of_time_does_not_hold_a_resubmission_up(bank: World, robot: Agent) -> None:
    """A question that was over before any timer looked is over for a resubmission too."""
    effect = await pay(bank, 500)
    await robot.submit(effect)
    bank.clock.pass_(hours=25)
    view = (await robot.submit(effect)).json()
    assert (view["rev"], view["state"]) == (2, "review")


async def test_releases_whose_time_is_over_do_not_hold_a_resubmission_up(bank: World, robot: Agent) -> None:
    effect = await pay(bank)
    assert (await robot.submit(effect)).json()["state"] == "ready"
    bank.clock.pass_(hours=2)
    view = (await robot.submit(effect, attempt_id=robot.attempt)).json()
    assert (view["rev"], view["state"]) == (2, "redeemed")


# ------------------------------------------------------------------- what is told is what stands


STANDING = {
    "released at once": ((10, "acme"),),
    "one asks": ((10, "acme"), (500, "acme")),
    "one is forbidden, its siblings end": ((10, "acme"), (500, "acme"), (20, "closed")),
    "args that do not fit": (("much", "acme"),),
}


@pytest.mark.parametrize("spend", [True, False], ids=["with an attempt", "without"])
@pytest.mark.parametrize("payments", STANDING.values(), ids=STANDING.keys())
async def test_a_submission_is_told_what_a_later_look_sees(
    bank: World, folder: Payments, robot: Agent, payments: tuple[tuple[Any, str], ...], spend: bool
) -> None:
    folder.rules(plain_forbid("closed", 'context.input.account == "closed"'))
    await bank.activate()
    calls = [await pay(bank, amount, account) for amount, account in payments]
    named = {"attempt_id": robot.attempt} if spend else {}
    told = (await robot.submit(*calls, claimed={"purpose": "rent"}, **named)).json()
    seen = await robot.see(told["txn"])
    told_once = {"releases": told.pop("releases"), "receipt": told.pop("receipt", None)}
    assert told == {name: value for name, value in seen.items() if name not in told_once}
