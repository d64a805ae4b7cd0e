"""Static files, named by digest and kept for ever; and errors: a page for people, the problem for programs."""

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
from tests.fakes.web_queue import Settings, World
from tests.integration.web.conftest import SITE

pytestmark = pytest.mark.anyio

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
    assert "Nothing was released" in answer.text
    assert "secret" not in answer.text
