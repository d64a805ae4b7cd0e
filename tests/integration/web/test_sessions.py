"""Signing in and out, the theme; static files by digest; and errors as a page for people, a problem for programs."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import AsyncIterator

import httpx2
import pytest
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from policy_service.channels.web.assets import load_assets, web_folder
from policy_service.channels.web.routes import install
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


STATIC = web_folder() / "static"
VENDOR = STATIC / "vendor"


async def test_a_page_names_files_that_are_there_and_may_be_kept(stranger: httpx2.AsyncClient) -> None:
    page = (await stranger.get("/sign-in")).text
    urls = re.findall(r'(?:src|href)="(/static/[^"#]+)', page)
    assert urls
    for url in urls:
        answer = await stranger.get(url)
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")


async def test_what_no_page_names_is_not_there(stranger: httpx2.AsyncClient) -> None:
    for path in (
        "/static/0000000000000000/keys.js",
        "/static/0/../../pyproject.toml",
        "/static/0/%2e%2e/%2e%2e/pyproject.toml",
        "/static/0/vendor/VENDORED.toml",
        "/static/0//etc/passwd",
    ):
        assert (await stranger.get(path)).status_code == 404, path


def test_integrity_and_digest_are_those_of_the_bytes() -> None:
    for name, asset in load_assets(STATIC).items():
        assert asset.body == (STATIC / name).read_bytes()
        assert hashlib.sha256(asset.body).hexdigest().startswith(asset.digest)


def test_third_party_files_are_what_was_recorded() -> None:
    record = tomllib.loads((VENDOR / "VENDORED.toml").read_text(encoding="utf-8"))
    recorded: dict[str, str] = {}
    for package in record["package"]:
        assert (VENDOR / package["licence_file"]).is_file()
        recorded |= {name: entry["sha256"] for name, entry in package["files"].items()}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.glob("*.js")}
    assert found == recorded


BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.fixture
async def client(world: World) -> AsyncIterator[httpx2.AsyncClient]:
    app = FastAPI(openapi_url=None)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return JSONResponse({"code": "not_found"}, error.status_code)

    async def fault(request: Request, error: Exception) -> Response:
        return JSONResponse({"code": "internal"}, 500)

    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(Exception, fault)

    @app.get("/breaks")
    async def breaks() -> None:
        raise RuntimeError("the secret reason")

    install(app, world, world, world.oversight, world, world, Settings(SITE), world, clock=world.clock)
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url=SITE) as client:
        yield client


async def test_somebody_lost_gets_a_page_and_a_program_its_problem(client: httpx2.AsyncClient) -> None:
    for path in ("/nowhere", "/reviews", "/reviews/a/b/c", "/%3Cscript%3E1%E2%80%AE"):
        answer = await client.get(path, headers=BROWSER)
        assert (answer.status_code, "There is nothing here" in answer.text) == (404, True)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "<script>1" not in answer.text and "\u202e" not in answer.text
    assert (await client.get("/nowhere")).json() == {"code": "not_found"}
    assert (await client.get("/v1/nowhere", headers=BROWSER)).json() == {"code": "not_found"}


async def test_a_wrong_method_keeps_its_status(client: httpx2.AsyncClient) -> None:
    answer = await client.put("/", headers=BROWSER)
    assert answer.status_code == 405
    assert "PUT does nothing here" in answer.text


async def test_a_fault_is_told_without_its_reason(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/breaks", headers=BROWSER)
    assert answer.status_code == 500
    holds(answer.text, "Nothing was released", without=["secret"])
