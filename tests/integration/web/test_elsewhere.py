"""Errors outside the queue's own routes: a page for people, the API's own answer for programs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import pytest
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from policy_service.channels.web.routes import install
from tests.fakes.web_queue import Settings, World
from tests.integration.web.conftest import SITE

pytestmark = pytest.mark.anyio

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
