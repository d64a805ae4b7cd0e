"""The web channel over ASGI, before a small working world."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx2
import pytest

from tests.fakes.web_queue import LiveSession, Settings, World, create_app, sample_world

SITE = "http://127.0.0.1:8765"
OWN_PAGE = {"Origin": SITE, "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "navigate"}
COOKIE = "countersign_dev"


def client_of(world: World, settings: Settings, **cookies: str) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=create_app(world, settings))
    return httpx2.AsyncClient(transport=transport, base_url=settings.public_url, cookies=cookies)


def hidden_fields(html: str, verdict: str) -> dict[str, str]:
    """The fields of the form behind the approve or the deny disclosure."""
    form = html.split(f'id="{verdict}"')[1].split("</form>")[0]
    fields = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form)
    assert {name for name, _ in fields} == {
        "csrf_token",
        "rev",
        "effect_digest",
        "txn_digest",
        "view_digest",
        "view_parts",
    }
    return dict(fields) | {"verdict": verdict}


@dataclass
class Visitor:
    """Somebody with a browser and a session."""

    client: httpx2.AsyncClient
    session: LiveSession
    cookie: str

    async def get(self, path: str) -> httpx2.Response:
        return await self.client.get(path)

    async def form(self, review_id: str, verdict: str) -> dict[str, str]:
        return hidden_fields((await self.get(f"/reviews/{review_id}?full=1")).text, verdict)

    async def vote(self, review_id: str, fields: dict[str, str], **headers: str) -> httpx2.Response:
        return await self.client.post(f"/reviews/{review_id}/votes", data=fields, headers=OWN_PAGE | headers)


@pytest.fixture
def world() -> World:
    return sample_world()


@pytest.fixture
async def visitor(world: World) -> AsyncIterator[Visitor]:
    cookie, session = world.signed_in()
    async with client_of(world, Settings(SITE), **{COOKIE: cookie}) as client:
        yield Visitor(client, session, cookie)


@pytest.fixture
async def stranger(world: World) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(world, Settings(SITE)) as client:
        yield client
