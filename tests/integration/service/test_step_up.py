"""Step-up: a passkey signs exactly one vote, and nothing else passes for that."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import select
from webauthn.helpers import base64url_to_bytes

from policy_service.identity.webauthn import STEP_UP_MEMBERS, step_up_challenge
from policy_service.storage.core import find, table
from policy_service.storage.system_tables import AssertionRow, AuditRow, PasskeyRow
from policy_service.storage.tables import VoteRow
from tests.fakes.authenticator import UP, UV, Passkey
from tests.fakes.log_check import faults_of_log
from tests.fakes.payments import ANYBODY, Payments, gate
from tests.fakes.world import Agent, World, running
from tests.integration.service.effects import pay
from tests.integration.service.stepping_up import (
    LOCALHOST,
    Ceremony,
    Holder,
    ceremony,
    holder,
    review_of,
    told,
)
from tests.integration.service.together.test_break_glass import ALONE, TWO
from tests.integration.service.together.test_break_glass import PEOPLE as ON_CALL

pytestmark = pytest.mark.anyio

CAREFUL = ANYBODY + gate("careful", "finance", step_up="passkey")


@pytest.fixture
async def bank(tmp_path: Path, folder: Payments, database: dict[str, str]) -> AsyncIterator[World]:
    folder.policies(CAREFUL)
    async with running(tmp_path / "data", folder.path, public_url=LOCALHOST, **database) as started:
        yield started
        assert await started.service.db.read(faults_of_log) == []


@pytest.fixture
async def maya(bank: World) -> Holder:
    return await holder(bank, "maya")


async def staged(bank: World, robot: Agent, *amounts: int, run_key: str = "run-1") -> dict[str, Any]:
    effects = [await pay(bank, amount) for amount in amounts or (500,)]
    view: dict[str, Any] = (await robot.submit(*effects, run_key=run_key)).json()
    return view


async def votes(bank: World) -> list[VoteRow]:
    return await bank.service.db.read(lambda conn: find(conn, VoteRow))


async def lines(bank: World, kind: str) -> list[dict[str, Any]]:
    query = select(table(AuditRow).c.body).where(table(AuditRow).c.kind == kind)
    return [json.loads(body) for body in await bank.service.db.read(lambda conn: list(conn.scalars(query)))]


async def signed(
    who: Holder, asked: Ceremony, passkey: Passkey | None = None, **other: str
) -> httpx2.Response:
    """What is answered to a ceremony that a passkey has signed: the first one, unless another."""
    return await who.answer(asked, (passkey or who.passkeys[0]).get(asked.options), **other)


async def test_a_passkey_must_be_used_where_a_gate_asks_for_one_and_what_it_signed_is_kept(
    bank: World, robot: Agent, maya: Holder
) -> None:
    view = await staged(bank, robot)
    path, form = f"/reviews/{review_of(view)}/votes", await maya.form(review_of(view))
    assert (await maya.send(path, **form)).status_code == 403, "F11: that she could step up is no step-up"
    assert await votes(bank) == []
    answer = await maya.approve(review_of(view))
    assert answer.status_code == 303, answer.text
    assert (await robot.see(view["txn"]))["effects"][0]["state"] == "released"
    (vote,) = await votes(bank)
    assert vote.step_up == "passkey"
    (recorded,) = await lines(bank, "vote_recorded")
    assert recorded["view_digest"] == vote.view_digest
    assert recorded["passkey"] == (await maya.listed())[0]
    (kept,) = await bank.service.db.read(lambda conn: find(conn, AssertionRow))
    assert kept.vote_id == vote.vote_id
    assert set(kept.signed) == set(STEP_UP_MEMBERS)
    assert kept.signed["effect_digest"] == view["effects"][0]["effect_digest"]
    assert kept.signed["txn_digest"] == view["txn_digest"]
    assert kept.signed["view_digest"] == vote.view_digest
    said = json.loads(kept.client_data)
    assert base64url_to_bytes(said["challenge"]) == step_up_challenge(kept.signed)
    assert kept.public_key == maya.passkeys[0].public_key


async def test_without_a_passkey_the_page_leads_to_enrolment_and_a_vote_is_refused(
    bank: World, robot: Agent
) -> None:
    view = await staged(bank, robot)
    tomas = Holder(await bank.person("tomas"))
    page = await tomas.page(f"/reviews/{review_of(view)}")
    assert "Your approval needs a passkey" in page
    assert 'href="/passkeys"' in page
    answer = await tomas.visitor.vote(view)
    assert (answer.status_code, answer.json()["code"]) == (403, "step_up_required")
    assert "/passkeys" in answer.json()["detail"]
    assert (await tomas.visitor.vote(view, "deny", reason="no")).json()["state"] == "denied"


async def test_a_gate_that_asks_for_none_gets_none(
    bank: World, folder: Payments, robot: Agent, maya: Holder
) -> None:
    folder.policies(ANYBODY + gate("plain", "finance"))
    await bank.activate()
    path = f"/reviews/{review_of(await staged(bank, robot))}"
    assert "step-up" not in await maya.page(path)
    assert (await maya.send(f"{path}/votes", **await maya.form(path.split("/")[2]))).status_code == 303
    (vote,) = await votes(bank)
    assert vote.step_up is None


async def test_an_answer_to_anything_else_is_refused(bank: World, robot: Agent, maya: Holder) -> None:
    view = await staged(bank, robot, 500, 600)
    for other in (
        {"effect_digest": "0" * 64},
        {"txn_digest": "0" * 64},
        {"view_digest": "0" * 64},
        {"rev": "2"},
        {"nonce": "x" * 43},
        {"nonce": ""},
    ):
        answer = await signed(maya, await maya.begin(review_of(view)), **other)
        assert (answer.status_code, "repeat the confirmation" in told(answer)) == (403, True), other
    asked, other_review = await maya.begin(review_of(view)), review_of(view, 1)
    asked.action = f"/reviews/{other_review}/votes"
    answer = await signed(maya, asked, **await maya.form(other_review))
    assert "for another review" in told(answer)
    assert await votes(bank) == []


async def test_a_nonce_works_once_and_for_five_minutes(bank: World, robot: Agent, maya: Holder) -> None:
    """Also for a failed answer."""
    review_id = review_of(await staged(bank, robot, 500, 600))
    asked = await maya.begin(review_id)
    bank.clock.pass_(seconds=300)
    assert "took too long" in told(await signed(maya, asked))
    asked = await maya.begin(review_id)
    stranger = Passkey(credential_id=maya.passkeys[0].credential_id)
    assert (await signed(maya, asked, stranger)).status_code == 403
    assert "used before" in told(await signed(maya, asked))
    asked = await maya.begin(review_id)
    said = maya.passkeys[0].get(asked.options)
    bank.clock.pass_(seconds=295)
    assert (await maya.answer(asked, said)).status_code == 303
    assert "used before" in told(await maya.answer(asked, said))
    assert len(await votes(bank)) == 1


async def test_nobody_else_answers(bank: World, robot: Agent, maya: Holder) -> None:
    """Nor a passkey that was removed meanwhile."""
    review_id = review_of(await staged(bank, robot))
    elsewhere, tomas = Holder(await bank.person("maya"), maya.passkeys), await holder(bank, "tomas")
    asked = await maya.begin(review_id)
    assert "another session" in told(await signed(elsewhere, asked))
    asked = await maya.begin(review_id)
    assert "another person" in told(await signed(tomas, asked, maya.passkeys[0]))
    asked = await maya.begin(review_id)
    assert "not one of yours" in told(await signed(maya, asked, tomas.passkeys[0]))
    asked, (passkey_id,) = await maya.begin(review_id), await maya.listed()
    await bank.operator("passkey-revoke", {"passkey_id": passkey_id, "reason": "stolen"})
    assert "does not count" in told(await signed(maya, asked))
    assert await votes(bank) == []


LIES: dict[str, dict[str, Any]] = {
    "another origin": {"origin": "http://localhost:9999"},
    "an origin with a path": {"origin": LOCALHOST + "/"},
    "another RP id": {"rp_id": "evil.example"},
    "nobody was present": {"flags": UV},
    "nobody was verified": {"flags": UP},
    "asked from another site's frame": {"client": {"crossOrigin": True}},
    "asked under another site": {"client": {"topOrigin": "https://evil.example"}},
    "an enrolment's answer": {"client": {"type": "webauthn.create"}},
    "another challenge": {"client": {"challenge": "AAAA"}},
}


async def test_an_answer_that_does_not_hold_is_refused(bank: World, robot: Agent, maya: Holder) -> None:
    view = await staged(bank, robot)
    for lie, members in LIES.items():
        asked, usual = await maya.begin(review_of(view)), dict(vars(maya.passkeys[0]))
        vars(maya.passkeys[0]).update(members)
        answer = await signed(maya, asked)
        vars(maya.passkeys[0]).update({name: usual[name] for name in members})
        assert (answer.status_code, "Your vote was not counted" in told(answer)) == (403, True), lie
    odd = '{"id":"a","rawId":"a","type":"public-key"}'
    for said in ("", "[]", "{}", "null", '{"id": 1}', "x" * 20_000, odd):
        assert (await maya.answer(await maya.begin(review_of(view)), said)).status_code == 403, said[:20]
    assert await votes(bank) == []
    assert (await maya.approve(review_of(view))).status_code == 303


async def test_a_counter_that_went_back_is_refused_and_told(bank: World, robot: Agent, maya: Holder) -> None:
    view = await staged(bank, robot, 500, 600)
    assert (await maya.approve(review_of(view))).status_code == 303
    maya.passkeys[0].count -= 1
    assert "the operator was alerted" in told(await maya.approve(review_of(view, 1)))
    (alarm,) = await lines(bank, "passkey_counter_regressed")
    assert (alarm["was"], alarm["said"]) == (1, 1)
    assert len(await votes(bank)) == 1
    tomas = await holder(bank, "tomas", step=0)  # one without a counter may be used again
    other = await staged(bank, robot, 500, 600, run_key="other")
    for effect in (0, 1):
        assert (await tomas.approve(review_of(other, effect))).status_code == 303


async def test_what_a_revoked_passkey_vouched_for_goes_with_it(
    bank: World, robot: Agent, maya: Holder
) -> None:
    """And nothing else. Whoever held the stolen one could enrol their own by its word, and that by another's."""
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


async def test_votes_of_a_passkey_its_person_removed_stand(bank: World, robot: Agent, maya: Holder) -> None:
    view = await staged(bank, robot)
    await maya.approve(review_of(view))
    (passkey_id,) = await maya.listed()
    asked = ceremony((await maya.send("/passkeys/removals", passkey_id=passkey_id)).text)
    assert (await signed(maya, asked)).status_code == 303
    assert (await robot.spend(await robot.see(view["txn"])))["redeemed"] is True
    (row,) = await bank.service.db.read(lambda conn: find(conn, PasskeyRow))
    assert row.removed_at is not None


async def test_who_is_in_no_gates_group_opens_it_with_their_passkey(
    bank: World, folder: Payments, robot: Agent
) -> None:
    """An emergency does not do without the passkey a gate asks for, so its form asks for it, whoever signs."""
    folder.people(ON_CALL).policies(CAREFUL + TWO + ALONE)
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
