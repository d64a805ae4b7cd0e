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
from policy_service.storage.system_tables import AuditRow, ChallengeRow, PasskeyRow
from policy_service.workflow.expiry import sweep
from tests.fakes.authenticator import UP, UV, Passkey
from tests.fakes.pages import holds
from tests.fakes.payments import ANYBODY, Payments, gate, person
from tests.fakes.world import World, running
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

pytestmark = pytest.mark.anyio

ADD, REMOVE = "/passkeys/additions", "/passkeys/removals"


@pytest.fixture
async def bank(tmp_path: Path, folder: Payments, database: dict[str, str]) -> AsyncIterator[World]:
    folder.policies(ANYBODY + gate("careful", "finance", step_up="passkey"))
    async with running(tmp_path / "data", folder.path, public_url=LOCALHOST, **database) as started:
        yield started


async def rows(bank: World) -> list[PasskeyRow]:
    found = await bank.service.db.read(lambda conn: find(conn, PasskeyRow))
    return sorted(found, key=lambda row: row.created_at)


async def logged(bank: World) -> list[tuple[str, dict[str, Any]]]:
    columns = table(AuditRow).c
    query = select(columns.kind, columns.body).where(columns.kind.like("passkey%")).order_by(columns.audit_id)
    found = await bank.service.db.read(lambda conn: list(conn.execute(query)))
    return [(kind, json.loads(body)) for kind, body in found]


async def asked_by(one: Holder, path: str = ADD, **fields: str) -> Ceremony:
    """What the page asks whoever wants to add (or remove) a passkey."""
    return ceremony((await one.send(path, **(fields or {"name": "spare"}))).text)


async def lost(bank: World) -> None:
    await bank.operator("passkeys-reset", {"person": person("maya"), "reason": "left it in a taxi"})


async def test_a_first_passkey_is_trusted_after_a_fresh_sign_in_only(bank: World) -> None:
    maya = Holder(await bank.person("maya"))
    bank.clock.pass_(seconds=300)
    answer = await maya.enrol()
    assert answer.status_code == 403
    holds(told(answer), "sign in again")
    holds(await maya.page("/passkeys"), "Sign in again to add one")
    assert await rows(bank) == []
    for verb, args in (
        ("passkeys-reset", {"person": person("maya")}),
        ("passkey-revoke", {"passkey_id": "pk_x"}),
    ):
        with pytest.raises(Exception, match="no passkey"):
            await bank.operator(verb, args | {"reason": "lost"})
    await holder(bank, "maya")
    (row,) = await rows(bank)
    assert (row.name, row.vouched_by, row.counts_from) == ("blue key", None, row.created_at)
    ((kind, body),) = await logged(bank)
    assert (kind, body["person"], body["key"]) == ("passkey_enrolled", person("maya"), row.key_digest)
    assert body["waits"] is False
    (listed,) = await bank.operator("passkey-list", {})
    assert (listed["person"], listed["removed_at"]) == (person("maya"), None)


async def test_a_second_passkey_needs_the_word_of_the_first(bank: World) -> None:
    maya = await holder(bank, "maya")
    bank.clock.pass_(hours=0.5)  # no fresh sign-in: the passkey's word is enough, and nothing else is
    asked = await asked_by(maya, name="thief's key")
    assert asked.kind == "get"
    assert "not one of yours" in told(await maya.answer(asked, Passkey().get(asked.options)))
    forger = Passkey(credential_id=maya.passkeys[0].credential_id)
    careless = replace(maya.passkeys[0], flags=UP)
    for key in (forger, careless):
        asked = await asked_by(maya)
        assert (await maya.answer(asked, key.get(asked.options))).status_code == 403
    assert len(await rows(bank)) == 1
    cookie = maya.visitor.cookie
    assert (await maya.enrol(name="spare")).status_code == 303
    assert maya.visitor.cookie == cookie
    first, second = await rows(bank)
    assert (second.vouched_by, second.counts_from) == (first.passkey_id, second.created_at)
    for number in range(18):
        assert (await maya.enrol(name=f"key {number}")).status_code == 303
    holds(told(await maya.enrol(name="one more")), "remove one first")  # there are twenty at most


async def test_the_word_for_one_thing_is_none_for_another(bank: World) -> None:
    """A challenge made for a vote, an enrolment or a removal serves only that."""
    maya, robot = await holder(bank, "maya"), await bank.agent("robot")
    review = review_of((await robot.submit(await pay(bank, 500))).json())
    asked = await maya.begin(review)
    said = {"nonce": asked.fields["nonce"], "credential": maya.passkeys[0].get(asked.options)}
    answer = told(await maya.send("/passkeys/answers", **said))
    wrong = "begun for something else"
    holds(answer, wrong, "Your passkeys were not changed", without=["vote was not counted"])
    asked = await asked_by(maya)
    said = {"nonce": asked.fields["nonce"], "credential": maya.passkeys[0].get(asked.options)}
    answer = told(await maya.send(f"/reviews/{review}/votes", **await maya.form(review), **said))
    holds(answer, wrong, "Your vote was not counted")


async def test_one_device_is_one_person(bank: World) -> None:
    """F3: neither the credential nor its key is ever enrolled for a second person, nor again once removed."""
    maya, tomas = await holder(bank, "maya"), Holder(await bank.person("tomas"))
    same = maya.passkeys[0]
    for key in (same, Passkey(key=same.key), Passkey(credential_id=same.credential_id)):
        holds(told(await tomas.enrol(key)), "enrolled before")
    assert [row.sub for row in await rows(bank)] == ["maya"]
    await lost(bank)
    for somebody in (maya, tomas):
        holds(told(await somebody.enrol(same)), "enrolled before")


async def test_one_in_place_of_lost_ones_waits(bank: World) -> None:
    robot, maya = await bank.agent("robot"), await holder(bank, "maya")
    await lost(bank)
    maya.passkeys.clear()
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


async def test_who_is_warned_in_time_removes_it_by_a_fresh_sign_in(bank: World) -> None:
    await holder(bank, "maya")
    await lost(bank)
    thief = Holder(await bank.person("maya"))
    await thief.enrol(name="thief's key")
    (passkey_id,) = await thief.listed()
    warned = Holder(await bank.person("maya"))
    holds(await warned.page("/"), "thief&#39;s key")
    assert (await warned.send(REMOVE, passkey_id=passkey_id)).status_code == 303
    assert await warned.listed() == []


async def test_removing_one_that_counts_takes_a_passkeys_word(bank: World) -> None:
    maya = await holder(bank, "maya")
    (passkey_id,), tomas = await maya.listed(), Holder(await bank.person("tomas"))
    assert (await tomas.send(REMOVE, passkey_id=passkey_id)).status_code == 404
    for key, status, left in ((Passkey(), 403, [passkey_id]), (maya.passkeys[0], 303, [])):
        asked = await asked_by(maya, REMOVE, passkey_id=passkey_id)
        assert (await maya.answer(asked, key.get(asked.options))).status_code == status
        assert await maya.listed() == left
    assert [kind for kind, _ in await logged(bank)] == ["passkey_enrolled", "passkey_removed"]
    bank.clock.pass_(days=30)
    await sweep.delete_expired_rows(bank.service.ctx)
    assert await bank.service.db.read(lambda conn: find(conn, ChallengeRow)) == []


async def test_every_other_session_of_the_person_is_told(bank: World) -> None:
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


async def test_whoever_enrols_in_a_stolen_session_signs_its_person_out(bank: World) -> None:
    """The thief holds the very cookie of a fresh sign-in, and the form token with it; its person is told."""
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


async def test_what_does_not_hold_or_comes_too_late_is_not_enrolled(bank: World) -> None:
    maya, elsewhere, late = [Holder(await bank.person("maya")) for _ in range(3)]
    for bad in BAD_KEYS:
        assert (await maya.enrol(Passkey(**bad))).status_code == 403, bad
    for unreadable in ("", "   ", "x" * 61, "two\nlines", "\u202eevil"):
        assert (await maya.enrol(name=unreadable)).status_code == 400, unreadable
    asked, key = await asked_by(maya), Passkey()
    holds(told(await elsewhere.answer(asked, key.create(asked.options))), "another session")
    holds(told(await maya.answer(asked, key.create(asked.options))), "used before")
    first, second = await asked_by(maya), await asked_by(elsewhere)
    asked = await asked_by(late)
    bank.clock.pass_(seconds=299)
    assert await rows(bank) == []
    assert (await maya.answer(first, Passkey().create(first.options))).status_code == 303
    holds(told(await elsewhere.answer(second, Passkey().create(second.options))), "let it vouch")
    bank.clock.pass_(seconds=1)
    holds(told(await late.answer(asked, key.create(asked.options))), "took too long")
    assert len(await rows(bank)) == 1


async def test_a_bare_address_takes_none_and_says_so(tmp_path: Path, folder: Payments) -> None:
    async with running(tmp_path / "data", folder.path) as world:
        maya = Holder(await world.person("maya"))
        holds(await maya.page("/passkeys"), "Passkeys are bound to a domain name")
        holds(told(await maya.enrol()), "bound to a domain name")
