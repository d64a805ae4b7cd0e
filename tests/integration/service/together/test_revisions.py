"""What a rerun finds (design section 6, "Revisions")."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.payments import gate, plain_forbid
from tests.fakes.world import Agent
from tests.integration.service.effects import mail, pay
from tests.integration.service.together.bank import Bank, refusal

pytestmark = pytest.mark.anyio


async def test_the_same_list_again_finds_the_same_review_and_its_votes(bank: Bank) -> None:
    effect = await pay(bank, 5_000)
    first = (await bank.robot.submit(effect)).json()
    await bank.maya.vote(first)
    again = await bank.robot.submit(effect)
    view = again.json()
    assert (again.status_code, view["rev"], view["state"]) == (200, 1, "review")
    assert view["effects"][0]["review"]["review_id"] == first["effects"][0]["review"]["review_id"]
    assert view["effects"][0]["review"]["needs"][0]["have"] == 1


async def test_another_list_supersedes_the_old_one_and_voids_its_votes(bank: Bank) -> None:
    old = (await bank.robot.submit(await pay(bank, 5_000))).json()
    await bank.maya.vote(old)
    answer = await bank.robot.submit(await pay(bank, 5_000), await mail(bank))
    new = answer.json()
    assert (answer.status_code, new["rev"], new["state"]) == (201, 2, "review")
    before, after = old["effects"][0], new["effects"][0]
    assert after["effect_id"] == before["effect_id"]
    assert after["review"]["review_id"] != before["review"]["review_id"]
    assert after["review"]["needs"][0]["have"] == 0
    stale = await bank.tomas.vote(old)
    assert refusal(stale) == (409, "stale_review")
    assert (stale.json()["rev"], stale.json()["review_id"]) == (2, after["review"]["review_id"])
    shown = (await bank.maya.get(f"/v1/reviews/{before['review']['review_id']}")).json()
    assert (shown["state"], shown["effect"]["state"]) == ("withdrawn", "withdrawn")
    reason = shown["effect"]["decision"]["reasons"][-1]
    assert (reason["code"], "revision 2" in reason["text"]) == ("superseded", True)
    assert (await bank.tomas.vote(new)).json()["state"] == "open"  # Maya's vote was on the old list
    assert (await bank.maya.vote(new)).json()["state"] == "met"


LISTS: dict[str, list[tuple[int, int]]] = {  # (amount, n) of the second list; the first is [(10, 0), (11, 0)]
    "in another order": [(11, 0), (10, 0)],
    "one fewer": [(10, 0)],
    "one more": [(10, 0), (11, 0), (12, 0)],
    "another amount": [(10, 0), (12, 0)],
    "another repeat": [(10, 0), (11, 1)],
}


@pytest.mark.parametrize("other", LISTS.values(), ids=LISTS)
async def test_any_other_list_is_another_revision_and_old_releases_are_dead(
    bank: Bank, other: list[tuple[int, int]]
) -> None:
    old = (await bank.robot.submit(await pay(bank, 10), await pay(bank, 11))).json()
    tokens = (await bank.robot.release(old)).json()["releases"]
    effects = [await pay(bank, amount) | {"n": n} for amount, n in other]
    new = (await bank.robot.submit(*effects)).json()
    assert (new["rev"], new["state"]) == (2, "ready")
    dead = await bank.robot.redeem(tokens)
    assert refusal(dead) == (409, "superseded")
    assert dead.json()["rev"] == 2
    for rev in (1, 3):  # the old one, and one nobody has seen
        assert refusal(await bank.robot.release(old | {"rev": rev})) == (409, "superseded")
    assert (await bank.robot.spend(new))["redeemed"] is True


async def test_the_same_list_after_its_end_is_decided_afresh(bank: Bank) -> None:
    effect = await pay(bank, 500)
    old = (await bank.robot.submit(effect)).json()
    await bank.maya.vote(old)
    await bank.robot.send("POST", f"/v1/transactions/{old['txn']}/withdraw", {"reason": "no more"})
    new = (await bank.robot.submit(effect)).json()
    assert (new["rev"], new["state"]) == (2, "review")
    assert new["effects"][0]["review"]["needs"][0]["have"] == 0
    assert new["effects"][0]["effect_digest"] == old["effects"][0]["effect_digest"]
    stale = await bank.maya.vote(old)
    assert (stale.status_code, stale.json()["code"]) == (409, "stale_review")
    assert stale.json()["changed"] == []  # the same bytes, and still another question


async def test_what_the_policy_denied_is_decided_afresh(bank: Bank) -> None:
    await bank.rules(plain_forbid("never"))
    effect = await pay(bank)
    assert (await bank.robot.submit(effect)).json()["state"] == "ended"
    await bank.rules(gate("legal-too", "legal"))
    view = (await bank.robot.submit(effect)).json()
    assert (view["rev"], view["state"]) == (2, "review")
    assert view["effects"][0]["decision"]["gates"] == ["legal-too"]


async def denied_by_maya(bank: Bank, robot: Agent, *effects: dict[str, Any]) -> dict[str, Any]:
    view: dict[str, Any] = (await robot.submit(*effects)).json()
    assert (await bank.maya.vote(view, "deny", reason="not this month")).status_code == 200
    return view


async def test_what_a_person_denied_is_answered_again_and_nobody_is_asked_twice(bank: Bank) -> None:
    effects = [await pay(bank, 500), await pay(bank, 10)]
    old = await denied_by_maya(bank, bank.robot, *effects)
    answer = await bank.robot.submit(*effects)
    view = answer.json()
    assert (answer.status_code, view["txn"], view["rev"], view["state"]) == (200, old["txn"], 1, "ended")
    reason = view["effects"][0]["decision"]["reasons"][-1]
    assert reason["code"] == "denied_by_person" and "not this month" in reason["text"]
    between = (await bank.robot.submit(await pay(bank, 501))).json()
    assert (between["rev"], between["state"]) == (2, "review"), "another list asks people"
    again = await bank.robot.submit(*effects)
    view = again.json()
    assert (again.status_code, view["rev"], view["state"], view["superseded_by"]) == (200, 1, "ended", 2)
    assert [seen["state"] for seen in view["effects"]] == ["denied", "withdrawn"]
    reasons = [seen["decision"]["reasons"][-1]["code"] for seen in view["effects"]]
    assert reasons == ["denied_by_person", "sibling"]
    assert (await bank.robot.see(view["txn"]))["state"] == "review"  # what is open was not touched


async def test_what_was_redeemed_answers_with_its_outcome_and_never_a_new_revision(bank: Bank) -> None:
    effect = await pay(bank)
    view = (await bank.robot.submit(effect, attempt_id=bank.robot.attempt)).json()
    for told, state in (("unknown", "unsettled"), ("fired", "settled")):
        await bank.robot.report(
            bank.robot.attempt, {"effect_id": view["effects"][0]["effect_id"], "outcome": told}
        )
        again = await bank.robot.submit(effect)
        assert (again.status_code, again.json()["rev"], again.json()["state"]) == (200, 1, state)
        assert again.json()["effects"][0]["outcome"]["outcome"] == told
        assert again.json()["releases"] == []


@pytest.mark.parametrize("outcome", [None, "fired", "failed", "unused", "unknown"])
async def test_another_list_under_a_spent_run_key_is_refused_with_what_is_known(
    bank: Bank, outcome: str | None
) -> None:
    view = (await bank.robot.submit(await pay(bank), attempt_id=bank.robot.attempt)).json()
    effect_id = view["effects"][0]["effect_id"]
    if outcome is not None:
        await bank.robot.report(bank.robot.attempt, {"effect_id": effect_id, "outcome": outcome})
    answer = await bank.robot.submit(await pay(bank, 11), attempt_id=f"{bank.robot.attempt}-2")
    assert (answer.status_code, answer.json()["code"]) == (409, "already_redeemed")
    state = outcome or "redeemed"
    assert answer.json()["effects"] == [{"effect_id": effect_id, "seq": 1, "state": state}]
    assert (await bank.robot.see(view["txn"]))["rev"] == 1


@pytest.mark.parametrize(("amount", "hours", "state"), [(500, 25, "review"), (10, 2, "redeemed")])
async def test_what_is_over_before_any_timer_looked_is_over_for_a_resubmission(
    bank: Bank, amount: int, hours: int, state: str
) -> None:
    effect = await pay(bank, amount)
    assert (await bank.robot.submit(effect)).json()["rev"] == 1
    bank.clock.pass_(hours=hours)
    view = (await bank.robot.submit(effect, attempt_id=bank.robot.attempt)).json()
    assert (view["rev"], view["state"]) == (2, state)


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
    bank: Bank, payments: tuple[tuple[Any, str], ...], spend: bool
) -> None:
    await bank.rules(plain_forbid("closed", 'context.input.account == "closed"'))
    calls = [await pay(bank, amount, account) for amount, account in payments]
    named = {"attempt_id": bank.robot.attempt} if spend else {}
    told = (await bank.robot.submit(*calls, claimed={"purpose": "rent"}, **named)).json()
    seen = await bank.robot.see(told["txn"])
    told_once = {"releases": told.pop("releases"), "receipt": told.pop("receipt", None)}
    assert told == {name: value for name, value in seen.items() if name not in told_once}
