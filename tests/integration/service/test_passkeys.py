"""Passkeys: enrolled and removed by their person alone, and step-up: a passkey signs exactly one vote."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from webauthn.helpers import base64url_to_bytes

from policy_service.identity.webauthn import STEP_UP_MEMBERS, step_up_challenge
from policy_service.storage.core import find
from policy_service.storage.system_tables import AssertionRow, ChallengeRow, PasskeyRow
from policy_service.storage.tables import VoteRow
from policy_service.workflow.expiry import sweep
from tests.fakes.authenticator import UP, UV, Passkey
from tests.fakes.pages import holds
from tests.fakes.payments import ANYBODY, Payments, gate, person
from tests.fakes.world import Agent, running
from tests.integration.service.effects import pay
from tests.integration.service.stepping_up import (
    LOCALHOST,
    Ceremony,
    Holder,
    ceremony,
    holder,
    refusal_text,
    review_of,
)
from tests.integration.service.together.bank import Bank, refusal
from tests.integration.service.together.test_break_glass import ALONE, TWO
from tests.integration.service.together.test_break_glass import PEOPLE as ON_CALL

CAREFUL = ANYBODY + gate("careful", "finance", step_up="passkey")
ADD, REMOVE = "/passkeys/additions", "/passkeys/removals"


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"public_url": LOCALHOST}


@pytest.fixture
def folder(folder: Payments) -> Payments:
    return folder.policies(CAREFUL)


async def rows(bank: Bank) -> list[PasskeyRow]:
    found = await bank.service.db.read(lambda conn: find(conn, PasskeyRow))
    return sorted(found, key=lambda row: row.created_at)


async def asked_by(one: Holder, path: str = ADD, **fields: str) -> Ceremony:
    """The ceremony of adding (or removing) a passkey."""
    return ceremony((await one.send(path, **(fields or {"name": "spare"}))).text)


async def lost(bank: Bank) -> None:
    await bank.operator("passkeys-reset", {"person": person("maya"), "reason": "left it in a taxi"})


async def test_a_first_passkey_is_trusted_after_a_fresh_sign_in_only(bank: Bank) -> None:
    maya = Holder(await bank.person("maya"))
    bank.clock.pass_(seconds=300)
    answer = await maya.enrol()
    assert answer.status_code == 403
    holds(refusal_text(answer), "sign in again")
    holds(await maya.page("/passkeys"), "Sign in again to add one")
    assert await rows(bank) == []
    of_maya, unknown = {"person": person("maya")}, {"passkey_id": "pk_x"}
    for verb, args in (("passkeys-reset", of_maya), ("passkey-revoke", unknown)):
        with pytest.raises(Exception, match="no passkey"):
            await bank.operator(verb, args | {"reason": "lost"})
    await holder(bank, "maya")
    (row,) = await rows(bank)
    assert (row.name, row.vouched_by, row.counts_from) == ("blue key", None, row.created_at)
    ((kind, body),) = await bank.audited("passkey%")
    assert (kind, body["person"], body["key"]) == ("passkey_enrolled", person("maya"), row.key_digest)
    assert body["waits"] is False
    (listed,) = await bank.operator("passkey-list", {})
    assert (listed["person"], listed["removed_at"]) == (person("maya"), None)


async def test_a_second_passkey_needs_the_word_of_the_first(bank: Bank) -> None:
    maya = await holder(bank, "maya")
    bank.clock.pass_(hours=0.5)  # no fresh sign-in: the passkey's word is enough, and nothing else is
    asked = await asked_by(maya, name="thief's key")
    assert asked.kind == "get"
    assert "not one of yours" in refusal_text(await maya.answer(asked, Passkey().get(asked.options)))
    forger = Passkey(credential_id=maya.passkeys[0].credential_id)
    careless = replace(maya.passkeys[0], flags=UP)
    for key in (forger, careless):
        asked = await asked_by(maya)
        assert (await maya.answer(asked, key.get(asked.options))).status_code == 403
    assert len(await rows(bank)) == 1
    cookie = maya.visitor.cookie
    assert ((await maya.enrol(name="spare")).status_code, maya.visitor.cookie) == (303, cookie)
    first, second = await rows(bank)
    assert (second.vouched_by, second.counts_from) == (first.passkey_id, second.created_at)
    for number in range(18):
        assert (await maya.enrol(name=f"key {number}")).status_code == 303
    holds(refusal_text(await maya.enrol(name="one more")), "remove one first")  # there are twenty at most


async def test_the_word_for_one_thing_is_none_for_another(bank: Bank) -> None:
    """A challenge made for a vote, an enrolment or a removal serves only that."""
    maya, robot = await holder(bank, "maya"), await bank.agent("robot")
    review = review_of((await robot.submit(await pay(bank, 500))).json())
    asked = await maya.begin(review)
    said = {"nonce": asked.fields["nonce"], "credential": maya.passkeys[0].get(asked.options)}
    answer = refusal_text(await maya.send("/passkeys/answers", **said))
    wrong = "begun for something else"
    holds(answer, wrong, "Your passkeys were not changed", without=["vote was not counted"])
    asked = await asked_by(maya)
    said = {"nonce": asked.fields["nonce"], "credential": maya.passkeys[0].get(asked.options)}
    answer = refusal_text(await maya.send(f"/reviews/{review}/votes", **await maya.form(review), **said))
    holds(answer, wrong, "Your vote was not counted")


async def test_one_device_is_one_person(bank: Bank) -> None:
    """F3: neither the credential nor its key is ever enrolled for a second person, nor again once removed."""
    maya, tomas = await holder(bank, "maya"), Holder(await bank.person("tomas"))
    same = maya.passkeys[0]
    for key in (same, Passkey(key=same.key), Passkey(credential_id=same.credential_id)):
        holds(refusal_text(await tomas.enrol(key)), "enrolled before")
    assert [row.sub for row in await rows(bank)] == ["maya"]
    await lost(bank)
    for somebody in (maya, tomas):
        holds(refusal_text(await somebody.enrol(same)), "enrolled before")


async def test_one_in_place_of_lost_ones_waits(bank: Bank, robot: Agent) -> None:
    """If it is a thief's, its person sees it in time and removes it by a fresh sign-in."""
    await holder(bank, "maya")
    await lost(bank)
    thief = Holder(await bank.person("maya"))
    await thief.enrol(name="thief's key")
    (passkey_id,) = await thief.listed()
    maya = Holder(await bank.person("maya"))
    holds(await maya.page("/"), "thief&#39;s key")
    assert (await maya.send(REMOVE, passkey_id=passkey_id)).status_code == 303
    assert await maya.listed() == []
    assert (await maya.enrol()).status_code == 303
    holds(await maya.page("/passkeys"), "Valid from")
    view = (await robot.submit(await pay(bank, 500))).json()
    for hours in (0, 23):
        bank.clock.pass_(hours=hours)
        maya.visitor = await bank.person("maya")
        holds(await maya.page(f"/reviews/{review_of(view)}"), "you have none that is valid")
    bank.clock.pass_(hours=1, seconds=1)
    view = (await robot.submit(await pay(bank, 500), run_key="run-2")).json()
    maya.visitor = await bank.person("maya")
    assert (await maya.approve(review_of(view))).status_code == 303


async def test_removing_one_that_counts_takes_a_passkeys_word(bank: Bank) -> None:
    maya = await holder(bank, "maya")
    (passkey_id,), tomas = await maya.listed(), Holder(await bank.person("tomas"))
    assert (await tomas.send(REMOVE, passkey_id=passkey_id)).status_code == 404
    for key, status, left in ((Passkey(), 403, [passkey_id]), (maya.passkeys[0], 303, [])):
        asked = await asked_by(maya, REMOVE, passkey_id=passkey_id)
        assert (await maya.answer(asked, key.get(asked.options))).status_code == status
        assert await maya.listed() == left
    assert [kind for kind, _ in await bank.audited("passkey%")] == ["passkey_enrolled", "passkey_removed"]
    bank.clock.pass_(days=30)
    await sweep.delete_expired_rows(bank.service.ctx)
    assert await bank.service.db.read(lambda conn: find(conn, ChallengeRow)) == []


async def test_every_other_session_shows_a_notice(bank: Bank) -> None:
    changed = "changed in another session"
    elsewhere = Holder(await bank.person("maya"))
    maya, tomas = await holder(bank, "maya"), Holder(await bank.person("tomas"))
    for path in ("/", "/tasks", "/passkeys"):
        holds(await elsewhere.page(path), f"Your passkeys were {changed}")
        holds(await maya.page(path), without=[changed])
    holds(await tomas.page("/"), without=[changed])
    assert (await elsewhere.send("/passkeys/seen", back="/")).status_code == 303
    holds(await elsewhere.page("/"), without=[changed])
    third = Holder(await bank.person("maya"))  # what one session has read, the next has not
    holds(await third.page("/"), changed)


async def test_enrolling_in_a_stolen_session_is_noticed(bank: Bank) -> None:
    """The thief holds the very cookie of a fresh sign-in, and the form token with it; its person sees it."""
    maya = Holder(await bank.person("maya"))
    thief = Holder(replace(maya.visitor))
    assert (await thief.enrol(name="thief's key")).status_code == 303
    assert (await maya.visitor.get("/v1/reviews")).status_code == 401
    holds(await thief.page("/passkeys"), "thief&#39;s key")
    again = Holder(await bank.person("maya"))
    holds((await again.page("/")).split("changed in another session")[1], "thief&#39;s key")


BAD_KEYS: list[dict[str, Any]] = [
    {"origin": "https://localhost:8420"}, {"rp_id": "evil.example"}, {"flags": UP}, {"flags": UV}, {"kind": "ES384"},
    {"kind": "RS1024"}, {"client": {"crossOrigin": True}}, {"client": {"type": "webauthn.get"}},
    {"client": {"challenge": "AAAA"}},
]  # fmt: skip


async def test_what_does_not_hold_or_comes_too_late_is_not_enrolled(bank: Bank) -> None:
    maya, elsewhere, late = [Holder(await bank.person("maya")) for _ in range(3)]
    for bad in BAD_KEYS:
        assert (await maya.enrol(Passkey(**bad))).status_code == 403, bad
    for unreadable in ("", "   ", "x" * 61, "two\nlines", "\u202eevil"):
        assert (await maya.enrol(name=unreadable)).status_code == 400, unreadable
    asked, key = await asked_by(maya), Passkey()
    holds(refusal_text(await elsewhere.answer(asked, key.create(asked.options))), "another session")
    holds(refusal_text(await maya.answer(asked, key.create(asked.options))), "used before")
    first, second = await asked_by(maya), await asked_by(elsewhere)
    asked = await asked_by(late)
    bank.clock.pass_(seconds=299)
    assert await rows(bank) == []
    assert (await maya.answer(first, Passkey().create(first.options))).status_code == 303
    holds(refusal_text(await elsewhere.answer(second, Passkey().create(second.options))), "let it vouch")
    bank.clock.pass_(seconds=1)
    holds(refusal_text(await late.answer(asked, key.create(asked.options))), "took too long")
    assert len(await rows(bank)) == 1


async def test_a_bare_address_takes_none_and_says_so(tmp_path: Path, folder: Payments) -> None:
    async with running(tmp_path / "data", folder.path) as world:
        maya = Holder(await world.person("maya"))
        holds(await maya.page("/passkeys"), "Passkeys are bound to a domain name")
        holds(refusal_text(await maya.enrol()), "bound to a domain name")


# -- Step-up: a passkey signs exactly one vote, and nothing else passes for that


@pytest.fixture
async def maya(bank: Bank) -> Holder:
    return await holder(bank, "maya")


async def staged(bank: Bank, robot: Agent, *amounts: int, run_key: str = "run-1") -> Any:
    effects = [await pay(bank, amount) for amount in amounts or (500,)]
    return (await robot.submit(*effects, run_key=run_key)).json()


async def votes(bank: Bank) -> list[VoteRow]:
    return await bank.service.db.read(lambda conn: find(conn, VoteRow))


async def signed(
    who: Holder, asked: Ceremony, passkey: Passkey | None = None, **other: str
) -> httpx2.Response:
    """What is answered to a ceremony that a passkey has signed: the first one, unless another."""
    return await who.answer(asked, (passkey or who.passkeys[0]).get(asked.options), **other)


async def test_a_gate_needs_an_assertion(bank: Bank, robot: Agent, maya: Holder) -> None:
    view = await staged(bank, robot)
    path, form = f"/reviews/{review_of(view)}/votes", await maya.form(review_of(view))
    assert (await maya.send(path, **form)).status_code == 403, "F11: that she could step up is no step-up"
    assert await votes(bank) == []
    answer = await maya.approve(review_of(view))
    assert answer.status_code == 303, answer.text
    assert (await robot.see(view["txn"]))["effects"][0]["state"] == "released"
    (vote,) = await votes(bank)
    assert vote.step_up == "passkey"
    ((_, recorded),) = await bank.audited("vote_recorded")
    assert (recorded["view_digest"], recorded["passkey"]) == (vote.view_digest, (await maya.listed())[0])
    (kept,) = await bank.service.db.read(lambda conn: find(conn, AssertionRow))
    assert kept.vote_id == vote.vote_id
    assert set(kept.signed) == set(STEP_UP_MEMBERS)
    assert kept.signed["effect_digest"] == view["effects"][0]["effect_digest"]
    assert (kept.signed["txn_digest"], kept.signed["view_digest"]) == (view["txn_digest"], vote.view_digest)
    said = json.loads(kept.client_data)
    assert base64url_to_bytes(said["challenge"]) == step_up_challenge(kept.signed)
    assert kept.public_key == maya.passkeys[0].public_key


async def test_only_a_gate_with_step_up_needs_a_passkey(bank: Bank, robot: Agent) -> None:
    view, tomas = await staged(bank, robot), Holder(await bank.person("tomas"))
    page = await tomas.page(f"/reviews/{review_of(view)}")
    holds(page, "Your approval needs a passkey", 'href="/passkeys"')
    answer = await tomas.visitor.vote(view)
    assert (refusal(answer), "/passkeys" in answer.json()["detail"]) == ((403, "step_up_required"), True)
    assert (await tomas.visitor.vote(view, "deny", reason="no")).json()["state"] == "denied"
    await bank.policies(ANYBODY + gate("plain", "finance"))
    review_id = review_of(await staged(bank, robot, run_key="plain"))
    assert "step-up" not in await tomas.page(f"/reviews/{review_id}")
    form = await tomas.form(review_id)
    assert (await tomas.send(f"/reviews/{review_id}/votes", **form)).status_code == 303
    assert [vote.step_up for vote in await votes(bank)] == [None, None]


async def test_an_answer_to_anything_else_is_refused(bank: Bank, robot: Agent, maya: Holder) -> None:
    view = await staged(bank, robot, 500, 600)
    digests = [{f"{of}_digest": "0" * 64} for of in ("effect", "txn", "view")]
    for other in (*digests, {"rev": "2"}, {"nonce": "x" * 43}, {"nonce": ""}):
        answer = await signed(maya, await maya.begin(review_of(view)), **other)
        assert (answer.status_code, "repeat the confirmation" in refusal_text(answer)) == (403, True), other
    asked, other_review = await maya.begin(review_of(view)), review_of(view, 1)
    asked.action = f"/reviews/{other_review}/votes"
    answer = await signed(maya, asked, **await maya.form(other_review))
    assert "for another review" in refusal_text(answer)
    assert await votes(bank) == []


async def test_a_nonce_works_once_and_for_five_minutes(bank: Bank, robot: Agent, maya: Holder) -> None:
    """Also for a failed answer."""
    review_id = review_of(await staged(bank, robot, 500, 600))
    asked = await maya.begin(review_id)
    bank.clock.pass_(seconds=300)
    assert "took too long" in refusal_text(await signed(maya, asked))
    asked = await maya.begin(review_id)
    stranger = Passkey(credential_id=maya.passkeys[0].credential_id)
    assert (await signed(maya, asked, stranger)).status_code == 403
    assert "used before" in refusal_text(await signed(maya, asked))
    asked = await maya.begin(review_id)
    said = maya.passkeys[0].get(asked.options)
    bank.clock.pass_(seconds=295)
    assert (await maya.answer(asked, said)).status_code == 303
    assert "used before" in refusal_text(await maya.answer(asked, said))
    assert len(await votes(bank)) == 1


async def test_only_an_own_passkey_answers(bank: Bank, robot: Agent, maya: Holder) -> None:
    """Nor a passkey that was removed meanwhile."""
    review_id = review_of(await staged(bank, robot))
    elsewhere, tomas = Holder(await bank.person("maya"), maya.passkeys), await holder(bank, "tomas")
    asked = await maya.begin(review_id)
    assert "another session" in refusal_text(await signed(elsewhere, asked))
    asked = await maya.begin(review_id)
    assert "another person" in refusal_text(await signed(tomas, asked, maya.passkeys[0]))
    asked = await maya.begin(review_id)
    assert "not one of yours" in refusal_text(await signed(maya, asked, tomas.passkeys[0]))
    asked, (passkey_id,) = await maya.begin(review_id), await maya.listed()
    await bank.operator("passkey-revoke", {"passkey_id": passkey_id, "reason": "stolen"})
    assert "does not count" in refusal_text(await signed(maya, asked))
    assert await votes(bank) == []


LIES: dict[str, dict[str, Any]] = {
    "another origin": {"origin": "http://localhost:9999"},
    "an origin with a path": {"origin": LOCALHOST + "/"},
    "another RP id": {"rp_id": "evil.example"},
    "no one was present": {"flags": UV},
    "no one was verified": {"flags": UP},
    "asked from another site's frame": {"client": {"crossOrigin": True}},
    "asked under another site": {"client": {"topOrigin": "https://evil.example"}},
    "an enrolment's answer": {"client": {"type": "webauthn.create"}},
    "another challenge": {"client": {"challenge": "AAAA"}},
}


async def test_an_answer_that_does_not_hold_is_refused(bank: Bank, robot: Agent, maya: Holder) -> None:
    view = await staged(bank, robot)
    for lie, members in LIES.items():
        asked, usual = await maya.begin(review_of(view)), dict(vars(maya.passkeys[0]))
        vars(maya.passkeys[0]).update(members)
        answer = await signed(maya, asked)
        vars(maya.passkeys[0]).update({name: usual[name] for name in members})
        assert (answer.status_code, "Your vote was not counted" in refusal_text(answer)) == (403, True), lie
    odd = '{"id":"a","rawId":"a","type":"public-key"}'
    for said in ("", "[]", "{}", "null", '{"id": 1}', "x" * 20_000, odd):
        assert (await maya.answer(await maya.begin(review_of(view)), said)).status_code == 403, said[:20]
    assert await votes(bank) == []
    assert (await maya.approve(review_of(view))).status_code == 303


async def test_a_counter_that_went_back_is_refused(bank: Bank, robot: Agent, maya: Holder) -> None:
    view = await staged(bank, robot, 500, 600)
    assert (await maya.approve(review_of(view))).status_code == 303
    maya.passkeys[0].count -= 1
    assert "the operator was alerted" in refusal_text(await maya.approve(review_of(view, 1)))
    ((_, alarm),) = await bank.audited("passkey_counter_regressed")
    assert (alarm["was"], alarm["said"]) == (1, 1)
    assert len(await votes(bank)) == 1
    tomas = await holder(bank, "tomas", step=0)  # one without a counter may be used again
    other = await staged(bank, robot, 500, 600, run_key="other")
    for effect in (0, 1):
        assert (await tomas.approve(review_of(other, effect))).status_code == 303


async def test_a_revoked_passkey_takes_what_it_vouched_for(bank: Bank, robot: Agent, maya: Holder) -> None:
    """And nothing else: a thief may have enrolled more with the stolen one, and more with those."""
    (stolen,) = await maya.listed()
    thief = Holder(maya.visitor, list(maya.passkeys))
    for name in ("thief's", "second", "third"):
        assert (await thief.enrol(name=name)).status_code == 303
        thief.passkeys = [thief.passkeys[-1]]
    (third,) = (await maya.listed())[-1:]
    for passkey_id, left, vouched_for in ((third, 3, 0), (stolen, 0, 3)):
        voter = thief if passkey_id == third else Holder(maya.visitor, maya.passkeys)
        view = await staged(bank, robot, run_key=passkey_id)
        assert (await voter.approve(review_of(view))).status_code == 303
        done = await bank.operator("passkey-revoke", {"passkey_id": passkey_id, "reason": "stolen"})
        assert (done["votes"], len(done["vouched_for"])) == (1, vouched_for)
        assert len(await maya.listed()) == left
        tokens = (await robot.release(view)).json()["releases"]
        assert (await robot.redeem(tokens, passkey_id)).json().get("redeemed") is not True
        assert (await robot.see(view["txn"]))["state"] == "review"


async def test_votes_of_a_removed_passkey_count(bank: Bank, robot: Agent, maya: Holder) -> None:
    view = await staged(bank, robot)
    await maya.approve(review_of(view))
    (passkey_id,) = await maya.listed()
    asked = ceremony((await maya.send("/passkeys/removals", passkey_id=passkey_id)).text)
    assert (await signed(maya, asked)).status_code == 303
    assert (await robot.spend(await robot.see(view["txn"])))["redeemed"] is True
    (row,) = await bank.service.db.read(lambda conn: find(conn, PasskeyRow))
    assert row.removed_at is not None


async def test_who_is_in_no_gates_group_opens_it_with_their_passkey(bank: Bank, robot: Agent) -> None:
    """An emergency does not do without the passkey a gate asks for, so its form asks every signer for it."""
    bank.folder.people(ON_CALL).policies(CAREFUL + TWO + ALONE)
    await bank.activate()
    view = await staged(bank, robot)
    path, jonas = f"/reviews/{review_of(view)}", Holder(await bank.person("jonas"))
    act = (await jonas.page(f"{path}?full=1")).split('id="break-glass"')[1].split("</details>")[0]
    assert "You have none that is valid" in act and "<form" not in act
    assert (await jonas.enrol()).status_code == 303
    form = await jonas.form(review_of(view), "break-glass")
    act = (await jonas.page(path)).split('id="break-glass"')[1].split("<input")[0]
    assert f'action="{path}/step-up"' in act
    form |= {"verdict": "break_glass", "reason": "the site is down"}
    assert (await jonas.send(f"{path}/votes", **form)).status_code == 403
    asked = ceremony((await jonas.send(f"{path}/step-up", **form)).text)
    assert (await signed(jonas, asked)).status_code == 303
    assert (await robot.see(view["txn"]))["effects"][0]["decision"]["mode"] == "break_glass"
    (vote,) = await votes(bank)
    assert (vote.verdict, vote.step_up) == ("break_glass", "passkey")
