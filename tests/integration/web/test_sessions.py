"""Sign-in and sign-out, the theme, static files, and errors for people and for programs."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

import httpx2
import pytest
from starlette.responses import Response

from policy_service.channels.web.rendering import load_assets, web_folder
from tests.fakes.pages import holds
from tests.fakes.payments import Payments
from tests.fakes.world import World, running
from tests.integration.service.stepping_up import Holder
from tests.integration.service.together.bank import Bank
from tests.integration.web.conftest import OWN_PAGE

pytestmark = pytest.mark.anyio


def parts(answer: httpx2.Response) -> set[str]:
    return {part.strip() for part in answer.headers["set-cookie"].split(";")}


async def link(world: World) -> str:
    """A development link of Maya's."""
    made = await world.operator("sign-in-link", {"sub": "maya", "name": "Maya"})
    return str(made["url"].partition("token=")[2])


async def test_opening_the_link_does_not_use_it_and_signing_in_replaces_the_session(bank: Bank) -> None:
    token, http = await link(bank), bank.http
    for _ in range(2):
        answer = await http.get("/sign-in/dev", params={"token": token})
        assert (answer.status_code, "set-cookie" in answer.headers) == (200, False)
    # H3: a planted cookie is not carried over the sign-in
    old = {"Cookie": f"countersign_dev={bank.maya.cookie}"}
    first = await http.post("/sign-in/dev", data={"token": token}, headers=OWN_PAGE | old)
    assert (first.status_code, first.headers["location"]) == (303, "/")
    assert first.headers["set-cookie"].startswith("countersign_dev=")
    assert {"HttpOnly", "Path=/", "SameSite=lax"} <= parts(first)
    # http on loopback; the name says dev
    holds(first.headers["set-cookie"], without=["Domain", "Secure", bank.maya.cookie])
    assert (await http.get("/")).status_code == 200
    http.cookies.clear()
    assert (await bank.maya.get("/")).status_code == 303, "the old session goes on"
    second = await http.post("/sign-in/dev", data={"token": token}, headers=OWN_PAGE)
    assert (second.status_code, "set-cookie" in second.headers) == (400, False)
    holds(second.text, "You are not signed in")
    for query in ("", "?token=", "?token=" + "x" * 201):
        assert (await http.get(f"/sign-in/dev{query}")).status_code == 400
    answer = await http.get("/sign-in/dev", params={"token": '"><script>1</script>'})
    holds(answer.text, without=["<script>1"])


async def test_https_sites_have_host_cookies_and_no_development_links(tmp_path: Path) -> None:
    site, bundle = "https://sign.example", Payments(tmp_path / "bundle").path
    async with running(tmp_path / "https", bundle, public_url=site, dev_signin=False) as world:
        answer = await world.http.get("/sign-in")
        world.app.state.pages.set_session(answered := Response(), "secret")
    holds(answer.headers["strict-transport-security"], "max-age=63072000")
    cookie = answered.headers["set-cookie"]
    attributes = ("Secure", "HttpOnly", "Path=/", "SameSite=lax")
    holds(cookie, "__Host-countersign=secret;", *attributes, without=["Domain"])
    async with running(tmp_path / "data", bundle, dev_signin=False) as world:
        assert (await world.http.get("/sign-in/dev", params={"token": "x"})).status_code == 403
        answer = await world.http.post("/sign-in/dev", data={"token": "x"}, headers=OWN_PAGE)
        assert answer.status_code == 403
        holds((await world.http.get("/sign-in")).text, "No sign-in is configured")


ELSEWHERE = ["//evil.example", "/\\evil.example", "https://evil.example/", "javascript:alert(1)", "/a\nX: y"]


async def test_only_a_path_of_ours_is_named_to_come_back_to(bank: Bank) -> None:
    for target in ("/reviews/rev_1", *ELSEWHERE):
        text = (await bank.http.get("/sign-in", params={"next": target})).text
        assert ("You requested" in text) == (target not in ELSEWHERE), target


async def test_signing_out_ends_this_session_or_all_of_this_person(bank: Bank) -> None:
    for form, stays in (({"everywhere": "yes"}, False), ({}, True)):
        maya, other = [Holder(await bank.person("maya")) for _ in range(2)]
        for path, more in (("/sign-out", form), ("/theme", {"theme": "dark", "back": "/"})):
            answer = await maya.send(path, **more | {"csrf_token": "x"})
            assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
        assert (await maya.visitor.get("/")).status_code == 200
        cookies = [one.visitor.cookie for one in (maya, other)]
        answer = await maya.send("/sign-out", **form)
        assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
        assert "Max-Age=0" in answer.headers["set-cookie"]
        left = [await bank.service.sessions.find(cookie) is not None for cookie in cookies]
        assert left == [False, stays]
    await bank.sign_in()


async def test_the_theme_is_kept_and_leads_back(bank: Bank) -> None:
    maya, cookie = Holder(bank.maya), f"countersign_dev={bank.maya.cookie}"
    for back in (*ELSEWHERE, "/reviews/rev_1"):
        answer = await maya.send("/theme", theme="dark", back=back)
        assert answer.headers["location"] == ("/" if back in ELSEWHERE else back), back
    kept = answer.headers["set-cookie"].split(";")[0]
    themes = [(kept, '<html lang="en" data-theme="dark">'), ("countersign_dev_theme=x onload=1", "<html")]
    for theme, drawn in themes:
        text = (await bank.http.get("/", headers={"Cookie": f"{cookie}; {theme}"})).text
        holds(text, drawn, without=["onload=1"])
    assert (await maya.send("/theme", theme='"><b>', back="/")).status_code == 400
    bank.http.cookies.clear()


STATIC = web_folder() / "static"
VENDOR = STATIC / "vendor"


async def test_a_page_names_files_that_are_there_and_may_be_kept(bank: Bank) -> None:
    page = (await bank.http.get("/sign-in")).text
    urls = re.findall(r'(?:src|href)="(/static/[^"#]+)', page)
    assert urls
    for url in urls:
        answer = await bank.http.get(url)
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")


async def test_unknown_files_are_not_found(bank: Bank) -> None:
    for path in (
        "/static/0000000000000000/keys.js",
        "/static/0/../../pyproject.toml",
        "/static/0/%2e%2e/%2e%2e/pyproject.toml",
        "/static/0/vendor/VENDORED.toml",
        "/static/0//etc/passwd",
    ):
        assert (await bank.http.get(path)).status_code == 404, path


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


async def test_errors_are_pages_for_people_and_problems_for_programs(bank: Bank) -> None:
    for path in ("/nowhere", "/reviews", "/reviews/a/b/c", "/%3Cscript%3E1%E2%80%AE"):
        answer = await bank.http.get(path, headers=BROWSER)
        assert (answer.status_code, "Not found" in answer.text) == (404, True)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "<script>1" not in answer.text and "\u202e" not in answer.text
    assert (await bank.http.get("/nowhere")).json()["code"] == "not_found"
    assert (await bank.http.get("/v1/nowhere", headers=BROWSER)).json()["code"] == "not_found"
    answer = await bank.http.put("/", headers=BROWSER)
    assert (answer.status_code, "PUT is not supported by this page" in answer.text) == (405, True)
