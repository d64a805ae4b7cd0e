"""Signing in by a one-time link, signing out, and the theme."""

from __future__ import annotations

import httpx2
import pytest

from tests.fakes.web_queue import Settings, World
from tests.integration.web.conftest import COOKIE, OWN_PAGE, SITE, Visitor, client_of

pytestmark = pytest.mark.anyio


async def test_opening_the_link_uses_nothing_up(world: World, stranger: httpx2.AsyncClient) -> None:
    token = world.link()
    for _ in range(3):
        answer = await stranger.get("/sign-in/dev", params={"token": token})
        assert answer.status_code == 200
        assert "set-cookie" not in answer.headers
    assert token in world.links


async def test_the_button_signs_in_once(world: World, stranger: httpx2.AsyncClient) -> None:
    token = world.link()
    first = await stranger.post("/sign-in/dev", data={"token": token}, headers=OWN_PAGE)
    assert (first.status_code, first.headers["location"]) == (303, "/")
    cookie = first.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=")
    assert {"HttpOnly", "Path=/", "SameSite=lax"} <= {part.strip() for part in cookie.split(";")}
    assert "Domain" not in cookie
    assert "Secure" not in cookie  # http on loopback; the name says dev
    assert (await stranger.get("/")).status_code == 200
    second = await stranger.post("/sign-in/dev", data={"token": token}, headers=OWN_PAGE)
    assert second.status_code == 400
    assert "You are not signed in" in second.text
    assert "set-cookie" not in second.headers


async def test_a_session_that_was_there_before_is_replaced(world: World, visitor: Visitor) -> None:
    """H3: a planted cookie is not carried over the sign-in."""
    answer = await visitor.client.post("/sign-in/dev", data={"token": world.link()}, headers=OWN_PAGE)
    assert visitor.cookie not in answer.headers["set-cookie"]


async def test_a_link_that_is_none_is_refused(stranger: httpx2.AsyncClient) -> None:
    for query in ("", "?token=", "?token=" + "x" * 201):
        assert (await stranger.get(f"/sign-in/dev{query}")).status_code == 400
    answer = await stranger.get("/sign-in/dev", params={"token": '"><script>1</script>'})
    assert "<script>1" not in answer.text


async def test_where_the_development_sign_in_is_off_there_is_no_way_in(world: World) -> None:
    async with client_of(world, Settings(SITE, dev_signin=False)) as client:
        token = world.link()
        assert (await client.get("/sign-in/dev", params={"token": token})).status_code == 403
        answer = await client.post("/sign-in/dev", data={"token": token}, headers=OWN_PAGE)
        assert answer.status_code == 403
        assert token in world.links
        assert "No way in is set up" in (await client.get("/sign-in")).text


NEXT = {
    "a page of ours": ("/reviews/rev_1", True),
    "another host": ("//evil.example", False),
    "another host by backslash": ("/\\evil.example", False),
    "a whole URL": ("https://evil.example/", False),
    "a script": ("javascript:alert(1)", False),
    "a line break": ("/a\nSet-Cookie: x", False),
}


async def test_only_a_path_of_ours_is_named_to_come_back_to(stranger: httpx2.AsyncClient) -> None:
    for what, (target, shown) in NEXT.items():
        text = (await stranger.get("/sign-in", params={"next": target})).text
        assert ("You came for" in text) == shown, what


async def test_signing_out_ends_the_session_everywhere(world: World, visitor: Visitor) -> None:
    forged = {"csrf_token": "x"}
    for path, form in (("/sign-out", forged), ("/theme", forged | {"theme": "dark", "back": "/"})):
        answer = await visitor.client.post(path, data=form, headers=OWN_PAGE)
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers
        assert visitor.cookie in world.sessions
    form = {"csrf_token": visitor.session.csrf}
    answer = await visitor.client.post("/sign-out", data=form, headers=OWN_PAGE)
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert visitor.cookie not in world.sessions


async def test_the_theme_is_kept_and_leads_back(visitor: Visitor) -> None:
    form = {"csrf_token": visitor.session.csrf, "theme": "dark"}
    for back in ("//evil.example", "https://evil.example", "/\\evil.example", "javascript:1"):
        answer = await visitor.client.post("/theme", data=form | {"back": back}, headers=OWN_PAGE)
        assert answer.headers["location"] == "/", back
    back = "/reviews/rev_hostile"
    answer = await visitor.client.post("/theme", data=form | {"back": back}, headers=OWN_PAGE)
    assert answer.headers["location"] == back
    assert '<html lang="en" data-theme="dark">' in (await visitor.get("/")).text
    odd = form | {"theme": '"><b>', "back": "/"}
    assert (await visitor.client.post("/theme", data=odd, headers=OWN_PAGE)).status_code == 400
    visitor.client.cookies.set("countersign_dev_theme", "x onload=1")
    assert "onload=1" not in (await visitor.get("/")).text
