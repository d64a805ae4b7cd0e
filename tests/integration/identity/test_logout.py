"""Signing out at the provider signs out here: its word, verified, obeyed once, about its own people only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from policy_service.identity.issuer_keys import IssuerKeys, bounded, issuer_client
from policy_service.identity.logout import EVENT
from policy_service.identity.people import remember
from policy_service.identity.sessions import open_session
from policy_service.workflow.due import sweep
from tests.fakes.identity_provider import CLIENT, ISSUER, SECRET, Provider
from tests.fakes.world import SUPPORT_BUNDLE, World, running

pytestmark = pytest.mark.anyio

ACME = {"name": "acme", "title": "Acme", "issuer": ISSUER, "client_id": CLIENT, "client_secret": SECRET}
PATH = "/sign-in/acme/backchannel-logout"


class Over:
    """The deployment, its provider, and what the provider says."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.provider = Provider(int(world.clock().timestamp()))
        client = issuer_client(bounded(self.provider.transport))
        world.service.sign_in._keys["acme"] = IssuerKeys("acme", client=client, issuer=ISSUER)

    async def session(self, sub: str = "248", *, sid: str | None = "s-1", iss: str = ISSUER) -> str:
        """Somebody's browser."""
        trust = self.world.settings.providers[0].trust

        def begin(tx: Any) -> str:
            remember(tx, iss, sub, sub, email=None, groups=None)
            return open_session(tx, iss, sub, "oidc", max_s=3_600, trust=trust, sid=sid)

        return await self.world.service.db.write(begin)

    async def is_open(self, cookie: str) -> bool:
        return await self.world.service.sessions.find(cookie) is not None

    def token(self, **claims: Any) -> str:
        """A logout token, honest but for what is given; None leaves a claim out."""
        self.provider.id_token = {
            "name": None,
            "nonce": None,
            "at_hash": None,
            "sub": "248",
            "sid": "s-1",
            "jti": "j-1",
            "events": {EVENT: {}},
            **claims,
        }
        self.provider.header = {"typ": "logout+jwt", **self.provider.header}
        return self.provider.token(None, "x")

    async def say(self, token: str, path: str = PATH, **headers: str) -> httpx2.Response:
        return await self.world.http.post(path, data={"logout_token": token}, headers=headers)


@pytest.fixture
async def over(tmp_path: Path) -> AsyncIterator[Over]:
    async with running(tmp_path / "data", SUPPORT_BUNDLE, providers=[ACME]) as world:
        yield Over(world)


async def test_the_provider_ends_its_session_and_no_other(over: Over) -> None:
    this, other, another = (
        await over.session(),
        await over.session(sid="s-2"),
        await over.session("999", sid="s-9"),
    )
    answer = await over.say(over.token())
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["cache-control"] == "no-store"
    assert [await over.is_open(one) for one in (this, other, another)] == [False, True, True]


async def test_without_a_session_id_all_of_that_person_end(over: Over) -> None:
    mine, mine_too, theirs = await over.session(), await over.session(sid=None), await over.session("999")
    assert (await over.say(over.token(sid=None))).status_code == 200
    assert [await over.is_open(one) for one in (mine, mine_too, theirs)] == [False, False, True]


async def test_a_session_id_alone_is_enough(over: Over) -> None:
    this, other = await over.session(), await over.session(sid="s-2")
    assert (await over.say(over.token(sub=None))).status_code == 200
    assert [await over.is_open(one) for one in (this, other)] == [False, True]


async def test_a_session_nobody_named_ends_with_its_person(over: Over) -> None:
    unnamed, theirs = await over.session(sid=None), await over.session("999", sid=None)
    assert (await over.say(over.token())).status_code == 200
    assert [await over.is_open(one) for one in (unnamed, theirs)] == [False, True]


async def test_another_issuers_person_of_that_name_stays(over: Over) -> None:
    elsewhere = await over.session(iss="https://other.example")
    assert (await over.say(over.token())).status_code == 200
    sessions = await over.world.service.db.read(
        lambda conn: conn.exec_driver_sql("SELECT revoked_at FROM sessions").scalars().all()
    )
    assert sessions == [None]
    assert elsewhere


async def test_each_is_obeyed_once(over: Over) -> None:
    token = over.token()
    assert (await over.say(token)).status_code == 200
    later = await over.session()
    again = await over.say(token)
    assert (again.status_code, again.json()) == (400, {"error": "invalid_request"})
    assert await over.is_open(later)
    assert (await over.say(over.token(jti="j-2"))).status_code == 200
    assert not await over.is_open(later)


async def test_what_is_known_of_it_is_forgotten_when_it_holds_no_more(over: Over) -> None:
    await over.say(over.token())
    over.world.clock.pass_(hours=1)
    assert await sweep.forget_what_is_over(over.world.service.ctx) == 1


FALSE: dict[str, dict[str, Any]] = {
    "an ID token": {"events": None, "nonce": "n"},
    "a logout with a nonce": {"nonce": "n"},
    "of another event": {"events": {"http://schemas.openid.net/event/other": {}}},
    "an event that is no object": {"events": {EVENT: True}},
    "events that are a list": {"events": [EVENT]},
    "for somebody else": {"aud": "another-client"},
    "for nobody": {"aud": None},
    "of another issuer": {"iss": "https://other.example"},
    "of nobody and no session": {"sub": None, "sid": None},
    "of a person that is no text": {"sub": 248},
    "of a session that is no text": {"sid": ["s-1"]},
    "without a name of its own": {"jti": None},
    "with an empty name": {"jti": ""},
    "that never ends": {"exp": 10**11},
    "without an end": {"exp": None},
    "that has ended": {"exp": 1_700_000_000},
    "without a beginning": {"iat": None},
    "of tomorrow": {"iat": 10**11},
}


@pytest.mark.parametrize("claims", FALSE.values(), ids=FALSE)
async def test_what_is_no_logout_of_ours_ends_nothing_and_is_told_no_reason(
    over: Over, claims: dict[str, Any]
) -> None:
    cookie = await over.session()
    answer = await over.say(over.token(**claims))
    assert (answer.status_code, answer.json()) == (400, {"error": "invalid_request"})
    assert await over.is_open(cookie)


HEADERS = {
    "unsigned": {"alg": "none"},
    "signed with what is public": {"alg": "HS256"},
    "of a type that is none": {"typ": "at+jwt"},
    "with a key of its own": {"jwk": {"kty": "RSA"}},
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
async def test_what_the_provider_did_not_sign_ends_nothing(over: Over, header: dict[str, Any]) -> None:
    cookie = await over.session()
    over.provider.header = header
    assert (await over.say(over.token())).status_code == 400
    assert await over.is_open(cookie)


async def test_another_key_ends_nothing(over: Over) -> None:
    cookie = await over.session()
    over.provider.signed_with = "k2"
    assert (await over.say(over.token())).status_code == 400
    assert await over.is_open(cookie)


async def test_a_form_that_is_none_is_refused_in_the_same_words(over: Over) -> None:
    cookie, token, http = await over.session(), over.token(), over.world.http
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    answers = [
        await over.say(token, "/sign-in/nobody/backchannel-logout"),
        await http.post(PATH, json={"logout_token": token}),
        await http.post(PATH, content=b"", headers=form),
        await http.post(PATH, content=f"logout_token={token}&logout_token={token}".encode(), headers=form),
        await http.post(PATH, content=b"logout_token=" + b"a" * 100_000, headers=form),
        await http.post(PATH, content=b"logout_token=\xff", headers=form),
    ]
    assert {answer.status_code for answer in answers} == {400}
    assert {answer.text for answer in answers} == {'{"error":"invalid_request"}'}
    assert (await http.get(PATH)).status_code == 405
    assert await over.is_open(cookie)


async def test_while_the_keys_cannot_be_read_the_provider_is_told_to_come_again(over: Over) -> None:
    cookie = await over.session()
    over.provider.down.add("/keys")
    assert (await over.say(over.token())).status_code == 503
    assert await over.is_open(cookie)
