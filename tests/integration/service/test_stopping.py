"""A stop of the whole service: who waits is answered at once, streams end, and the log is finished."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx2
import pytest
import uvicorn

from countersign.contract import PrivateKey
from policy_service.app import create_app
from policy_service.audit.log import highest_index
from policy_service.channels.operator.serving import open_doors
from policy_service.channels.operator.socket import run_verb
from policy_service.settings import load_settings
from policy_service.storage.database import Database
from policy_service.tokens.epoch import read_mark
from tests.fakes.operated import Operated, environment, free_port
from tests.fakes.payments import Payments
from tests.fakes.world import Agent, fresh_data

pytestmark = pytest.mark.anyio

_WAIT_S = 30  # longer than the doors wait for what has not ended

_CALL = {"tool": "pay", "args": {"account": "acme", "amount": 500}}

_WAITING = ("countersign_long_polls 1.0", 'countersign_event_streams{channel="api"} 1.0')


@pytest.fixture
def payments(tmp_path: Path) -> Payments:
    """The bundle of a deployment that has its data and is not running."""
    shutil.copytree(fresh_data(), tmp_path / "data")
    return Payments(tmp_path / "bundle")


def enrolled(data: Path) -> PrivateKey:
    key = PrivateKey.generate()
    run_verb(load_settings(data_dir=data), "agent-enroll", {"name": "robot", "jwk": key.public.jwk()})
    return key


@asynccontextmanager
async def waiting(url: str, key: PrivateKey, bundle: Payments) -> AsyncIterator[None]:
    """One who waits for people and one who reads the stream; afterwards the view is told as it is, and the stream comes
    to its end.
    """
    async with httpx2.AsyncClient(base_url=url, timeout=_WAIT_S) as http:
        robot = Agent("robot", key, http)
        call = _CALL | {"tool_digest": bundle.load().manifests["pay"].digest}
        txn = (await robot.submit(call)).json()["txn"]
        wait = robot.send("GET", f"/v1/transactions/{txn}", headers={"Prefer": f"wait={_WAIT_S}"})
        asked = [asyncio.create_task(wait), asyncio.create_task(robot.send("GET", "/v1/events"))]
        async with asyncio.timeout(_WAIT_S):
            while not set(_WAITING) <= set((await http.get("/metrics")).text.splitlines()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        yield
        view, stream = await asyncio.gather(*asked)
    assert (view.status_code, view.json()["state"]) == (200, "review")
    assert stream.status_code == 200 and stream.text.startswith(": open")


async def test_who_waits_is_answered_when_the_service_is_asked_to_stop(
    tmp_path: Path, payments: Payments
) -> None:
    data, key = tmp_path / "data", enrolled(tmp_path / "data")
    with Operated(environment(data, payments.path, free_port())) as service:
        async with waiting(service.url, key, payments):
            ended = await asyncio.to_thread(service.stop, signal.SIGTERM)
    assert ended in {-signal.SIGTERM, 128 + signal.SIGTERM}
    with Database.open(f"sqlite:///{data / 'countersign.db'}") as db:
        mark = read_mark(data / "keys")
        assert mark is not None and mark.highest_index == await db.read(highest_index) > 0
    assert not (data / "admin.sock").exists()


async def test_who_waits_is_answered_when_the_doors_are_closed_from_within(
    tmp_path: Path, payments: Payments
) -> None:
    """As `policy-service dev` closes them."""
    data, key, port = tmp_path / "data", enrolled(tmp_path / "data"), free_port()
    app = create_app(load_settings(data_dir=data, bundle_dir=payments.path, port=port))
    config = uvicorn.Config(app, port=port, log_config=None, lifespan="off", timeout_graceful_shutdown=5)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(open_doors(app, config, app.state.service.ctx, signals=False))
        async with waiting(f"http://127.0.0.1:{port}", key, payments):
            await stack.aclose()
