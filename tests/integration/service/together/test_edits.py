"""Other arguments instead of a denial: proposed by a reviewer, answered by the agent's side, decided from the start."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from sqlalchemy import select

from policy_service.storage.core import table
from policy_service.storage.proposals import ProposalRow
from policy_service.storage.reservations import ReservationRow
from policy_service.workflow.edits.propose import MAX_OF_A_PERSON
from policy_service.workflow.reviews.impossible import watch_quorums
from tests.fakes.payments import ANYBODY, GROUPS, Payments, gate, person, plain_forbid
from tests.fakes.world import Agent, World
from tests.integration.service.effects import mail, pay
from tests.integration.service.metered import ASKS, CAPS, METERS, counted_pay

pytestmark = pytest.mark.anyio

LESS = {"account": "acme", "amount": 300}


async def asked(bank: World, robot: Agent, amount: int = 500, **args: Any) -> dict[str, Any]:
    """A payment that waits for one person of finance."""
    view: dict[str, Any] = (await robot.submit(await pay(bank, amount, **args))).json()
    assert view["state"] == "review"
    return view


async def states(bank: World, view: dict[str, Any]) -> list[str]:
    """What became of the proposals about a transaction, oldest first."""
    columns = table(ProposalRow).c
    query = select(columns.state).where(columns.txn == view["txn"]).order_by(columns.proposal_id)
    return await bank.service.db.read(lambda conn: list(conn.execute(query).scalars()))


# -- the way it goes ---------------------------------------------------------------------------------------------------


async def test_an_accepted_change_is_a_new_revision_decided_anew_and_fires_once(
    bank: World, robot: Agent
) -> None:
    old = await asked(bank, robot)
    maya, tomas = await bank.person("maya"), await bank.person("tomas")
    taken = await maya.propose(old, LESS)
    assert taken.status_code == 201
    (open_,) = taken.json()["effect"]["review"]["proposals"]
    assert (open_["state"], open_["args"], open_["person"]) == ("open", LESS, person("maya"))
    assert (taken.json()["state"], taken.json()["votes"]) == ("open", [])  # proposing is no vote
    answer = await robot.accept(open_["proposal_id"])
    new = answer.json()
    assert (answer.status_code, new["rev"], new["state"]) == (200, 2, "review")
    before, after = old["effects"][0], new["effects"][0]
    assert after["args"] == LESS
    assert (after["call_key"], after["effect_id"]) == (before["call_key"], before["effect_id"])
    for digest in ("args_digest", "effect_digest"):
        assert after[digest] != before[digest]
    assert new["txn_digest"] != old["txn_digest"]
    (edit,) = after["edits"]
    assert (edit["name"], edit["decided_by"], edit["became_rev"]) == ("Maya", f"agent:{robot.name}", 2)
    assert (await tomas.vote(new)).json()["state"] == "met"
    spent = await robot.spend(await robot.see(new["txn"]))
    assert spent["transaction"]["effects"][0]["args"] == LESS
    kinds = [kind for kind, _ in await bank.log(new["txn"])]
    assert (kinds.count("proposal_opened"), kinds.count("proposal_accepted")) == (1, 1)


async def test_one_person_proposes_only_so_often_on_one_review(bank: World, robot: Agent) -> None:
    """J1: each is kept, and each asks the agent anew."""
    old, maya = await asked(bank, robot), await bank.person("maya")
    for amount in range(1, MAX_OF_A_PERSON + 1):
        last = {"account": "acme", "amount": amount}
        assert (await maya.propose(old, last)).status_code == 201
    assert (await maya.propose(old, last)).status_code == 201, "the same again is the same"
    more = await maya.propose(old, {"account": "acme", "amount": 99})
    assert (more.status_code, more.json()["code"]) == (429, "rate_limited")
    assert (await states(bank, old)).count("open") == 1, "the last one stands"
    assert (await (await bank.person("tomas")).propose(old, LESS)).status_code == 201


async def test_the_new_resource_is_the_one_the_new_arguments_name(bank: World, robot: Agent) -> None:
    old = await asked(bank, robot)
    maya = await bank.person("maya")
    new = (await robot.accept(await maya.proposed(old, {"account": "other", "amount": 500}))).json()
    assert new["effects"][0]["resource"] == {"type": "Account", "id": "other"}


async def test_every_vote_and_release_of_the_old_revision_is_dead(bank: World, robot: Agent) -> None:
    old = await asked(bank, robot, 5_000)
    maya, tomas = await bank.person("maya"), await bank.person("tomas")
    await tomas.vote(old)
    new = (await robot.accept(await maya.proposed(old, {"account": "acme", "amount": 200}))).json()
    assert new["effects"][0]["review"]["needs"][0]["have"] == 0
    stale = await tomas.vote(old)
    assert (stale.status_code, stale.json()["code"], stale.json()["rev"]) == (409, "stale_review", 2)
    assert stale.json()["changed"] == [{"name": "amount", "read": "5000", "now": "200"}]
    dead = await robot.release(old)
    assert (dead.status_code, dead.json()["code"]) == (409, "superseded")


async def test_the_whole_list_is_decided_anew_and_the_editor_votes_on_none_of_it(
    bank: World, robot: Agent
) -> None:
    old = (await robot.submit(await pay(bank, 500), await pay(bank, 600, "other"))).json()
    maya, tomas = await bank.person("maya"), await bank.person("tomas")
    await tomas.vote(old, effect=1)
    new = (await robot.accept(await maya.proposed(old, LESS))).json()
    assert [effect["state"] for effect in new["effects"]] == ["review", "review"]
    assert new["effects"][1]["effect_digest"] == old["effects"][1]["effect_digest"]
    for place in (0, 1):
        refused = await maya.vote(new, effect=place)
        assert (refused.status_code, refused.json()["code"]) == (403, "not_eligible")
        assert "you changed its arguments" in refused.json()["detail"]
    assert (await tomas.vote(new, effect=0)).json()["state"] == "met"
    assert (await tomas.vote(new, effect=1)).json()["state"] == "met"
    assert (await robot.see(new["txn"]))["state"] == "ready"


async def test_a_change_that_needs_nobody_is_released_and_one_the_policy_forbids_ends(
    bank: World, robot: Agent, folder: Payments
) -> None:
    maya = await bank.person("maya")
    old = await asked(bank, robot)
    small = (await robot.accept(await maya.proposed(old, {"account": "acme", "amount": 5}))).json()
    assert (small["state"], small["effects"][0]["edits"][0]["state"]) == ("ready", "accepted")
    folder.rules(plain_forbid("never-evil", 'context.input.account == "evil"'))
    await bank.activate()
    other = (await robot.submit(await pay(bank, 700), run_key="run-2")).json()
    ended = (await robot.accept(await maya.proposed(other, {"account": "evil", "amount": 700}))).json()
    assert (ended["state"], ended["effects"][0]["state"]) == ("ended", "denied")


async def test_the_owner_may_accept_for_the_agent(bank: World) -> None:
    jonas, maya = await bank.person("jonas"), await bank.person("maya")
    owned = await bank.agent("owned", owner=person("jonas"))
    old = await asked(bank, owned)
    proposal = await maya.proposed(old, LESS)
    page = await jonas.http.post(
        f"/proposals/{proposal}/accept",
        data={"csrf_token": jonas.csrf},
        headers={"Cookie": f"countersign_dev={jonas.cookie}", "Origin": jonas.origin},
    )
    assert page.status_code == 303, page.text
    new = await owned.see(old["txn"])
    assert (new["rev"], new["effects"][0]["edits"][0]["decided_by"]) == (2, f"person:{person('jonas')}")
    own = await jonas.vote(new)
    assert (own.status_code, own.json()["code"]) == (403, "not_eligible")


async def test_meters_see_the_change_as_a_fresh_call(bank: World, robot: Agent, folder: Payments) -> None:
    """A thousand may be spent in a day: 900 and then 700 fits only where the first is given back."""
    folder.write("tools/pay.json", counted_pay()).write("meters.toml", METERS)
    folder.policies(ANYBODY + ASKS + CAPS)
    await bank.activate()
    old = await asked(bank, robot, 900)
    maya = await bank.person("maya")
    new = (await robot.accept(await maya.proposed(old, {"account": "acme", "amount": 700}))).json()
    assert new["state"] == "review"
    columns = table(ReservationRow).c
    held = select(columns.rev, columns.amount).where(
        columns.effect_id == new["effects"][0]["effect_id"],
        columns.field == "/amount",
        columns.given_back_at.is_(None),
    )
    rows = await bank.service.db.read(lambda conn: [tuple(row) for row in conn.execute(held)])
    assert rows == [(2, 700)]


# -- a rerun ----------------------------------------------------------------------------------------------------------


async def test_a_rerun_of_the_staged_list_finds_the_change_and_not_the_staged_bytes(
    bank: World, robot: Agent
) -> None:
    old = await asked(bank, robot)
    maya = await bank.person("maya")
    await robot.accept(await maya.proposed(old, LESS))
    again = await robot.submit(await pay(bank, 500))
    assert (again.status_code, again.json()["rev"], again.json()["effects"][0]["args"]) == (200, 2, LESS)


@pytest.mark.parametrize("how", ["withdrawn", "expired", "another list"])
async def test_a_change_stands_for_its_call_after_its_revision_has_ended(
    bank: World, robot: Agent, how: str
) -> None:
    old = await asked(bank, robot)
    maya, tomas = await bank.person("maya"), await bank.person("tomas")
    await robot.accept(await maya.proposed(old, LESS))
    if how == "withdrawn":
        await robot.send("POST", f"/v1/transactions/{old['txn']}/withdraw", {})
    elif how == "expired":
        bank.clock.pass_(days=2)
        await bank.sweep()
    else:
        await robot.submit(await pay(bank, 900))
        maya, tomas = await bank.person("maya"), await bank.person("tomas")
    if how == "expired":
        maya, tomas = await bank.person("maya"), await bank.person("tomas")
    new = (await robot.submit(await pay(bank, 500))).json()
    assert new["effects"][0]["args"] == LESS
    assert (await maya.vote(new)).json()["code"] == "not_eligible"
    assert (await tomas.vote(new)).json()["state"] == "met"


async def test_changed_bytes_are_never_spent_in_the_round_trip_of_a_submission(
    bank: World, robot: Agent
) -> None:
    old = await asked(bank, robot)
    maya = await bank.person("maya")
    await robot.accept(await maya.proposed(old, {"account": "acme", "amount": 5}))
    await robot.send("POST", f"/v1/transactions/{old['txn']}/withdraw", {})
    new = (await robot.submit(await pay(bank, 500), attempt_id="at-once-" + robot.name)).json()
    assert (new["rev"], new["state"], new["releases"], new.get("receipt")) == (3, "ready", [], None)
    assert (await robot.spend(new))["redeemed"] is True


async def test_a_persons_deny_of_the_changed_list_is_answered_again(bank: World, robot: Agent) -> None:
    old = await asked(bank, robot)
    maya, tomas = await bank.person("maya"), await bank.person("tomas")
    new = (await robot.accept(await maya.proposed(old, LESS))).json()
    await tomas.vote(new, "deny", reason="not at all")
    again = (await robot.submit(await pay(bank, 500))).json()
    assert (again["rev"], again["state"]) == (2, "ended")


# -- who may not -------------------------------------------------------------------------------------------------------


async def test_only_whoever_may_vote_may_propose(bank: World, folder: Payments) -> None:
    folder.rules(gate("large-too", "finance|cfo", "context.input.amount > 100"))
    await bank.activate()
    owned = await bank.agent("owned-2", owner=person("tomas"))
    old = await asked(bank, owned)
    for name, words in (
        ("jonas", "only people in cfo or finance decide this"),
        ("tomas", "nobody approves their own side"),
    ):
        somebody = await bank.person(name)
        refused = await somebody.propose(old, LESS)
        assert (refused.status_code, refused.json()["code"]) == (403, "not_eligible")
        assert words in refused.json()["detail"]
    assert await states(bank, old) == []


async def test_only_the_agent_or_its_owner_answers(bank: World, robot: Agent) -> None:
    old = await asked(bank, robot)
    maya, stranger = await bank.person("maya"), await bank.agent("stranger")
    proposal = await maya.proposed(old, LESS)
    for verb in (stranger.accept, stranger.decline):
        answer = await verb(proposal)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    for name in ("maya", "tomas", "jonas"):
        somebody = await bank.person(name)
        page = await somebody.http.post(
            f"/proposals/{proposal}/accept",
            data={"csrf_token": somebody.csrf},
            headers={"Cookie": f"countersign_dev={somebody.cookie}", "Origin": somebody.origin},
        )
        assert page.status_code == 403
    assert await states(bank, old) == ["open"]
    assert (await robot.see(old["txn"]))["rev"] == 1


async def test_the_editor_cannot_change_it_back_nor_vote_after_another_did(
    bank: World, robot: Agent, folder: Payments
) -> None:
    folder.people(GROUPS | {"finance": ("maya", "tomas", "ingrid")})
    await bank.activate()
    old = await asked(bank, robot)
    maya, tomas, ingrid = [await bank.person(name) for name in ("maya", "tomas", "ingrid")]
    second = (await robot.accept(await maya.proposed(old, LESS))).json()
    back = await maya.propose(second, old["effects"][0]["args"])
    assert (back.status_code, back.json()["code"]) == (403, "not_eligible")
    third = (await robot.accept(await tomas.proposed(second, old["effects"][0]["args"]))).json()
    assert (third["rev"], third["effects"][0]["args"]) == (3, old["effects"][0]["args"])
    assert third["effects"][0]["effect_digest"] == old["effects"][0]["effect_digest"]
    for editor in (maya, tomas):
        assert (await editor.vote(third)).json()["code"] == "not_eligible"
    assert (await ingrid.vote(third)).json()["state"] == "met"


async def test_a_question_only_the_editor_could_answer_is_told_as_impossible(
    bank: World, robot: Agent, folder: Payments
) -> None:
    folder.people(GROUPS | {"finance": ("maya",)})
    await bank.activate()
    old = await asked(bank, robot)
    maya = await bank.person("maya")
    new = (await robot.accept(await maya.proposed(old, LESS))).json()
    await watch_quorums(bank.service.ctx)
    ingrid = await bank.person("ingrid")
    task = await ingrid.task(new, "impossible_quorum")
    assert "can give 0 of 1" in json.dumps(task)


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "the same arguments": ({"account": "acme", "amount": 500}, "invalid_request", "as they are now"),
    "a fraction": ({"account": "acme", "amount": 1.5}, "invalid_request", "amount"),
    "text for a number": ({"account": "acme", "amount": "300"}, "invalid_request", "amount"),
    "one missing": ({"account": "acme"}, "invalid_request", "amount"),
    "one nobody declared": ({**LESS, "to": "me"}, "invalid_request", "to"),
    "a reserved key": ({**LESS, "__entity": {"type": "User"}}, "reserved_key", "__entity"),
    "too large": ({"account": "a" * 300_000, "amount": 1}, "too_large", "bytes"),
    "too long for the schema": ({"account": "a" * 6_000, "amount": 1}, "invalid_request", "account"),
    "no resource": ({"account": "", "amount": 1}, "invalid_request", "account"),
}


@pytest.mark.parametrize(("args", "code", "words"), BAD.values(), ids=BAD)
async def test_arguments_that_could_not_be_submitted_are_refused_by_name(
    bank: World, robot: Agent, args: dict[str, Any], code: str, words: str
) -> None:
    old = await asked(bank, robot)
    maya = await bank.person("maya")
    refused = await maya.propose(old, args)
    assert refused.is_client_error, refused.text
    assert (refused.json()["code"], words in refused.json()["detail"]) == (code, True), refused.text
    assert await states(bank, old) == []


async def test_a_proposal_has_a_reason_and_names_what_was_read(bank: World, robot: Agent) -> None:
    old = await asked(bank, robot)
    maya = await bank.person("maya")
    for reason in (None, "", "  "):
        refused = await maya.propose(old, LESS, reason=reason)
        assert (refused.status_code, refused.json()["code"]) == (400, "reason_required")
    for wrong in ({"rev": 2}, {"effect_digest": "0" * 64}, {"txn_digest": "0" * 64}):
        refused = await maya.propose(old, LESS, **wrong)
        assert (refused.status_code, refused.json()["code"]) == (409, "stale_review")
        assert refused.json()["detail"].startswith("nothing was proposed")
    assert (await maya.propose(old, LESS, verdict="approve")).json()["code"] == "unknown_field"
    assert await states(bank, old) == []


async def test_a_program_without_the_form_token_proposes_nothing(bank: World, robot: Agent) -> None:
    old = await asked(bank, robot)
    maya = await bank.person("maya")
    maya.csrf = "another"
    assert (await maya.propose(old, LESS)).json()["code"] == "csrf"
    maya.origin = "https://evil.example"
    assert (await maya.propose(old, LESS)).status_code == 403
    assert await states(bank, old) == []


async def test_a_settled_question_takes_no_proposal_and_lets_the_open_ones_lapse(
    bank: World, robot: Agent
) -> None:
    old = await asked(bank, robot)
    maya, tomas = await bank.person("maya"), await bank.person("tomas")
    proposal = await maya.proposed(old, LESS)
    await tomas.vote(old)
    assert await states(bank, old) == ["lapsed"]
    late = await robot.accept(proposal)
    assert (late.status_code, late.json()["code"], late.json()["state"]) == (409, "proposal_closed", "lapsed")
    refused = await maya.propose(old, LESS)
    assert (refused.status_code, refused.json()["code"]) == (409, "review_closed")
    assert (await robot.see(old["txn"]))["rev"] == 1


@pytest.mark.parametrize("how", ["denied", "withdrawn", "another list", "expired", "time is over"])
async def test_nothing_is_accepted_once_its_revision_is_no_more(bank: World, robot: Agent, how: str) -> None:
    old = await asked(bank, robot)
    maya, tomas = await bank.person("maya"), await bank.person("tomas")
    proposal = await maya.proposed(old, LESS)
    if how == "denied":
        await tomas.vote(old, "deny", reason="no")
    elif how == "withdrawn":
        await robot.send("POST", f"/v1/transactions/{old['txn']}/withdraw", {})
    elif how == "another list":
        await robot.submit(await pay(bank, 900))
    else:
        bank.clock.pass_(days=2)
        if how == "expired":
            await bank.sweep()
    late = await robot.accept(proposal)
    assert (late.status_code, late.json()["code"]) == (409, "proposal_closed")
    now = await robot.see(old["txn"])
    assert all(effect["edits"] == [] for effect in now["effects"])


async def test_a_frozen_agent_and_a_stopped_tool_take_no_change(bank: World, robot: Agent) -> None:
    old = await asked(bank, robot)
    maya = await bank.person("maya")
    proposal = await maya.proposed(old, LESS)
    await bank.operator("stop", {"tool": "pay", "reason": "look"})
    stopped = await robot.accept(proposal)
    assert (stopped.status_code, stopped.json()["code"]) == (403, "frozen")
    await bank.operator("go-on", {"tool": "pay"})
    assert (await robot.accept(proposal)).json()["rev"] == 2


async def test_what_a_revoked_person_proposed_is_not_taken(
    bank: World, robot: Agent, folder: Payments
) -> None:
    folder.people(GROUPS | {"finance": ("maya", "ingrid")})
    await bank.activate()
    old = await asked(bank, robot)
    ingrid = await bank.person("ingrid")
    proposal = await ingrid.proposed(old, LESS)
    await bank.operator("revoke-approver", {"person": person("ingrid"), "reason": "left"})
    late = await robot.accept(proposal)
    assert (late.status_code, late.json()["code"]) == (409, "proposal_closed")
    await bank.operator("reinstate-approver", {"person": person("ingrid")})


# -- more than one at a time ------------------------------------------------------------------------------------------


async def test_a_person_has_one_open_proposal_and_the_newest_counts(bank: World, robot: Agent) -> None:
    old = await asked(bank, robot)
    maya, tomas = await bank.person("maya"), await bank.person("tomas")
    first = await maya.proposed(old, LESS)
    assert await maya.proposed(old, LESS) == first
    second = await maya.proposed(old, {"account": "acme", "amount": 200})
    other = await tomas.proposed(old, {"account": "acme", "amount": 100})
    assert await states(bank, old) == ["lapsed", "open", "open"]
    assert (await robot.accept(first)).json()["code"] == "proposal_closed"
    assert (await robot.decline(other, "no")).json()["rev"] == 1
    assert (await robot.accept(second)).json()["rev"] == 2
    assert await states(bank, old) == ["lapsed", "accepted", "declined"]


async def test_of_one_person_a_review_takes_so_many_proposals(
    bank: World, robot: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever became of them: each is a line of the story, and asks the agent's side."""
    monkeypatch.setattr("policy_service.workflow.edits.propose.MAX_OF_A_PERSON", 3)
    old = await asked(bank, robot)
    maya, tomas = await bank.person("maya"), await bank.person("tomas")
    for amount in (300, 200):
        last = await maya.proposed(old, {"account": "acme", "amount": amount})
    await robot.decline(last, "no")
    kept = await maya.proposed(old, LESS)
    refused = await maya.propose(old, {"account": "acme", "amount": 100})
    assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
    assert await maya.proposed(old, LESS) == kept, "the same again is the same"
    await tomas.proposed(old, {"account": "acme", "amount": 100})
    assert await states(bank, old) == ["lapsed", "declined", "open", "open"]


async def test_declining_and_taking_back_leave_the_question_as_it_was(bank: World, robot: Agent) -> None:
    old = await asked(bank, robot, 5_000)
    maya, tomas = await bank.person("maya"), await bank.person("tomas")
    await tomas.vote(old)
    proposal = await maya.proposed(old, LESS)
    for _ in range(2):
        answer = await robot.decline(proposal, "it was all delivered")
        assert (answer.status_code, answer.json()["effects"][0]["review"]["proposals"]) == (200, [])
    assert (await robot.accept(proposal)).json()["code"] == "proposal_closed"
    assert (await maya.vote(old)).json()[
        "state"
    ] == "met"  # who proposed and was declined has changed nothing


async def test_accepting_twice_is_accepting_once(bank: World, robot: Agent) -> None:
    old = await asked(bank, robot)
    maya = await bank.person("maya")
    proposal = await maya.proposed(old, LESS)
    first, second = await asyncio.gather(robot.accept(proposal), robot.accept(proposal))
    assert {first.json()["rev"], second.json()["rev"]} == {2}
    assert (await robot.decline(proposal)).json()["code"] == "proposal_closed"


async def test_of_an_accept_a_vote_a_withdrawal_and_a_rerun_at_once_one_outcome_stands(
    bank: World, robot: Agent
) -> None:
    old = await asked(bank, robot)
    maya, tomas = await bank.person("maya"), await bank.person("tomas")
    proposal = await maya.proposed(old, LESS)
    other = await bank.another_key(robot)
    await asyncio.gather(
        robot.accept(proposal),
        tomas.vote(old),
        other.submit(await pay(bank, 900)),
        return_exceptions=False,
    )
    now = await robot.see(old["txn"])
    (state,) = await states(bank, old)
    assert (state, now["rev"]) in {("accepted", 3), ("lapsed", 2), ("accepted", 2)}
    assert now["state"] == "review"


async def test_an_agent_that_waits_hears_of_a_proposal_and_of_what_its_owner_accepted(bank: World) -> None:
    owned = await bank.agent("owned-3", owner=person("jonas"))
    old = await asked(bank, owned)
    maya, jonas = await bank.person("maya"), await bank.person("jonas")
    waiting = asyncio.create_task(owned.see(old["txn"], wait=20))
    await asyncio.sleep(0.2)
    proposal = await maya.proposed(old, LESS)
    seen = await asyncio.wait_for(waiting, 10)
    assert seen["effects"][0]["review"]["proposals"][0]["proposal_id"] == proposal
    waiting = asyncio.create_task(owned.see(old["txn"], wait=20))
    await asyncio.sleep(0.2)
    await jonas.http.post(
        f"/proposals/{proposal}/accept",
        data={"csrf_token": jonas.csrf},
        headers={"Cookie": f"countersign_dev={jonas.cookie}", "Origin": jonas.origin},
    )
    assert (await asyncio.wait_for(waiting, 10))["rev"] == 2


async def test_what_takes_something_back_cannot_be_changed(
    bank: World, robot: Agent, folder: Payments
) -> None:
    folder.rules(gate("undoing", "finance", action="unpay"))
    await bank.activate()
    view = (await robot.submit(await pay(bank), await mail(bank), attempt_id="fires-" + robot.name)).json()
    paid = view["effects"][0]
    await robot.report(
        "fires-" + robot.name, {"effect_id": paid["effect_id"], "outcome": "fired", "result": {"id": "p"}}
    )
    path = f"/v1/transactions/{view['txn']}/compensate"
    undo = await robot.send("POST", path, {"effect_id": paid["effect_id"]})
    effect = undo.json()["effect"]
    maya = await bank.person("maya")
    wish = {"txn_digest": view["txn_digest"], "rev": 1, "effects": [effect]}
    refused = await maya.propose(wish, {"payment": "q", "amount": 10})
    assert (refused.status_code, "takes back" in refused.json()["detail"]) == (400, True), refused.text
