"""Several replicas over one PostgreSQL: events reach readers of each, and killed replicas lose and repeat nothing."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import select
from typer.testing import CliRunner

from countersign.contract import PrivateKey
from examples.local_service import free_port
from policy_service.audit.log import highest_index
from policy_service.cli import app
from policy_service.storage.core import table
from policy_service.storage.database import Database
from policy_service.storage.system_tables import AuditRow
from policy_service.storage.tables import RedemptionRow
from policy_service.tokens.epoch import read_mark
from tests.fakes.log_check import faults_of_log
from tests.fakes.operated import Operated, environment
from tests.fakes.patience import until
from tests.fakes.payments import Payments
from tests.fakes.streaming import events, served
from tests.fakes.vault import at
from tests.fakes.world import URL, Agent, Clock, World
from tests.integration.service.effects import pay

LEASE_S = 2

HOST = {"Host": URL.removeprefix("http://")}


@pytest.fixture
def engine() -> str:
    """Only a database server is shared."""
    return "postgresql"


# -- in one process --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turned", [False, True], ids=["one way", "the other way"])
async def test_a_replica_publishes_events_of_the_other(replicas: list[World], turned: bool) -> None:
    """Who waits there, and who goes on with a stream that broke off here."""
    here, there = replicas[::-1] if turned else replicas
    robot, maya = await here.agent("robot"), await there.person("maya")
    view = (await robot.submit(await pay(here, 500))).json()
    waiting = asyncio.create_task(robot.see(view["txn"], wait=30))
    await until(lambda: here.service.feed._waiting)
    assert (await maya.vote(view)).status_code == 200
    assert (await waiting)["state"] == "ready"
    cookie = {"Cookie": maya.headers()["Cookie"]}
    async with served(here) as port, events(port, cookie) as stream:
        first = (await at(there, robot).submit(await pay(there, 500), run_key="first")).json()
        await stream.until(first["txn"])
        last = stream.last_id
    second = (await at(here, robot).submit(await pay(here, 500), run_key="second")).json()
    async with served(there) as port, events(port, cookie | {"Last-Event-ID": last}) as stream:
        assert int((await stream.event())["id"]) == int(last) + 1
        await stream.until(second["txn"])


async def test_the_log_is_dense_and_an_operators_verb_holds_on_every_replica(replicas: list[World]) -> None:
    robot, rows, settings = await replicas[0].agent("robot"), table(AuditRow).c, replicas[0].settings
    for n in range(8):
        door = replicas[n % 2]
        await at(door, robot).submit(await pay(door), run_key=f"run-{n}", attempt_id=f"a-{n}")
    for world in replicas:
        await world.service.sequencer.number()
    query = select(rows.idx).order_by(rows.audit_id)
    found = await replicas[0].service.db.read(lambda conn: list(conn.scalars(query)))
    assert found == list(range(1, len(found) + 1))
    for world in replicas:
        await world.service.feed.refresh()
        await world.service.mark.write()
        mark = read_mark(world.settings.key_dir)
        assert mark is not None and mark.highest_index == len(found)
    url = settings.database_url.replace("+psycopg", "")
    env = {"COUNTERSIGN_DATABASE_URL": url, "COUNTERSIGN_DATA_DIR": str(settings.data_dir)}
    for verb, status in (("freeze agent robot --reason x", 403), ("unfreeze agent robot", 201)):
        result = await asyncio.to_thread(CliRunner().invoke, app, verb.split(), env=env)
        assert result.exit_code == 0, result.output
        for n, world in enumerate(replicas):
            answer = await at(world, robot).submit(await pay(world), run_key=f"{status}-{n}")
            assert answer.status_code == status


# -- in processes of their own ---------------------------------------------------------------------------------------


def two_replicas(home: Path, bundle: Path, url: str) -> list[dict[str, str]]:
    """The settings of two as operators run them: a data folder each with a copy of the keys, one database."""
    more = {"DATABASE_URL": url.replace("+psycopg", ""), "PUBLIC_URL": URL, "LEASE_S": str(LEASE_S)}
    named = {f"COUNTERSIGN_{name}": value for name, value in more.items()}
    data = [home / "replica-0", home / "replica-1"]
    envs = [environment(folder, bundle, free_port(), **named) for folder in data]
    made = CliRunner().invoke(app, ["init"], env=envs[0])
    assert made.exit_code == 0, made.output
    shutil.copytree(data[0] / "keys", data[1] / "keys")  # with the epoch mark in it
    return envs


class Crowd:
    """Agents of replicas that come and go: what is not answered is sent again to the next one."""

    def __init__(self, doors: list[httpx2.AsyncClient], key: PrivateKey, digest: str) -> None:
        self._doors = itertools.cycle(doors)
        self._key, self._digest = key, digest
        self.receipts: defaultdict[str, set[str]] = defaultdict(set)  # attempts by effect
        self.settled: set[str] = set()
        self.broken = 0  # answers that never came, or that said to ask again

    async def _insist(self, send: Callable[[Agent], Awaitable[httpx2.Response]]) -> httpx2.Response:
        """Send the same again, door by door, until one of the replicas answers."""
        while True:
            try:
                answer = await send(Agent("robot", self._key, next(self._doors), Clock()))
            except httpx2.TransportError:
                await asyncio.sleep(0.05)
            else:
                if answer.status_code < 500:
                    return answer
                assert answer.status_code == 503, answer.text
            self.broken += 1

    async def pays(self, first: int) -> None:
        """One run after the other; two contend for each, and the winner reports."""
        call = {"tool": "pay", "tool_digest": self._digest, "args": {"account": "acme", "amount": 10}}
        for n in itertools.count(first, 1_000):
            run = f"run-{n}"
            answer = await self._insist(lambda r, run=run: r.submit(call, run_key=run, idempotency_key=run))
            assert answer.status_code in {200, 201}, answer.text
            view = answer.json()
            await asyncio.gather(*(self._contends(view, f"attempt-{n}-{side}") for side in "ab"))

    async def _contends(self, view: dict[str, Any], attempt: str) -> None:
        released = await self._insist(lambda r: r.release(view))
        tokens: list[str] = released.json()["releases"] if released.status_code == 200 else []
        if not tokens:
            return  # the other was faster
        answer = await self._insist(lambda r: r.redeem(tokens, attempt))
        if answer.status_code != 200:
            assert answer.json()["code"] in {"already_redeemed", "not_ready"}, answer.text
            return
        effect_id = view["effects"][0]["effect_id"]
        self.receipts[effect_id].add(attempt)
        fired = {"effect_id": effect_id, "outcome": "fired"}
        settled = await self._insist(lambda r: r.report(attempt, fired))
        assert settled.json()["state"] == "settled", settled.text
        self.settled.add(view["txn"])


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_killed_replicas_lose_nothing(
    tmp_path: Path, folder: Payments, database: dict[str, str]
) -> None:
    """Design section 8, and I-3: nothing acknowledged is lost, and no effect is redeemed twice."""
    envs = two_replicas(tmp_path, folder.path, database["database_url"])
    pem, digest, kills = tmp_path / "robot.pem", folder.load().manifests["pay"].digest, 12
    enrolled = CliRunner().invoke(app, ["agent", "enroll", "robot", "--key-out", str(pem)], env=envs[0])
    assert enrolled.exit_code == 0, enrolled.output
    key = PrivateKey.from_pem(pem.read_bytes())
    async with AsyncExitStack() as stack:
        up = await asyncio.gather(*(asyncio.to_thread(Operated(env).__enter__) for env in envs))
        clients = [httpx2.AsyncClient(base_url=one.url, headers=HOST, timeout=30) for one in up]
        doors = [await stack.enter_async_context(client) for client in clients]  # past the load balancer
        crowd = Crowd(doors, key, digest)
        working = [asyncio.create_task(crowd.pays(n)) for n in range(8)]
        try:
            for turn in range(kills):
                before = len(crowd.settled)
                while len(crowd.settled) < before + 30 and not any(t.done() for t in working):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(up[turn % 2].kill)
                up[turn % 2] = await asyncio.to_thread(Operated(envs[turn % 2]).__enter__)
            assert not any(task.done() for task in working), [t for t in working if t.done()]
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
            await asyncio.gather(*(asyncio.to_thread(service.stop) for service in up))
    assert crowd.broken and len(crowd.settled) >= 30 * kills
    assert all(len(attempts) == 1 for attempts in crowd.receipts.values())
    redemptions, rows = table(RedemptionRow).c, table(AuditRow).c
    with Database.open(database["database_url"]) as db:
        assert db.read_sync(faults_of_log) == []
        query = select(redemptions.effect_id, redemptions.attempt_id)
        spent = db.read_sync(lambda conn: dict(conn.execute(query).all()))
        assert {effect: {spent[effect]} for effect in crowd.receipts} == crowd.receipts
        indexes = db.read_sync(lambda conn: list(conn.scalars(select(rows.idx).order_by(rows.audit_id))))
        numbered = [index for index in indexes if index is not None]
        assert sorted(numbered) == list(range(1, db.read_sync(highest_index) + 1))
