"""Signing in by a one-time link, signing out, and the theme."""

from __future__ import annotations

import httpx2
import pytest

from tests.fakes.pages import holds
from tests.fakes.web_queue import Settings, World
from tests.integration.web.conftest import COOKIE, OWN_PAGE, SITE, Visitor, client_of

pytestmark = pytest.mark.anyio


def parts(answer: httpx2.Response) -> set[str]:
    return {part.strip() for part in answer.headers["set-cookie"].split(";")}


async def test_opening_the_link_uses_nothing_up(world: World, stranger: httpx2.AsyncClient) -> None:
    token = world.link()
    for _ in range(2):
        answer = await stranger.get("/sign-in/dev", params={"token": token})
        assert (answer.status_code, "set-cookie" in answer.headers) == (200, False)
    assert token in world.links
    first = await stranger.post("/sign-in/dev", data={"token": token}, headers=OWN_PAGE)  # the button does
    assert (first.status_code, first.headers["location"]) == (303, "/")
    assert first.headers["set-cookie"].startswith(f"{COOKIE}=")
    assert {"HttpOnly", "Path=/", "SameSite=lax"} <= parts(first)
    holds(first.headers["set-cookie"], without=["Domain", "Secure"])  # http on loopback; the name says dev
    assert (await stranger.get("/")).status_code == 200
    second = await stranger.post("/sign-in/dev", data={"token": token}, headers=OWN_PAGE)
    assert (second.status_code, "set-cookie" in second.headers) == (400, False)
    holds(second.text, "You are not signed in")


async def test_a_session_that_was_there_before_is_replaced(world: World, visitor: Visitor) -> None:
    """H3: a planted cookie is not carried over the sign-in."""
    answer = await visitor.client.post("/sign-in/dev", data={"token": world.link()}, headers=OWN_PAGE)
    assert visitor.cookie not in answer.headers["set-cookie"]


async def test_https_sites_have_host_cookies_and_transport_security(world: World) -> None:
    site = "https://sign.example"
    async with client_of(world, Settings(site)) as client:
        answer = await client.post("/sign-in/dev", data={"token": world.link()}, headers={"Origin": site})
    assert answer.status_code == 303
    assert answer.headers["set-cookie"].startswith("__Host-countersign=")
    assert {"Secure", "HttpOnly", "Path=/", "SameSite=lax"} <= parts(answer)
    holds(answer.headers["set-cookie"], without=["Domain"])
    holds(answer.headers["strict-transport-security"], "max-age=63072000")


async def test_a_link_that_is_none_opens_nothing(world: World, stranger: httpx2.AsyncClient) -> None:
    for query in ("", "?token=", "?token=" + "x" * 201):
        assert (await stranger.get(f"/sign-in/dev{query}")).status_code == 400
    answer = await stranger.get("/sign-in/dev", params={"token": '"><script>1</script>'})
    holds(answer.text, without=["<script>1"])
    async with client_of(world, Settings(SITE, dev_signin=False)) as client:
        token = world.link()
        assert (await client.get("/sign-in/dev", params={"token": token})).status_code == 403
        answer = await client.post("/sign-in/dev", data={"token": token}, headers=OWN_PAGE)
        assert (answer.status_code, token in world.links) == (403, True)
        holds((await client.get("/sign-in")).text, "No way in is set up")


ELSEWHERE = ["//evil.example", "/\\evil.example", "https://evil.example/", "javascript:alert(1)", "/a\nX: y"]


async def test_only_a_path_of_ours_is_named_to_come_back_to(stranger: httpx2.AsyncClient) -> None:
    for target in ("/reviews/rev_1", *ELSEWHERE):
        text = (await stranger.get("/sign-in", params={"next": target})).text
        assert ("You came for" in text) == (target not in ELSEWHERE), target


async def test_signing_out_ends_the_session_everywhere(world: World, visitor: Visitor) -> None:
    forged = {"csrf_token": "x"}
    for path, form in (("/sign-out", forged), ("/theme", forged | {"theme": "dark", "back": "/"})):
        answer = await visitor.client.post(path, data=form, headers=OWN_PAGE)
        assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
        assert visitor.cookie in world.sessions
    form = {"csrf_token": visitor.session.csrf}
    answer = await visitor.client.post("/sign-out", data=form, headers=OWN_PAGE)
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert visitor.cookie not in world.sessions


async def test_the_theme_is_kept_and_leads_back(visitor: Visitor) -> None:
    form = {"csrf_token": visitor.session.csrf, "theme": "dark"}
    for back in (*ELSEWHERE, "/reviews/rev_hostile"):
        answer = await visitor.client.post("/theme", data=form | {"back": back}, headers=OWN_PAGE)
        assert answer.headers["location"] == ("/" if back in ELSEWHERE else back), back
    assert '<html lang="en" data-theme="dark">' in (await visitor.get("/")).text
    odd = form | {"theme": '"><b>', "back": "/"}
    assert (await visitor.client.post("/theme", data=odd, headers=OWN_PAGE)).status_code == 400
    visitor.client.cookies.set("countersign_dev_theme", "x onload=1")
    assert "onload=1" not in (await visitor.get("/")).text
