"""`policy-service serve --workers 2` on PostgreSQL: one socket, one sum of metrics, replaced workers, one stop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import httpx2
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from sqlalchemy import select
from typer.testing import CliRunner

from countersign.contract import PrivateKey
from examples.local_service import free_port
from policy_service.cli import app
from policy_service.storage.core import table
from policy_service.storage.database import Database
from policy_service.storage.tables import RedemptionRow
from tests.fakes.log_check import faults_of_log
from tests.fakes.operated import Operated, command, environment
from tests.fakes.patience import until
from tests.fakes.payments import Payments
from tests.fakes.world import URL
from tests.integration.service.test_replicas import HOST, LEASE_S, Crowd

COUNTED = 'countersign_http_request_duration_seconds_count{method="GET",route="/healthz",status="200"}'


@pytest.fixture
def engine() -> str:
    """Only a database server is shared."""
    return "postgresql"


@pytest.fixture
def env(tmp_path: Path, folder: Payments, database: dict[str, str]) -> dict[str, str]:
    """The settings of a service with two workers, which was set up."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    more = {
        "DATABASE_URL": database["database_url"].replace("+psycopg", ""),
        "LEASE_S": str(LEASE_S),
        "WORKERS": "2",
        "PUBLIC_URL": URL,
    }
    named = {f"COUNTERSIGN_{name}": value for name, value in more.items()}
    found = environment(tmp_path / "data", folder.path, free_port(), TMPDIR=str(scratch), **named)
    assert CliRunner().invoke(app, ["init"], env=found).exit_code == 0
    return found


def children(pid: int) -> list[int]:
    """The processes that this one started and that run."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def runs(pid: int) -> bool:
    """Whether the process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def counted(text: str) -> float:
    """How many requests for /healthz these metrics count."""
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(COUNTED))


def counted_by(pid: int, scratch: Path) -> float:
    """How many of them this worker has answered."""
    (file,) = scratch.glob(f"countersign-metrics-*/histogram_{pid}.db")

    class Files(CollectorRegistry):
        def collect(self):
            yield from MultiProcessCollector.merge([str(file)])

    return counted(generate_latest(Files()).decode())


def get(url: str) -> str:
    """A response over a connection of its own."""
    return httpx2.get(url, headers=HOST, timeout=30).raise_for_status().text


def test_both_workers_answer_metrics_are_their_sum_and_a_stop_leaves_nothing(env: dict[str, str]) -> None:
    scratch = Path(env["TMPDIR"])
    with Operated(env) as service:
        workers = children(service._process.pid)
        assert len(workers) == 2
        for answering, other in (workers, workers[::-1]):
            before = counted_by(answering, scratch)
            os.kill(other, signal.SIGSTOP)
            try:
                get(f"{service.url}/healthz")
            finally:
                os.kill(other, signal.SIGCONT)
            assert counted_by(answering, scratch) == before + 1
        assert counted(get(f"{service.url}/metrics")) == sum(counted_by(pid, scratch) for pid in workers) == 2
        assert [path.stat().st_mode & 0o777 for path in scratch.glob("countersign-metrics-*")] == [0o700]
        assert service.stop(signal.SIGTERM) == -signal.SIGTERM
    assert not any(map(runs, workers))
    assert list(scratch.glob("countersign-metrics-*")) == []


def test_what_a_worker_refuses_ends_the_service_and_is_reported_once(
    env: dict[str, str], folder: Payments
) -> None:
    (folder.path / "broken.cedar").write_text("permit(")
    ended = command("serve", env=env)
    assert ended.returncode == 1
    assert ended.stderr.count("does not load") == 1


async def test_a_replacement_with_other_keys_ends_the_service(env: dict[str, str]) -> None:
    """Two generations must not serve next to each other; all workers start anew with the new keys."""
    with Operated(env) as service:
        workers = children(service._process.pid)
        assert command("rotate-keys", "--compromised", env=env).returncode == 0
        os.kill(workers[0], signal.SIGKILL)
        assert await asyncio.to_thread(service._process.wait, 60) == 1
        assert not any(map(runs, workers))
    with Operated(env) as service:
        workers = children(service._process.pid)
        os.kill(workers[0], signal.SIGKILL)
        await until(_replaced(service, workers), 60)


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_killed_worker_is_replaced_and_nothing_is_redeemed_twice(
    env: dict[str, str], folder: Payments, tmp_path: Path
) -> None:
    pem, digest, kills = tmp_path / "robot.pem", folder.load().manifests["pay"].digest, 4
    assert (
        CliRunner().invoke(app, ["agent", "enroll", "robot", "--key-out", str(pem)], env=env).exit_code == 0
    )
    async with AsyncExitStack() as stack:
        service = await asyncio.to_thread(Operated(env).__enter__)
        stack.callback(service.stop)
        clients = [httpx2.AsyncClient(base_url=service.url, headers=HOST, timeout=30) for _ in range(4)]
        doors = [await stack.enter_async_context(client) for client in clients]
        crowd = Crowd(doors, PrivateKey.from_pem(pem.read_bytes()), digest)
        working = [asyncio.create_task(crowd.pays(n)) for n in range(8)]
        try:
            for turn in range(kills):
                await _settle_more(crowd, working)
                workers = children(service._process.pid)
                os.kill(workers[turn % 2], signal.SIGKILL)
                await until(_replaced(service, workers), 60)
            await _settle_more(crowd, working)
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
    assert crowd.broken
    assert all(len(attempts) == 1 for attempts in crowd.receipts.values())
    redemptions = table(RedemptionRow).c
    with Database.open(env["COUNTERSIGN_DATABASE_URL"].replace("://", "+psycopg://")) as db:
        assert db.read_sync(faults_of_log) == []
        query = select(redemptions.effect_id, redemptions.attempt_id)
        spent = db.read_sync(lambda conn: dict(conn.execute(query).all()))
        assert {effect: {spent[effect]} for effect in crowd.receipts} == crowd.receipts


async def _settle_more(crowd: Crowd, working: list[asyncio.Task[None]]) -> None:
    wanted = len(crowd.settled) + 30
    await until(lambda: len(crowd.settled) >= wanted or any(task.done() for task in working), 60)
    assert not any(task.done() for task in working), [task for task in working if task.done()]


def _replaced(service: Operated, before: list[int]) -> Callable[[], bool]:
    return lambda: len(now := children(service._process.pid)) == 2 and now != before


@pytest.mark.long
def test_workers_end_once_their_supervisor_is_killed(env: dict[str, str]) -> None:
    with Operated(env) as service:
        workers = children(service._process.pid)
        os.kill(service._process.pid, signal.SIGKILL)
        asyncio.run(until(lambda: not any(map(runs, workers)), 30))
        assert list(Path(env["TMPDIR"]).glob("countersign-metrics-*")) == []
