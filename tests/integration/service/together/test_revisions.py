"""What a rerun finds (design section 6, "Revisions")."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.payments import gate, plain_forbid
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


async def test_any_other_list_is_another_revision_and_old_releases_are_dead(bank: Bank) -> None:
    for other in (  # (amount, n) of the second list; the first is [(10, 0), (11, 0)]
        [(11, 0), (10, 0)],
        [(10, 0)],
        [(10, 0), (11, 0), (12, 0)],
        [(10, 0), (12, 0)],
        [(10, 0), (11, 1)],
    ):
        await bank.fresh()
        old, tokens = await bank.released(await pay(bank, 10), await pay(bank, 11))
        new = (await bank.robot.submit(*[await pay(bank, amount) | {"n": n} for amount, n in other])).json()
        assert (new["rev"], new["state"]) == (2, "ready")
        dead = await bank.robot.redeem(tokens)
        assert (refusal(dead), dead.json()["rev"]) == ((409, "superseded"), 2)
        for rev in (1, 3):  # the old one, and one nobody has seen
            assert refusal(await bank.robot.release(old | {"rev": rev})) == (409, "superseded")
        assert (await bank.robot.spend(new))["redeemed"] is True


async def test_the_same_list_after_its_end_is_decided_afresh(bank: Bank) -> None:
    old = await bank.asks()
    await bank.maya.vote(old)
    await bank.withdraw(old, reason="no more")
    new = await bank.asks()
    assert (new["rev"], new["state"]) == (2, "review")
    assert new["effects"][0]["review"]["needs"][0]["have"] == 0
    assert new["effects"][0]["effect_digest"] == old["effects"][0]["effect_digest"]
    stale = await bank.maya.vote(old)
    assert refusal(stale) == (409, "stale_review")
    assert stale.json()["changed"] == []  # the same bytes, and still another question


async def test_what_the_policy_denied_is_decided_afresh(bank: Bank) -> None:
    await bank.rules(plain_forbid("never"))
    assert (await bank.asks(10))["state"] == "ended"
    await bank.rules(gate("legal-too", "legal"))
    view = await bank.asks(10)
    assert (view["rev"], view["state"]) == (2, "review")
    assert view["effects"][0]["decision"]["gates"] == ["legal-too"]


async def test_what_a_person_denied_is_answered_again_and_nobody_is_asked_twice(bank: Bank) -> None:
    effects = [await pay(bank, 500), await pay(bank, 10)]
    old = (await bank.robot.submit(*effects)).json()
    assert (await bank.maya.vote(old, "deny", reason="not this month")).status_code == 200
    answer = await bank.robot.submit(*effects)
    view = answer.json()
    assert (answer.status_code, view["txn"], view["rev"], view["state"]) == (200, old["txn"], 1, "ended")
    reason = view["effects"][0]["decision"]["reasons"][-1]
    assert reason["code"] == "denied_by_person" and "not this month" in reason["text"]
    between = await bank.asks(501)
    assert (between["rev"], between["state"]) == (2, "review"), "another list asks people"
    again = await bank.robot.submit(*effects)
    view = again.json()
    assert (again.status_code, view["rev"], view["state"], view["superseded_by"]) == (200, 1, "ended", 2)
    assert [seen["state"] for seen in view["effects"]] == ["denied", "withdrawn"]
    reasons = [seen["decision"]["reasons"][-1]["code"] for seen in view["effects"]]
    assert reasons == ["denied_by_person", "sibling"]
    assert (await bank.states(view))[0] == "review"  # what is open was not touched


async def test_what_was_redeemed_answers_with_its_outcome_and_never_a_new_revision(bank: Bank) -> None:
    for outcome, state in ((None, "redeemed"), ("fired", "settled"), ("failed", "ended"), ("unused", "ended"),
                           ("unknown", "unsettled")):  # fmt: skip
        robot = await bank.fresh()
        view = await bank.asks(10, attempt_id=robot.attempt)
        effect_id = view["effects"][0]["effect_id"]
        if outcome is not None:
            await robot.report(robot.attempt, {"effect_id": effect_id, "outcome": outcome})
        again = await bank.asks(10)
        assert (again["rev"], again["state"], again["releases"]) == (1, state, [])
        assert again["effects"][0].get("outcome", {}).get("outcome") == outcome
        other = await robot.submit(await pay(bank, 11), attempt_id=f"{robot.attempt}-2")
        assert refusal(other) == (409, "already_redeemed")
        known = {"effect_id": effect_id, "seq": 1, "state": outcome or "redeemed"}
        assert other.json()["effects"] == [known]
        assert (await robot.see(view["txn"]))["rev"] == 1


async def test_what_is_over_before_any_timer_looked_is_over_for_a_resubmission(bank: Bank) -> None:
    for amount, hours, state in ((500, 25, "review"), (10, 2, "redeemed")):
        assert (await bank.asks(amount, run_key=state))["rev"] == 1
        bank.clock.pass_(hours=hours)
        view = await bank.asks(amount, run_key=state, attempt_id=bank.robot.attempt)
        assert (view["rev"], view["state"]) == (2, state)


STANDING: list[list[tuple[Any, str]]] = [
    [(10, "acme")],  # released at once
    [(10, "acme"), (500, "acme")],  # one asks
    [(10, "acme"), (500, "acme"), (20, "closed")],  # one is forbidden, its siblings end
    [("much", "acme")],  # args that do not fit
]


async def test_a_submission_is_told_what_a_later_look_sees(bank: Bank) -> None:
    await bank.rules(plain_forbid("closed", 'context.input.account == "closed"'))
    for payments in STANDING:
        calls = [await pay(bank, amount, account) for amount, account in payments]
        for named in ({"attempt_id": bank.robot.attempt}, {}):
            await bank.fresh()
            told = (await bank.robot.submit(*calls, claimed={"purpose": "rent"}, **named)).json()
            seen = await bank.robot.see(told["txn"])
            told_once = {"releases": told.pop("releases"), "receipt": told.pop("receipt", None)}
            assert told == {name: value for name, value in seen.items() if name not in told_once}
