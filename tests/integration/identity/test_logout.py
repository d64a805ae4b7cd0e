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


SAID: dict[str, tuple[dict[str, Any], list[bool]]] = {
    # what it says; which stay open: hers, another of hers, one of hers nobody named, and somebody else's
    "this session of this person": ({}, [False, True, False, True]),
    "this person": ({"sid": None}, [False, False, False, True]),
    "this session": ({"sub": None}, [False, True, True, True]),
}


@pytest.mark.parametrize(("claims", "stay"), SAID.values(), ids=SAID)
async def test_the_provider_ends_its_session_and_no_other(
    over: Over, claims: dict[str, Any], stay: list[bool]
) -> None:
    cookies = [
        await over.session(),
        await over.session(sid="s-2"),
        await over.session(sid=None),
        await over.session("999", sid="s-9"),
    ]
    await over.session(iss="https://other.example")
    answer = await over.say(over.token(**claims))
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["cache-control"] == "no-store"
    assert [await over.is_open(one) for one in cookies] == stay
    query = "SELECT revoked_at FROM sessions WHERE iss = 'https://other.example'"
    rows = await over.world.service.db.read(lambda conn: conn.exec_driver_sql(query).scalars().all())
    assert rows == [None], "another issuer's person of that name stays"


async def test_each_is_obeyed_once(over: Over) -> None:
    token = over.token()
    assert (await over.say(token)).status_code == 200
    later = await over.session()
    again = await over.say(token)
    assert (again.status_code, again.json()) == (400, {"error": "invalid_request"})
    assert await over.is_open(later)
    assert (await over.say(over.token(jti="j-2"))).status_code == 200
    assert not await over.is_open(later)
    over.world.clock.pass_(hours=1)
    assert await sweep.forget_what_is_over(over.world.service.ctx) == 2


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


async def test_what_is_no_logout_of_ours_ends_nothing_and_is_told_no_reason(over: Over) -> None:
    cookie = await over.session()
    for what, claims in FALSE.items():
        answer = await over.say(over.token(**claims))
        assert (answer.status_code, answer.json()) == (400, {"error": "invalid_request"}), what
        assert await over.is_open(cookie), what


HEADERS = {
    "unsigned": {"alg": "none"},
    "signed with what is public": {"alg": "HS256"},
    "of a type that is none": {"typ": "at+jwt"},
    "with a key of its own": {"jwk": {"kty": "RSA"}},
}


async def test_what_the_provider_did_not_sign_ends_nothing(over: Over) -> None:
    cookie = await over.session()
    for what, header in HEADERS.items():
        over.provider.header = header
        assert (await over.say(over.token())).status_code == 400, what
    over.provider.header = {}
    over.provider.signed_with = "k2"
    assert (await over.say(over.token())).status_code == 400
    assert await over.is_open(cookie)


async def test_while_the_keys_cannot_be_read_the_provider_is_told_to_come_again(over: Over) -> None:
    cookie = await over.session()
    over.provider.down.add("/keys")
    assert (await over.say(over.token())).status_code == 503
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
