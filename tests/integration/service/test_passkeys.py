"""Enrolling and removing passkeys: a stolen session alone changes nothing, and every change is told."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from policy_service.storage.core import find, table
from policy_service.storage.plumbing import AuditRow
from policy_service.storage.proof_tables import ChallengeRow, PasskeyRow
from policy_service.workflow.due import sweep
from tests.fakes.authenticator import UP, UV, Passkey
from tests.fakes.payments import ANYBODY, Payments, gate, person
from tests.fakes.world import World, running
from tests.integration.service.effects import pay
from tests.integration.service.stepping_up import LOCALHOST, Holder, ceremony, holder, review_of, told

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bank(tmp_path: Path, folder: Payments, database: dict[str, str]) -> AsyncIterator[World]:
    folder.policies(ANYBODY + gate("careful", "finance", step_up="passkey"))
    async with running(tmp_path / "data", folder.path, public_url=LOCALHOST, **database) as started:
        yield started


async def rows(bank: World) -> list[PasskeyRow]:
    return await bank.service.db.read(lambda conn: find(conn, PasskeyRow))


async def kinds(bank: World) -> list[tuple[str, dict[str, Any]]]:
    columns = table(AuditRow).c
    query = select(columns.kind, columns.body).where(columns.kind.like("passkey%")).order_by(columns.audit_id)
    found = await bank.service.db.read(lambda conn: list(conn.execute(query)))
    return [(kind, json.loads(body)) for kind, body in found]


async def test_a_first_passkey_is_trusted_on_first_use_after_a_fresh_sign_in(bank: World) -> None:
    await holder(bank, "maya")
    (row,) = await rows(bank)
    assert (row.name, row.vouched_by, row.counts_from) == ("blue key", None, row.created_at)
    ((kind, body),) = await kinds(bank)
    assert kind == "passkey_enrolled"
    assert (body["person"], body["key"], body["waits"]) == (person("maya"), row.key_digest, False)


async def test_a_session_that_is_not_fresh_enrols_nothing(bank: World) -> None:
    maya = Holder(await bank.person("maya"))
    bank.clock.pass_(seconds=300)
    answer = await maya.enrol()
    assert answer.status_code == 403
    assert "sign in again" in told(answer)
    assert "Sign in again to add one" in await maya.page("/passkeys")
    assert await rows(bank) == []


async def test_a_second_passkey_needs_the_word_of_the_first(bank: World) -> None:
    maya = await holder(bank, "maya")
    bank.clock.pass_(hours=0.5)  # no fresh sign-in: the passkey's word is enough, and nothing else is
    answer = await maya.send("/passkeys/additions", name="thief's key")
    asked = ceremony(answer.text)
    assert asked.kind == "get"
    thief = Passkey()
    assert "not one of yours" in told(await maya.answer(asked, thief.get(asked.options)))
    assert len(await rows(bank)) == 1
    cookie = maya.visitor.cookie
    assert (await maya.enrol(name="spare")).status_code == 303
    assert maya.visitor.cookie == cookie
    first, second = sorted(await rows(bank), key=lambda row: row.created_at)
    assert second.vouched_by == first.passkey_id
    assert second.counts_from == second.created_at


async def test_a_forged_word_of_the_first_is_none(bank: World) -> None:
    maya = await holder(bank, "maya")
    forger = Passkey(credential_id=maya.passkeys[0].credential_id)
    asked = ceremony((await maya.send("/passkeys/additions", name="thief's key")).text)
    assert (await maya.answer(asked, forger.get(asked.options))).status_code == 403
    asked = ceremony((await maya.send("/passkeys/additions", name="thief's key")).text)
    maya.passkeys[0].flags = UP
    assert (await maya.answer(asked, maya.passkeys[0].get(asked.options))).status_code == 403
    assert len(await rows(bank)) == 1


async def test_the_word_for_one_thing_is_none_for_another(bank: World) -> None:
    """A challenge made for a vote, an enrolment or a removal serves only that."""
    maya = await holder(bank, "maya")
    robot = await bank.agent("robot")
    view = (await robot.submit(await pay(bank, 500))).json()
    asked = await maya.begin(review_of(view))
    said = maya.passkeys[0].get(asked.options)
    answer = await maya.send("/passkeys/answers", nonce=asked.fields["nonce"], credential=said)
    assert "begun for something else" in told(answer)
    assert "Your passkeys are as they were" in told(answer)
    assert "vote was not counted" not in told(answer)
    asked = ceremony((await maya.send("/passkeys/additions", name="spare")).text)
    form = await maya.form(review_of(view))
    said = maya.passkeys[0].get(asked.options)
    answer = await maya.send(
        f"/reviews/{review_of(view)}/votes", **form, nonce=asked.fields["nonce"], credential=said
    )
    assert "begun for something else" in told(answer)
    assert "Your vote was not counted" in told(answer)


async def test_one_device_is_one_person(bank: World) -> None:
    """F3: neither the credential nor its key is ever enrolled for a second person."""
    maya = await holder(bank, "maya")
    tomas = Holder(await bank.person("tomas"))
    same = maya.passkeys[0]
    assert "enrolled before" in told(await tomas.enrol(same))
    other_name = Passkey(key=same.key)  # another credential id over the same key
    assert "enrolled before" in told(await tomas.enrol(other_name))
    other_key = Passkey(credential_id=same.credential_id)
    assert "enrolled before" in told(await tomas.enrol(other_key))
    assert [row.sub for row in await rows(bank)] == ["maya"]


async def test_a_removed_passkey_is_never_enrolled_again(bank: World) -> None:
    maya = await holder(bank, "maya")
    await bank.operator("passkeys-reset", {"person": person("maya"), "reason": "lost"})
    assert "enrolled before" in told(await maya.enrol(maya.passkeys[0]))
    tomas = Holder(await bank.person("tomas"))
    assert "enrolled before" in told(await tomas.enrol(maya.passkeys[0]))


async def test_one_in_place_of_lost_ones_waits(bank: World) -> None:
    robot = await bank.agent("robot")
    maya = await holder(bank, "maya")
    await bank.operator("passkeys-reset", {"person": person("maya"), "reason": "left it in a taxi"})
    maya.passkeys.clear()
    assert (await maya.enrol()).status_code == 303
    assert "Counts from" in await maya.page("/passkeys")
    view = (await robot.submit(await pay(bank, 500))).json()
    assert "you have none that counts" in await maya.page(f"/reviews/{review_of(view)}")
    bank.clock.pass_(hours=23)
    maya.visitor = await bank.person("maya")
    assert "you have none that counts" in await maya.page(f"/reviews/{review_of(view)}")
    bank.clock.pass_(hours=1, seconds=1)
    view = (await robot.submit(await pay(bank, 500), run_key="run-2")).json()
    maya.visitor = await bank.person("maya")
    assert (await maya.approve(review_of(view))).status_code == 303


async def test_who_is_warned_in_time_removes_it_by_a_fresh_sign_in(bank: World) -> None:
    maya = await holder(bank, "maya")
    await bank.operator("passkeys-reset", {"person": person("maya"), "reason": "lost"})
    thief = Holder(await bank.person("maya"))
    await thief.enrol(name="thief's key")
    (passkey_id,) = await thief.listed()
    warned = Holder(await bank.person("maya"))
    assert "thief&#39;s key" in await warned.page("/")
    assert (await warned.send("/passkeys/removals", passkey_id=passkey_id)).status_code == 303
    assert await warned.listed() == []
    assert maya is not thief


async def test_removing_one_that_counts_takes_a_passkeys_word(bank: World) -> None:
    maya = await holder(bank, "maya")
    (passkey_id,), tomas = await maya.listed(), Holder(await bank.person("tomas"))
    assert (await tomas.send("/passkeys/removals", passkey_id=passkey_id)).status_code == 404
    asked = ceremony((await maya.send("/passkeys/removals", passkey_id=passkey_id)).text)
    assert (await maya.answer(asked, Passkey().get(asked.options))).status_code == 403
    assert await maya.listed() == [passkey_id]
    asked = ceremony((await maya.send("/passkeys/removals", passkey_id=passkey_id)).text)
    assert (await maya.answer(asked, maya.passkeys[0].get(asked.options))).status_code == 303
    assert await maya.listed() == []
    assert [kind for kind, _ in await kinds(bank)] == ["passkey_enrolled", "passkey_removed"]
    bank.clock.pass_(days=30)
    await sweep.forget_what_is_over(bank.service.ctx)
    assert await bank.service.db.read(lambda conn: find(conn, ChallengeRow)) == []


async def test_every_other_session_of_the_person_is_told(bank: World) -> None:
    elsewhere = Holder(await bank.person("maya"))
    maya = await holder(bank, "maya")
    for path in ("/", "/tasks", "/passkeys"):
        assert "Your passkeys were changed in another session" in await elsewhere.page(path)
        assert "changed in another session" not in await maya.page(path)
    tomas = Holder(await bank.person("tomas"))
    assert "changed in another session" not in await tomas.page("/")
    assert (await elsewhere.send("/passkeys/seen", back="/")).status_code == 303
    assert "changed in another session" not in await elsewhere.page("/")
    third = Holder(await bank.person("maya"))  # what one session has read, the next has not
    assert "changed in another session" in await third.page("/")


async def test_whoever_enrols_in_a_stolen_session_signs_its_person_out_and_they_are_told(bank: World) -> None:
    """The thief holds the very cookie of a fresh sign-in, and the form token with it."""
    maya = Holder(await bank.person("maya"))
    thief = Holder(replace(maya.visitor))
    assert (await thief.enrol(name="thief's key")).status_code == 303
    assert (await maya.visitor.get("/v1/reviews")).status_code == 401
    assert "thief&#39;s key" in await thief.page("/passkeys")
    again = Holder(await bank.person("maya"))
    assert "thief&#39;s key" in (await again.page("/")).split("changed in another session")[1]


BAD_KEYS: dict[str, dict[str, Any]] = {
    "another origin": {"origin": "https://localhost:8420"},
    "another RP id": {"rp_id": "evil.example"},
    "nobody was verified": {"flags": UP},
    "nobody was present": {"flags": UV},
    "an algorithm that is not taken": {"kind": "ES384"},
    "a short RSA key": {"kind": "RS1024"},
    "a frame of another site": {"client": {"crossOrigin": True}},
    "an assertion's answer": {"client": {"type": "webauthn.get"}},
    "another challenge": {"client": {"challenge": "AAAA"}},
}


async def test_a_passkey_that_does_not_hold_is_not_enrolled(bank: World) -> None:
    maya = Holder(await bank.person("maya"))
    for name, bad in BAD_KEYS.items():
        assert (await maya.enrol(Passkey(**bad))).status_code == 403, name
    for unreadable in ("", "   ", "x" * 61, "two\nlines", "\u202eevil"):
        assert (await maya.enrol(name=unreadable)).status_code == 400, unreadable
    assert await rows(bank) == []


async def test_an_enrolment_is_answered_once_in_time_and_in_its_own_session(bank: World) -> None:
    maya = Holder(await bank.person("maya"))
    asked = ceremony((await maya.send("/passkeys/additions", name="one")).text)
    elsewhere = Holder(await bank.person("maya"))
    key = Passkey()
    assert "another session" in told(await elsewhere.answer(asked, key.create(asked.options)))
    assert "used before" in told(await maya.answer(asked, key.create(asked.options)))
    asked = ceremony((await maya.send("/passkeys/additions", name="one")).text)
    bank.clock.pass_(seconds=300)
    assert "took too long" in told(await maya.answer(asked, key.create(asked.options)))
    assert await rows(bank) == []


async def test_two_first_enrolments_at_once_end_in_one(bank: World) -> None:
    maya, elsewhere = Holder(await bank.person("maya")), Holder(await bank.person("maya"))
    first, second = [
        ceremony((await one.send("/passkeys/additions", name="mine")).text) for one in (maya, elsewhere)
    ]
    assert (await maya.answer(first, Passkey().create(first.options))).status_code == 303
    assert "let it vouch" in told(await elsewhere.answer(second, Passkey().create(second.options)))
    assert len(await rows(bank)) == 1


async def test_there_are_twenty_at_most(bank: World) -> None:
    maya = await holder(bank, "maya")
    for number in range(19):
        assert (await maya.enrol(name=f"key {number}")).status_code == 303
    assert "remove one first" in told(await maya.enrol(name="one more"))


async def test_a_bare_address_takes_none_and_says_so(tmp_path: Path, folder: Payments) -> None:
    async with running(tmp_path / "data", folder.path) as world:
        maya = Holder(await world.person("maya"))
        assert "Passkeys are bound to a name" in await maya.page("/passkeys")
        assert "bound to a name" in told(await maya.enrol())


async def test_what_an_operator_does_needs_to_be_about_somebody(bank: World) -> None:
    with pytest.raises(Exception, match="no passkey"):
        await bank.operator("passkeys-reset", {"person": person("maya"), "reason": "lost"})
    with pytest.raises(Exception, match="no passkey"):
        await bank.operator("passkey-revoke", {"passkey_id": "pk_x", "reason": "lost"})
    await holder(bank, "maya")
    (listed,) = await bank.operator("passkey-list", {})
    assert (listed["person"], listed["removed_at"]) == (person("maya"), None)
