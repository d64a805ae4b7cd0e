"""Several replicas over one PostgreSQL: who waits is told whoever wrote, and a crowd that is
served by replicas which are killed all the time loses nothing and spends nothing twice.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import select
from typer.testing import CliRunner

from countersign.contract import PrivateKey
from examples.local_service import free_port
from policy_service.audit.log import highest_index
from policy_service.channels.admin.socket import run_admin_command
from policy_service.cli import app
from policy_service.settings import load_settings
from policy_service.storage.core import table
from policy_service.storage.database import Database
from policy_service.storage.system_tables import AuditRow
from policy_service.storage.tables import RedemptionRow
from policy_service.tokens.epoch import read_mark
from tests.fakes.log_check import faults_of_log
from tests.fakes.operated import Operated, environment
from tests.fakes.payments import Payments
from tests.fakes.streaming import events, served
from tests.fakes.world import URL, Agent, Clock, Visitor, World, running
from tests.integration.service.effects import pay
from tests.integration.service.patience import until

pytestmark = pytest.mark.anyio

LEASE_S = 2

HOST = {"Host": URL.removeprefix("http://")}


@pytest.fixture
def engine() -> str:
    """Only a database server is shared."""
    return "postgresql"


# -- in one process --------------------------------------------------------------------------------------------------


@pytest.fixture
async def replicas(tmp_path: Path, folder: Payments, database: dict[str, str]) -> AsyncIterator[list[World]]:
    """The service twice, each with a copy of the keys; at the end their log is sound (I-8)."""
    clock = Clock()
    async with AsyncExitStack() as stack:
        doors = [running(tmp_path / f"data-{n}", folder.path, clock=clock, **database) for n in range(2)]
        started = [await stack.enter_async_context(door) for door in doors]
        yield started
        assert await started[0].service.db.read(faults_of_log) == []


@pytest.mark.parametrize("turned", [False, True], ids=["one way", "the other way"])
async def test_a_replica_tells_what_was_done_at_the_other(replicas: list[World], turned: bool) -> None:
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


def at(world: World, who: Agent) -> Agent:
    """The same agent at another replica's door."""
    return Agent(who.name, who.key, world.http, who.clock)


async def test_the_log_is_dense_and_every_replica_marks_how_far_it_got(replicas: list[World]) -> None:
    robot, rows = await replicas[0].agent("robot"), table(AuditRow).c
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


async def test_an_operators_verb_holds_on_every_replica_at_once(replicas: list[World]) -> None:
    robot, settings = await replicas[0].agent("robot"), replicas[0].settings
    env = {
        "COUNTERSIGN_DATABASE_URL": settings.database_url.replace("+psycopg", ""),
        "COUNTERSIGN_DATA_DIR": str(settings.data_dir),
    }
    for verb, status in (
        (["freeze", "agent", "robot", "--reason", "x"], 403),
        (["unfreeze", "agent", "robot"], 201),
    ):
        result = await asyncio.to_thread(CliRunner().invoke, app, verb, env=env)
        assert result.exit_code == 0, result.output
        for n, world in enumerate(replicas):
            answer = await at(world, robot).submit(await pay(world), run_key=f"{verb[0]}-{n}")
            assert answer.status_code == status


# -- in processes of their own ---------------------------------------------------------------------------------------


class Deployment:
    """Replicas as operators run them: a data folder each with a copy of the keys, one database, one public address."""

    def __init__(self, home: Path, bundle: Payments, url: str, size: int) -> None:
        self.url, self.bundle = url, bundle
        more = {
            "COUNTERSIGN_DATABASE_URL": url.replace("+psycopg", ""),
            "COUNTERSIGN_PUBLIC_URL": URL,
            "COUNTERSIGN_LEASE_S": str(LEASE_S),
        }
        data = [home / f"replica-{n}" for n in range(size)]
        self.envs = [environment(folder, bundle.path, free_port(), **more) for folder in data]
        made = CliRunner().invoke(app, ["init"], env=self.envs[0])
        assert made.exit_code == 0, made.output
        for folder in data[1:]:
            shutil.copytree(data[0] / "keys", folder / "keys")  # with the epoch mark in it

    def verb(self, name: str, args: dict[str, Any]) -> Any:
        """An operator's verb, as the command line runs it."""
        settings = load_settings(data_dir=self.envs[0]["COUNTERSIGN_DATA_DIR"], database_url=self.url, public_url=URL,
                                 bundle_dir=self.bundle.path, dev_signin=True)  # fmt: skip
        return run_admin_command(settings, name, args)

    async def maya(self, http: httpx2.AsyncClient) -> Visitor:
        """Maya, signed in at one replica."""
        link = self.verb("sign-in-link", {"sub": "maya", "name": "Maya"})["url"]
        token = {"token": link.partition("token=")[2]}
        answer = await http.post("/sign-in/dev", data=token, headers={"Origin": URL})
        cookie = answer.headers["set-cookie"].partition(";")[0].partition("=")[2]
        http.cookies.clear()
        page = (await http.get("/", headers={"Cookie": f"countersign_dev={cookie}"})).text
        csrf = page.partition('name="csrf_token" value="')[2].partition('"')[0]
        return Visitor("maya", http, cookie, csrf)


def door(service: Operated) -> httpx2.AsyncClient:
    """The way to one replica, past the load balancer."""
    return httpx2.AsyncClient(base_url=service.url, headers=HOST, timeout=30)


@dataclass
class Told:
    """What the crowd was told, by whichever replica."""

    # attempts by effect
    receipts: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    settled: set[str] = field(default_factory=set)
    approved: set[str] = field(default_factory=set)
    broken: int = 0  # answers that never came, or that said to ask again


class Crowd:
    """Agents and a person at the doors of replicas that come and go: what is not answered is sent again elsewhere."""

    def __init__(self, doors: list[httpx2.AsyncClient], key: PrivateKey, digest: str) -> None:
        self._doors = itertools.cycle(doors)
        self._key, self._digest = key, digest
        self.told = Told()

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
            self.told.broken += 1

    async def _submitted(self, run: str, amount: int) -> dict[str, Any]:
        call = {"tool": "pay", "tool_digest": self._digest, "args": {"account": "acme", "amount": amount}}
        answer = await self._insist(lambda r: r.submit(call, run_key=run, idempotency_key=run))
        assert answer.status_code in {200, 201}, answer.text
        view: dict[str, Any] = answer.json()
        return view

    async def pays(self, first: int) -> None:
        """One run after the other; two contend for each, and whoever wins reports."""
        for n in itertools.count(first, 1_000):
            view = await self._submitted(f"run-{n}", 10)
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
        self.told.receipts[effect_id].add(attempt)
        fired = {"effect_id": effect_id, "outcome": "fired"}
        settled = await self._insist(lambda r: r.report(attempt, fired))
        assert settled.json()["state"] == "settled", settled.text
        self.told.settled.add(view["txn"])

    async def asks(self, maya: Visitor) -> None:
        """Ask for payments only Maya may let go, and let them go, while waiting for just that."""
        for n in itertools.count():
            view = await self._submitted(f"asked-{n}", 500)
            path = f"/v1/transactions/{view['txn']}"
            async with asyncio.TaskGroup() as beside:  # ends with this task, before the doors close
                wait = {"Prefer": "wait=5"}
                beside.create_task(self._insist(lambda r, path=path, w=wait: r.send("GET", path, headers=w)))
                voted = await self._insist(lambda r, view=view: replace(maya, http=r.http).vote(view))
                assert voted.json()["state"] == "met", voted.text
                self.told.approved.add(view["txn"])


def started(env: dict[str, str]) -> Operated:
    """A replica that is up."""
    return Operated(env).__enter__()


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_a_crowd_served_by_replicas_that_are_killed_all_the_time_loses_nothing(
    tmp_path: Path, folder: Payments, database: dict[str, str]
) -> None:
    """Design section 8, and I-3: nothing acknowledged is lost, and no effect is redeemed twice."""
    deployment = Deployment(tmp_path, folder, database["database_url"], 2)
    key, digest, kills = PrivateKey.generate(), folder.load().manifests["pay"].digest, 12
    deployment.verb("agent-enroll", {"name": "robot", "jwk": key.public.jwk()})
    async with AsyncExitStack() as stack:
        up = await asyncio.gather(*(asyncio.to_thread(started, env) for env in deployment.envs))
        doors = [await stack.enter_async_context(door(service)) for service in up]
        crowd = Crowd(doors, key, digest)
        working = [asyncio.create_task(crowd.pays(n)) for n in range(8)]
        working.append(asyncio.create_task(crowd.asks(await deployment.maya(doors[0]))))
        try:
            for turn in range(kills):
                before = len(crowd.told.settled)
                while len(crowd.told.settled) < before + 30 and not any(t.done() for t in working):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(up[turn % 2].kill)
                up[turn % 2] = await asyncio.to_thread(started, deployment.envs[turn % 2])
            assert not any(task.done() for task in working), [t for t in working if t.done()]
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
            await asyncio.gather(*(asyncio.to_thread(service.stop) for service in up))
    told = crowd.told
    assert told.broken and told.approved and len(told.settled) >= 30 * kills
    assert all(len(attempts) == 1 for attempts in told.receipts.values())
    redemptions, rows = table(RedemptionRow).c, table(AuditRow).c
    with Database.open(deployment.url) as db:
        assert db.read_sync(faults_of_log) == []
        query = select(redemptions.effect_id, redemptions.attempt_id)
        spent = db.read_sync(lambda conn: dict(conn.execute(query).all()))
        assert {effect: {spent[effect]} for effect in told.receipts} == told.receipts
        indexes = db.read_sync(lambda conn: list(conn.scalars(select(rows.idx).order_by(rows.audit_id))))
        numbered = [index for index in indexes if index is not None]
        assert sorted(numbered) == list(range(1, db.read_sync(highest_index) + 1))
