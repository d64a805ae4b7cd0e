"""An embedded database in trouble while the service runs: 503, nothing half done, and on it goes afterwards.

A full disk and the calls of the system that can fail are in `tests/crash`.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from policy_service.errors import StartError, StorageUnavailableError
from tests.fakes.payments import Payments
from tests.fakes.world import Agent, running
from tests.integration.service.effects import mail, pay
from tests.integration.service.together.bank import Bank, refusal


@pytest.fixture
def settings() -> dict[str, Any]:
    """It waits only a moment for locks."""
    return {"busy_timeout_ms": 100}


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process writes, and takes its time."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


async def writes(bank: Bank, robot: Agent) -> dict[str, Any]:
    """One of everything that changes something, ready to be sent."""
    maya = await bank.person("maya")
    ready = (await robot.submit(await pay(bank), await mail(bank), run_key="ready")).json()
    asked = (await robot.submit(await pay(bank, 500), run_key="asked")).json()
    spent = (await robot.submit(await pay(bank), run_key="spent", attempt_id="spent")).json()
    tokens = (await robot.release(ready)).json()["releases"]
    fired = {"effect_id": spent["effects"][0]["effect_id"], "outcome": "fired"}
    effect = await pay(bank)
    return {
        "a submission": lambda: robot.submit(effect, run_key="new", idempotency_key="new"),
        "a release": lambda: robot.release(ready),
        "a redemption": lambda: robot.redeem(tokens, "a-1"),
        "a report": lambda: robot.report("spent", fired),
        "a withdrawal": lambda: robot.send("POST", f"/v1/transactions/{asked['txn']}/withdraw", {}),
        "a vote": lambda: maya.vote(asked, "deny", reason="no"),
    }


async def test_what_cannot_be_written_is_refused_whole_and_can_be_sent_again(bank: Bank) -> None:
    robot, file = await bank.agent("robot"), bank.settings.data_dir / "countersign.db"
    for what, send in (await writes(bank, robot)).items():
        before = _content(file)
        with locked(file):
            answer: httpx2.Response = await send()
            assert refusal(answer) == (503, "storage_unavailable"), what
            assert "sqlite" not in answer.text.lower()
        assert _content(file) == before, what
        assert (await send()).is_success, what
        assert _content(file) != before, what


def _content(path: Path) -> dict[str, list[str]]:
    """Every row that means something, as another process reads it; of the log only how much there is, because lines
    are numbered when it suits the sequencer.
    """
    tables = ("transactions", "effects", "decisions", "reviews", "votes", "attempts", "redemptions", "tasks")
    with closing(sqlite3.connect(path)) as other:
        rows = {name: sorted(map(repr, other.execute(f"SELECT * FROM {name}"))) for name in tables}
        return rows | {"audit": [str(other.execute("SELECT count(*) FROM audit").fetchone()[0])]}


async def test_damaged_pages_are_503_while_it_runs(tmp_path: Path, folder: Payments) -> None:
    """Before, a lock that is given back in time is waited for."""
    file = tmp_path / "data" / "countersign.db"
    # Where lines of its log are left to be numbered it cannot do that either, and says so when it ends.
    with suppress(StorageUnavailableError):
        async with running(tmp_path / "data", folder.path) as bank:
            robot, effect = await bank.agent("robot"), await pay(bank)
            with locked(file):
                sent = asyncio.create_task(robot.submit(effect))
                await asyncio.sleep(0.3)
                assert not sent.done()
            assert (await sent).status_code == 201
            views = [(await robot.submit(effect, run_key=f"r-{n}")).json() for n in range(30)]
            tokens = (await robot.release(views[0])).json()["releases"]
            _rot(file)
            read = await robot.send("GET", f"/v1/transactions/{views[1]['txn']}")
            written = await robot.redeem(tokens, "a-1"), await robot.submit(effect, run_key="another")
            for answer in (read, *written):
                assert refusal(answer) == (503, "storage_unavailable")
                assert "malformed" not in answer.text
            assert (await bank.http.get("/readyz")).status_code == 503


async def test_damaged_pages_prevent_the_start(tmp_path: Path, folder: Payments) -> None:
    async with running(tmp_path / "data", folder.path) as bank:
        robot = await bank.agent("robot")
        for n in range(30):
            await robot.submit(await pay(bank), run_key=f"r-{n}")
    _rot(tmp_path / "data" / "countersign.db")
    with pytest.raises(StartError, match="damaged"):
        async with running(tmp_path / "data", folder.path):
            pass


def _rot(path: Path) -> None:
    """Everything is moved from the log into the file, and the file's pages but the first two are noise from then on."""
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        size = other.execute("PRAGMA page_size").fetchone()[0]
    with path.open("r+b") as file:
        file.seek(2 * size)
        file.write(os.urandom(path.stat().st_size - 2 * size))
        os.fsync(file.fileno())
