"""A failed start leaves nothing open; a stop answers waiting requests; a rotation of keys keeps old tokens."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import httpx2
import pytest

from countersign.contract import PrivateKey
from examples.local_service import free_port
from policy_service.app import Service, create_app
from policy_service.audit.log import highest_index
from policy_service.channels.admin.socket import run_admin_command
from policy_service.errors import StorageUnavailableError
from policy_service.settings import Settings, load_settings
from policy_service.storage.database import Database
from policy_service.tokens.epoch import read_mark
from policy_service.tokens.keys import NEXT, read_keys, rotate_keys
from tests.fakes.operated import Operated, environment
from tests.fakes.payments import Payments
from tests.fakes.world import Agent, fresh_data, running
from tests.integration.service.effects import refund
from tests.integration.service.test_operator import verb


@pytest.fixture
def settings(tmp_path: Path, folder: Payments) -> Settings:
    """Those of a deployment."""
    shutil.copytree(fresh_data(), tmp_path / "data")
    return load_settings(data_dir=tmp_path / "data", bundle_dir=folder.path)


def rename(data: Path, table: str, to: str) -> None:
    with closing(sqlite3.connect(data / "countersign.db")) as db:
        db.execute(f"ALTER TABLE {table} RENAME TO {to}")


async def test_a_failed_start_ends_what_it_had_started_and_can_be_repeated(settings: Settings) -> None:
    before = asyncio.all_tasks()
    app = create_app(settings)
    rename(settings.data_dir, "audit", "gone")  # the feed cannot begin
    service: Service = app.state.service
    with pytest.raises(StorageUnavailableError):
        async with app.router.lifespan_context(app):
            pytest.fail("it started")
    assert asyncio.all_tasks() == before
    assert not service.scheduler.ticking
    rename(settings.data_dir, "gone", "audit")
    async with running(settings.data_dir, settings.bundle_dir) as world:
        assert (await world.http.get("/readyz")).status_code == 200


async def test_a_service_that_ends_at_once_ends_what_it_had_started(settings: Settings) -> None:
    before = asyncio.all_tasks()
    app = create_app(settings)
    service: Service = app.state.service
    with pytest.raises(OSError, match="taken"):
        async with app.router.lifespan_context(app):
            raise OSError("the address is taken")
    assert asyncio.all_tasks() == before
    assert not service.scheduler.ticking
    assert service.feed.closing


# -- a stop of the whole service -------------------------------------------------------------------------------------


_WAIT_S = 30  # longer than the doors wait for what has not ended

_CALL = {"tool": "pay", "args": {"account": "acme", "amount": 500}}

_WAITING = ("countersign_long_polls 1.0", 'countersign_event_streams{channel="api"} 1.0')


@asynccontextmanager
async def waiting(url: str, key: PrivateKey, bundle: Payments) -> AsyncIterator[None]:
    """One who waits for people and one who reads the stream; afterwards the view is answered as it is, and the stream
    ends.
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


async def test_waiting_requests_are_answered_at_sigterm(settings: Settings, folder: Payments) -> None:
    data, key = settings.data_dir, PrivateKey.generate()
    run_admin_command(settings, "agent-enroll", {"name": "robot", "jwk": key.public.jwk()})
    with Operated(environment(data, folder.path, free_port())) as service:
        async with waiting(service.url, key, folder):
            ended = await asyncio.to_thread(service.stop, signal.SIGTERM)
    assert ended in {-signal.SIGTERM, 128 + signal.SIGTERM}
    with Database.open(f"sqlite:///{data / 'countersign.db'}") as db:
        mark = read_mark(data / "keys")
        assert mark is not None and mark.highest_index == await db.read(highest_index) > 0
    assert not (data / "admin.sock").exists()


# -- signing keys change without anybody noticing, or at once when one was in wrong hands ----------------------------


@pytest.mark.parametrize("compromised", [False, True])
async def test_old_tokens_end_only_with_a_compromised_key(tmp_path: Path, compromised: bool) -> None:
    """K: what the old key signed is spent after the restart; after a compromise only what is signed anew."""
    async with running(tmp_path / "data") as world:
        agent = await world.agent()
        view = (await agent.submit(await refund(world))).json()
        tokens = (await agent.release(view)).json()["releases"]
    rotate_keys(tmp_path / "data/keys", now=time.time() + 3_600, compromised=compromised)
    async with running(tmp_path / "data") as world:
        agent.http, agent.nonce = world.http, ""
        answer = await agent.redeem(tokens)
        assert answer.status_code == (400 if compromised else 200), answer.text
        if compromised:
            assert (await agent.spend(view))["redeemed"] is True


def test_the_command_refuses_an_early_rotation(tmp_path: Path) -> None:
    env = environment(tmp_path / "data", Payments(tmp_path / "bundle").path, free_port())
    verb(env, "init")
    code, said = verb(env, "issuer-keys")
    ring = read_keys(tmp_path / "data/keys")
    assert (code, said.strip()) == (0, ",".join(key.kid for key in ring.published))
    assert said.startswith(ring.current.public.kid) and len(ring.published) == 2
    os.utime(tmp_path / "data/keys" / NEXT, (time.time(),) * 2)  # a file system may have another clock
    code, said = verb(env, "rotate-keys")
    assert code == 1 and "verifiers keep key sets for a while" in said
    assert verb(env, "rotate-keys", "--compromised")[0] == 0
