"""Proposals of a reviewer: accepted or declined by the agent's side, decided as a new revision; their forms."""

from __future__ import annotations

import asyncio
import re
from html import unescape
from typing import Any

import httpx2
import pytest
from sqlalchemy import select

from policy_service.storage.core import table
from policy_service.storage.reservations import ReservationRow
from policy_service.storage.review_tables import ProposalRow
from policy_service.workflow.reviews.unsatisfiable import update_unsatisfiable_reviews
from tests.fakes.payments import ANYBODY, GROUPS, gate, person, plain_forbid
from tests.fakes.world import Visitor
from tests.integration.service.effects import pay
from tests.integration.service.metered import ASKS, CAPS, METERS, counted_pay
from tests.integration.service.stepping_up import Holder
from tests.integration.service.together.bank import Bank, refusal
from tests.integration.service.together.test_outcomes import fired, undone

LESS = {"account": "acme", "amount": 300}


async def states(bank: Bank, view: dict[str, Any]) -> list[str]:
    """The states of the proposals of a transaction, oldest first."""
    columns = table(ProposalRow).c
    query = select(columns.state).where(columns.txn == view["txn"]).order_by(columns.proposal_id)
    return await bank.service.db.read(lambda conn: list(conn.execute(query).scalars()))


async def changed(bank: Bank, old: dict[str, Any], amount: int = 300, account: str = "acme") -> Any:
    """The revision after the agent accepts what Maya proposes."""
    proposal = await bank.maya.proposed(old, {"account": account, "amount": amount})
    return (await bank.robot.accept(proposal)).json()


async def press_accept(visitor: Visitor, proposal: str) -> httpx2.Response:
    """The button of the agent's owner."""
    return await Holder(visitor).send(f"/proposals/{proposal}/accept")


async def test_an_accepted_proposal_is_a_new_revision_that_fires_once(bank: Bank) -> None:
    old = await bank.asks()
    taken = await bank.maya.propose(old, LESS)
    assert taken.status_code == 201
    (open_,) = taken.json()["effect"]["review"]["proposals"]
    assert (open_["state"], open_["args"], open_["person"]) == ("open", LESS, person("maya"))
    assert (taken.json()["state"], taken.json()["votes"]) == ("open", [])  # proposing is no vote
    answer = await bank.robot.accept(open_["proposal_id"])
    new = answer.json()
    assert (answer.status_code, new["rev"], new["state"]) == (200, 2, "review")
    before, after = old["effects"][0], new["effects"][0]
    assert after["args"] == LESS
    assert (after["call_key"], after["effect_id"]) == (before["call_key"], before["effect_id"])
    assert [after[name] != before[name] for name in ("args_digest", "effect_digest")] == [True, True]
    assert new["txn_digest"] != old["txn_digest"]
    (edit,) = after["edits"]
    assert (edit["name"], edit["decided_by"], edit["became_rev"]) == ("Maya", f"agent:{bank.robot.name}", 2)
    assert (await bank.tomas.vote(new)).json()["state"] == "met"
    spent = await bank.robot.spend(await bank.robot.see(new["txn"]))
    assert spent["transaction"]["effects"][0]["args"] == LESS
    assert await bank.counts(new, "proposal_opened", "proposal_accepted") == [1, 1]


async def test_an_accepted_proposal_is_released_or_denied_by_policy(bank: Bank) -> None:
    small = await changed(bank, await bank.asks(), 5, "other")
    assert (small["state"], small["effects"][0]["edits"][0]["state"]) == ("ready", "accepted")
    assert small["effects"][0]["resource"] == {"type": "Account", "id": "other"}
    await bank.rules(plain_forbid("never-evil", 'context.input.account == "evil"'))
    ended = await changed(bank, await bank.asks(700, run_key="run-2"), 700, "evil")
    assert (ended["state"], ended["effects"][0]["state"]) == ("ended", "denied")


async def test_votes_and_releases_of_the_old_revision_are_void(bank: Bank) -> None:
    old = await bank.asks(5_000)
    await bank.tomas.vote(old)
    assert (await changed(bank, old, 200))["effects"][0]["review"]["needs"][0]["have"] == 0
    stale = await bank.tomas.vote(old)
    assert (refusal(stale), stale.json()["rev"]) == ((409, "stale_review"), 2)
    assert stale.json()["changed"] == [{"name": "amount", "read": "5000", "now": "200"}]
    assert refusal(await bank.robot.release(old)) == (409, "superseded")


async def test_the_editor_may_vote_on_no_effect_of_the_new_revision(bank: Bank) -> None:
    old = (await bank.robot.submit(await pay(bank, 500), await pay(bank, 600, "other"))).json()
    await bank.tomas.vote(old, effect=1)
    new = await changed(bank, old)
    assert await bank.states(new) == ["review", "review", "review"]
    assert new["effects"][1]["effect_digest"] == old["effects"][1]["effect_digest"]
    for place in (0, 1):
        assert refusal(await bank.maya.vote(new, effect=place)) == (403, "not_eligible")
    for place in (0, 1):
        assert (await bank.tomas.vote(new, effect=place)).json()["state"] == "met"
    assert (await bank.states(new))[0] == "ready"


async def test_the_owner_may_accept_for_the_agent(bank: Bank) -> None:
    owned = await bank.other_agent("owned", owner=person("jonas"))
    old = await bank.asks(robot=owned)
    page = await press_accept(bank.jonas, await bank.maya.proposed(old, LESS))
    assert page.status_code == 303, page.text
    new = await owned.see(old["txn"])
    assert (new["rev"], new["effects"][0]["edits"][0]["decided_by"]) == (2, f"person:{person('jonas')}")
    assert refusal(await bank.jonas.vote(new)) == (403, "not_eligible")


async def test_an_edited_call_replaces_its_reservation(bank: Bank) -> None:
    """A thousand may be spent in a day: 900 and then 700 fits only if the first reservation is released."""
    bank.folder.write("tools/pay.json", counted_pay()).write("meters.toml", METERS)
    await bank.policies(ANYBODY + ASKS + CAPS)
    new = await changed(bank, await bank.asks(900), 700)
    assert new["state"] == "review"
    row = table(ReservationRow).c
    mine = row.effect_id == new["effects"][0]["effect_id"]
    held = select(row.rev, row.amount).where(mine, row.field == "/amount", row.given_back_at.is_(None))
    assert await bank.service.db.read(lambda conn: [tuple(row) for row in conn.execute(held)]) == [(2, 700)]


# -- a rerun ----------------------------------------------------------------------------------------------------------


async def test_an_edit_applies_to_later_revisions_of_its_call(bank: Bank) -> None:
    """The staged list gets the edit, not the staged bytes, while the run key is used."""
    for how in ("goes on", "withdrawn", "another list", "expired"):
        await bank.fresh()
        old = await bank.asks()
        await changed(bank, old)
        if how == "withdrawn":
            await bank.withdraw(old)
        elif how == "another list":
            await bank.asks(900)
        elif how == "expired":
            bank.clock.pass_(days=2)
            await bank.sweep()
            await bank.sign_in()
        new = await bank.asks()
        assert new["rev"] == {"goes on": 2, "another list": 4}.get(how, 3)
        assert new["effects"][0]["args"] == LESS, how
        assert refusal(await bank.maya.vote(new)) == (403, "not_eligible")
        assert (await bank.tomas.vote(new)).json()["state"] == "met"


async def test_edited_arguments_are_never_redeemed_with_the_submission(bank: Bank) -> None:
    old = await bank.asks()
    await changed(bank, old, 5)
    await bank.withdraw(old)
    new = await bank.asks(attempt_id="at-once-" + bank.robot.name)
    assert (new["rev"], new["state"], new["releases"], new.get("receipt")) == (3, "ready", [], None)
    assert (await bank.robot.spend(new))["redeemed"] is True
    denied = await changed(bank, await bank.asks(run_key="denied"))
    await bank.tomas.vote(denied, "deny", reason="not at all")
    again = await bank.asks(run_key="denied")
    assert (again["rev"], again["state"]) == (2, "ended"), "a person's deny is answered again"


# -- who may not -------------------------------------------------------------------------------------------------------


async def test_only_eligible_voters_may_propose(bank: Bank) -> None:
    await bank.rules(gate("large-too", "finance|cfo", "context.input.amount > 100"))
    old = await bank.asks(robot=await bank.other_agent("owned-2", owner=person("tomas")))
    for somebody, words in (
        (bank.jonas, "only people in cfo or finance decide this"),
        (bank.tomas, "so you cannot approve what it asks for"),
    ):
        refused = await somebody.propose(old, LESS)
        assert refusal(refused) == (403, "not_eligible")
        assert words in refused.json()["detail"]
    assert await states(bank, old) == []


async def test_only_the_agent_or_its_owner_may_accept(bank: Bank) -> None:
    old, stranger = await bank.asks(), await bank.other_agent("stranger")
    proposal = await bank.maya.proposed(old, LESS)
    for verb in (stranger.accept, stranger.decline):
        assert refusal(await verb(proposal)) == (404, "not_found")
    for somebody in (bank.maya, bank.tomas, bank.jonas):
        assert (await press_accept(somebody, proposal)).status_code == 403
    assert await states(bank, old) == ["open"]
    assert (await bank.robot.see(old["txn"]))["rev"] == 1


async def test_an_editor_cannot_edit_again_or_vote_after_another_edit(bank: Bank) -> None:
    await bank.people(GROUPS | {"finance": ("maya", "tomas", "ingrid")})
    old = await bank.asks()
    first, second = old["effects"][0], await changed(bank, old)
    assert refusal(await bank.maya.propose(second, first["args"])) == (403, "not_eligible")
    third = (await bank.robot.accept(await bank.tomas.proposed(second, first["args"]))).json()
    assert (third["rev"], third["effects"][0]["args"]) == (3, first["args"])
    assert third["effects"][0]["effect_digest"] == first["effect_digest"]
    for editor in (bank.maya, bank.tomas):
        assert refusal(await editor.vote(third)) == (403, "not_eligible")
    assert (await bank.ingrid.vote(third)).json()["state"] == "met"


async def test_a_review_only_the_editor_could_approve_is_unsatisfiable(bank: Bank) -> None:
    await bank.people(GROUPS | {"finance": ("maya",)})
    new = await changed(bank, await bank.asks())
    await update_unsatisfiable_reviews(bank.service.ctx)
    assert "can give 0 of 1" in (await bank.ingrid.task(new, "impossible_quorum"))["task"]["text"]


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"account": "acme", "amount": 500}, "invalid_request", "as they are now"),
    ({"account": "acme", "amount": 1.5}, "invalid_request", "amount"),
    ({**LESS, "to": "me"}, "invalid_request", "to"),
    ({**LESS, "__entity": {"type": "User"}}, "reserved_key", "__entity"),
    ({"account": "a" * 300_000, "amount": 1}, "too_large", "bytes"),
    ({"account": "", "amount": 1}, "invalid_request", "account"),  # no resource
]

MISREAD: list[tuple[dict[str, Any], tuple[int, str]]] = [
    ({"reason": None}, (400, "reason_required")),
    ({"reason": "  "}, (400, "reason_required")),
    ({"rev": 2}, (409, "stale_review")),
    ({"effect_digest": "0" * 64}, (409, "stale_review")),
    ({"txn_digest": "0" * 64}, (409, "stale_review")),
    ({"verdict": "approve"}, (400, "unknown_field")),
]


async def test_an_invalid_proposal_is_refused_by_name(bank: Bank) -> None:
    old = await bank.asks()
    for args, code, words in BAD:
        refused = await bank.maya.propose(old, args)
        assert refused.is_client_error
        assert (refused.json()["code"], words in refused.json()["detail"]) == (code, True), str(args)[:99]
    for said, refused_as in MISREAD:
        assert refusal(await bank.maya.propose(old, LESS, **said)) == refused_as, said
    bank.maya.csrf = "another"
    assert refusal(await bank.maya.propose(old, LESS)) == (403, "csrf")
    bank.maya.origin = "https://evil.example"
    assert (await bank.maya.propose(old, LESS)).status_code == 403
    assert await states(bank, old) == []


async def test_a_proposal_on_an_ended_revision_is_refused(bank: Bank) -> None:
    for how in ("met", "denied", "withdrawn", "another list", "expired", "time is over"):
        await bank.fresh()
        old = await bank.asks()
        proposal = await bank.maya.proposed(old, LESS)
        if how == "met":
            await bank.tomas.vote(old)
            assert await states(bank, old) == ["lapsed"]
            assert refusal(await bank.maya.propose(old, LESS)) == (409, "review_closed")
        elif how == "denied":
            await bank.tomas.vote(old, "deny", reason="no")
        elif how == "withdrawn":
            await bank.withdraw(old)
        elif how == "another list":
            await bank.asks(900)
        else:
            bank.clock.pass_(days=2)
            await bank.sign_in()
            if how == "expired":
                await bank.sweep()
        late = await bank.robot.accept(proposal)
        assert refusal(late) == (409, "proposal_closed"), how
        assert late.json().get("state") == (None if how == "time is over" else "lapsed"), how
        now = await bank.robot.see(old["txn"])
        assert now["rev"] == (2 if how == "another list" else 1)
        assert [effect["edits"] for effect in now["effects"]] == [[]]


async def test_a_frozen_agent_or_stopped_tool_blocks_accepting(bank: Bank) -> None:
    owned = await bank.other_agent("owned", owner=person("jonas"))
    stop, freeze = ("stop", {"tool": "pay"}, "go-on"), ("freeze", {"agent": owned.name}, "unfreeze")
    for verb, what, end in (stop, freeze):
        old = await bank.asks(robot=owned, run_key=verb)
        proposal = await bank.maya.proposed(old, LESS)
        await bank.operator(verb, what | {"reason": "look"})
        refused = await owned.accept(proposal), await press_accept(bank.jonas, proposal)
        assert (refusal(refused[0]), refused[1].status_code) == ((403, "frozen"), 403)
        await bank.operator(end, what)
        assert (await press_accept(bank.jonas, proposal)).status_code == 303
        assert (await owned.see(old["txn"]))["rev"] == 2


async def test_a_proposal_by_a_revoked_person_is_refused(bank: Bank) -> None:
    await bank.people(GROUPS | {"finance": ("maya", "ingrid")})
    proposal = await bank.ingrid.proposed(await bank.asks(), LESS)
    async with bank.revoked("ingrid"):
        assert refusal(await bank.robot.accept(proposal)) == (409, "proposal_closed")


# -- more than one at a time ------------------------------------------------------------------------------------------


async def test_a_newer_proposal_of_a_person_replaces_the_open_one(bank: Bank) -> None:
    old = await bank.asks()
    first = await bank.maya.proposed(old, LESS)
    assert await bank.maya.proposed(old, LESS) == first
    second = await bank.maya.proposed(old, LESS | {"amount": 200})
    other = await bank.tomas.proposed(old, LESS | {"amount": 100})
    assert await states(bank, old) == ["lapsed", "open", "open"]
    assert (await bank.robot.accept(first)).json()["code"] == "proposal_closed"
    assert (await bank.robot.decline(other, "no")).json()["rev"] == 1
    assert (await bank.robot.accept(second)).json()["rev"] == 2
    assert await states(bank, old) == ["lapsed", "accepted", "declined"]


async def test_the_proposals_of_a_person_are_limited(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed proposals count too."""
    monkeypatch.setattr("policy_service.workflow.edits.proposals.MAX_OF_A_PERSON", 3)
    old = await bank.asks()
    for amount in (300, 200):
        last = await bank.maya.proposed(old, LESS | {"amount": amount})
    await bank.robot.decline(last, "no")
    kept = await bank.maya.proposed(old, LESS)
    assert refusal(await bank.maya.propose(old, LESS | {"amount": 100})) == (429, "rate_limited")
    assert await bank.maya.proposed(old, LESS) == kept, "the same again is the same"
    await bank.tomas.proposed(old, LESS | {"amount": 100})
    assert await states(bank, old) == ["lapsed", "declined", "open", "open"]


async def test_declining_or_withdrawing_a_proposal_leaves_the_review_open(bank: Bank) -> None:
    old = await bank.asks(5_000)
    await bank.tomas.vote(old)
    proposal = await bank.maya.proposed(old, LESS)
    for _ in range(2):
        answer = await bank.robot.decline(proposal, "it was all delivered")
        assert (answer.status_code, answer.json()["effects"][0]["review"]["proposals"]) == (200, [])
    assert refusal(await bank.robot.accept(proposal)) == (409, "proposal_closed")
    assert (await bank.maya.vote(old)).json()["state"] == "met", "who was declined has changed nothing"


async def test_accepting_is_idempotent(bank: Bank) -> None:
    proposal = await bank.maya.proposed(await bank.asks(), LESS)
    first, second = await asyncio.gather(bank.robot.accept(proposal), bank.robot.accept(proposal))
    assert {first.json()["rev"], second.json()["rev"]} == {2}
    assert (await bank.robot.decline(proposal)).json()["code"] == "proposal_closed"


async def test_concurrent_accept_vote_withdrawal_and_rerun_have_one_outcome(bank: Bank) -> None:
    """Either these bytes were approved, or they are void: never both."""
    for rerun in (True, False):
        old = await bank.asks(robot=await bank.fresh())
        asked = [bank.robot.accept(await bank.maya.proposed(old, LESS)), bank.tomas.vote(old)]
        if rerun:
            asked.append((await bank.another_key(bank.robot)).submit(await pay(bank, 900)))
        accepted, voted, *_ = await asyncio.gather(*asked)
        now = await bank.robot.see(old["txn"])
        (state,) = await states(bank, old)
        if rerun:
            assert (state, now["rev"]) in {("accepted", 3), ("lapsed", 2), ("accepted", 2)}
            assert now["state"] == "review"
        elif state == "accepted":
            assert (accepted.status_code, voted.status_code) == (200, 409)
            assert (now["rev"], now["state"]) == (2, "review"), "an old vote is live"
        else:
            assert (accepted.status_code, voted.status_code) == (409, 200)
            assert (await bank.robot.spend(now))["redeemed"] is True


async def test_a_proposal_ends_the_agents_wait(bank: Bank) -> None:
    owned = await bank.other_agent("owned-3", owner=person("jonas"))
    old = await bank.asks(robot=owned)
    waiting = asyncio.create_task(owned.see(old["txn"], wait=20))
    await asyncio.sleep(0.2)
    proposal = await bank.maya.proposed(old, LESS)
    seen = await asyncio.wait_for(waiting, 10)
    assert seen["effects"][0]["review"]["proposals"][0]["proposal_id"] == proposal
    waiting = asyncio.create_task(owned.see(old["txn"], wait=20))
    await asyncio.sleep(0.2)
    await press_accept(bank.jonas, proposal)
    assert (await asyncio.wait_for(waiting, 10))["rev"] == 2


async def test_a_compensation_cannot_be_edited(bank: Bank) -> None:
    await bank.rules(gate("undoing", "finance", action="unpay"))
    view = await fired(bank, bank.robot)
    effect = (await undone(bank.robot, view)).json()["effect"]
    refused = await bank.maya.propose(view | {"effects": [effect]}, {"payment": "q", "amount": 10})
    assert (refused.status_code, "a compensation" in refused.json()["detail"]) == (400, True), refused.text


# -- The form for proposing other arguments, and the buttons of the agent's owner, as browsers send them

OVERRIDE = "\u202e"


def address(view: dict[str, Any]) -> str:
    return f"/reviews/{view['effects'][0]['review']['review_id']}"


def fields_of(html: str, action: str) -> dict[str, str]:
    """What a form would send unchanged."""
    form = html.split(f'action="{action}"')[1].split("</form>")[0]
    hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form))
    lines = dict(re.findall(r'<input class="input mono" id="\w+" name="(value_\d+)" value="([^"]*)"', form))
    areas = dict(re.findall(r'<textarea[^>]* name="(value_\d+)"[^>]*>\n(.*?)</textarea>', form, re.DOTALL))
    ticks = dict.fromkeys(re.findall(r'name="(out_\d+)" value="1" checked', form), "1")
    return {name: unescape(value) for name, value in (hidden | lines | areas | ticks).items()}


async def test_a_hidden_character_is_shown_marked_and_sent_unchanged(bank: Bank) -> None:
    path, maya = address(await bank.asks()), Holder(bank.maya)
    fields = fields_of(await maya.page(f"{path}/propose"), f"{path}/propose")
    looked = await maya.send(f"{path}/propose", **fields | {"value_0": f"ac{OVERRIDE}me"})
    assert looked.status_code == 200
    assert "U+202E" in looked.text
    assert "I have read the 1 warning" in looked.text
    wish = fields_of(looked.text, f"{path}/proposals") | {"reason": "another account"}
    assert (await maya.send(f"{path}/proposals", **wish)).status_code == 303
    (open_,) = (await bank.maya.get(f"/v1{path}")).json()["effect"]["review"]["proposals"]
    assert open_["args"]["account"] == f"ac{OVERRIDE}me"


async def test_a_refused_form_keeps_its_input(bank: Bank) -> None:
    old, maya = await bank.asks(), Holder(bank.maya)
    path = address(old)
    fields = fields_of(await maya.page(f"{path}/propose"), f"{path}/propose")
    refused = await maya.send(f"{path}/propose", **fields | {"value_0": "a" * 300_000})
    assert refused.status_code == 413
    assert "Nothing was proposed." in refused.text and "bytes" in refused.text
    assert "a" * 300_000 in refused.text
    looked = await maya.send(f"{path}/propose", **fields | {"value_1": "300"})
    wish = fields_of(looked.text, f"{path}/proposals")
    refused = await maya.send(f"{path}/proposals", **wish | {"reason": "  "})
    assert (refused.status_code, "Give a reason" in refused.text) == (400, True)
    again = fields_of(refused.text, f"{path}/proposals")
    assert again == wish
    assert fields_of(refused.text, f"{path}/propose")["value_1"] == "300"
    assert await states(bank, old) == []
    assert (await maya.send(f"{path}/proposals", **again | {"reason": "half of it"})).status_code == 303
    assert await states(bank, old) == ["open"]
