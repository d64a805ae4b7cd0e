"""Back-channel logout: verified, applied once, and only to the provider's own people."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from policy_service.identity.issuer_keys import IssuerKeys, bounded_transport, issuer_client
from policy_service.identity.logout import LOGOUT_EVENT
from policy_service.identity.people import record_sign_in
from policy_service.identity.sessions import open_session
from policy_service.workflow.expiry import sweep
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
        client = issuer_client(bounded_transport(self.provider.transport))
        world.service.sign_in._keys["acme"] = IssuerKeys("acme", client=client, issuer=ISSUER)

    async def session(self, sub: str = "248", *, sid: str | None = "s-1", iss: str = ISSUER) -> str:
        """Somebody's browser."""
        trust = self.world.settings.providers[0].trust

        def begin(tx: Any) -> str:
            record_sign_in(tx, iss, sub, sub, email=None, groups=None)
            return open_session(tx, iss, sub, "oidc", max_s=3_600, trust=trust, sid=sid)

        return await self.world.service.db.write(begin)

    async def is_open(self, cookie: str) -> bool:
        return await self.world.service.sessions.find(cookie) is not None

    def token(self, **claims: Any) -> str:
        """A logout token, honest but for what is given; None leaves a claim out."""
        honest = {"sub": "248", "sid": "s-1", "jti": "j-1", "events": {LOGOUT_EVENT: {}}}
        self.provider.id_token = {"name": None, "nonce": None, "at_hash": None, **honest, **claims}
        self.provider.header = {"typ": "logout+jwt", **self.provider.header}
        return self.provider.token(None, "x")

    async def say(self, token: str, path: str = PATH) -> tuple[int, str]:
        """What the provider is answered."""
        answer = await self.world.http.post(path, data={"logout_token": token})
        assert answer.headers["cache-control"] == "no-store"
        return answer.status_code, answer.text


@pytest.fixture
async def over(tmp_path: Path) -> AsyncIterator[Over]:
    async with running(tmp_path / "data", SUPPORT_BUNDLE, providers=[ACME]) as world:
        yield Over(world)


REFUSED = (400, '{"error":"invalid_request"}')


async def test_the_provider_ends_its_session_and_no_other(over: Over) -> None:
    async def left(**claims: Any) -> list[bool]:
        """Which stay open: hers, another of hers, one of hers without a provider's id, and another person's."""
        cookies = [await over.session(sid=sid) for sid in ("s-1", "s-2", None)]
        cookies.append(await over.session("999", sid="s-9"))
        assert await over.say(over.token(**claims)) == (200, "")
        return [await over.is_open(one) for one in cookies]

    await over.session(iss="https://other.example")
    assert await left(jti="a") == [False, True, False, True]
    assert await left(jti="b", sid=None) == [False, False, False, True]
    assert await left(jti="c", sub=None) == [False, True, True, True]
    query = "SELECT revoked_at FROM sessions WHERE iss = 'https://other.example'"
    rows = await over.world.service.db.read(lambda conn: conn.exec_driver_sql(query).scalars().all())
    assert rows == [None], "another issuer's person of that name stays"


async def test_each_is_obeyed_once(over: Over) -> None:
    token = over.token()
    assert (await over.say(token))[0] == 200
    later = await over.session()
    assert await over.say(token) == REFUSED
    assert await over.is_open(later)
    assert (await over.say(over.token(jti="j-2")))[0] == 200
    assert not await over.is_open(later)
    over.world.clock.pass_(hours=1)
    assert await sweep.delete_expired_rows(over.world.service.ctx) == 2


FALSE: list[dict[str, Any]] = [
    {"events": None, "nonce": "n"}, {"nonce": "n"}, {"events": {"http://schemas.openid.net/event/other": {}}},
    {"events": {LOGOUT_EVENT: True}}, {"events": [LOGOUT_EVENT]}, {"aud": "another-client"}, {"aud": None},
    {"iss": "https://other.example"}, {"sub": None, "sid": None}, {"sub": 248}, {"sid": ["s-1"]},
    {"jti": None}, {"jti": ""}, {"exp": 10**11}, {"exp": None}, {"exp": 1_700_000_000}, {"iat": None},
    {"iat": 10**11},
]  # fmt: skip
HEADERS: list[dict[str, Any]] = [
    {"alg": "none"}, {"alg": "HS256"}, {"typ": "at+jwt"}, {"jwk": {"kty": "RSA"}},
]  # fmt: skip


async def test_an_invalid_logout_ends_nothing_and_gets_no_reason(over: Over) -> None:
    cookie, token, http = await over.session(), over.token(), over.world.http
    for claims in FALSE:
        assert await over.say(over.token(**claims)) == REFUSED, claims
    for header in HEADERS:  # what the provider did not sign, or signed as something else
        over.provider.header = header
        assert await over.say(over.token()) == REFUSED, header
    over.provider.header = {}
    over.provider.signed_with = "k2"
    assert await over.say(over.token()) == REFUSED
    assert await over.say(token, "/sign-in/unknown/backchannel-logout") == REFUSED
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    forms = (b"", f"logout_token={token}&logout_token={token}".encode(), b"logout_token=" + b"a" * 100_000)
    answers = [await http.post(PATH, content=raw, headers=form) for raw in (*forms, b"logout_token=\xff")]
    answers.append(await http.post(PATH, json={"logout_token": token}))
    assert {(answer.status_code, answer.text) for answer in answers} == {REFUSED}
    assert (await http.get(PATH)).status_code == 405
    assert await over.is_open(cookie)


async def test_logout_without_readable_keys_asks_for_a_retry(over: Over) -> None:
    cookie = await over.session()
    over.provider.down.add("/keys")
    assert (await over.say(over.token()))[0] == 503
    assert await over.is_open(cookie)
