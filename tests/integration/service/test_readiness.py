"""/readyz tells what is wrong, since when and what to do: every check is broken for real, on both engines, and mended.

"Since" is when it was found, not when somebody asked: the clock moves on between the two.
"""

from __future__ import annotations

import asyncio
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Executable, delete, text, update

from policy_service.errors import ServiceError
from policy_service.health import CHECKS, Health
from policy_service.jobs.health_monitor import HealthMonitor
from policy_service.pap import folder_reader
from policy_service.storage.core import table
from policy_service.storage.database import Tx
from policy_service.storage.outbox import enqueue
from policy_service.storage.system_tables import LeaseRow, OutboxRow
from policy_service.tokens.keys import rotate_keys
from tests.fakes.payments import Payments
from tests.fakes.world import Clock, World, running
from tests.integration.service.effects import pay
from tests.integration.service.engines import SQLITE_IN_SHORT
from tests.integration.service.patience import until

pytestmark = pytest.mark.anyio


@pytest.fixture(params=SQLITE_IN_SHORT)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def found(world: World) -> dict[str, dict[str, Any]]:
    """What /readyz says now, by check; its status line must agree with what it says."""
    answer = await world.http.get("/readyz")
    body = answer.json()
    by_check = {one["check"]: one for one in body["findings"]}
    stops = any(one["stops"] for one in by_check.values())
    assert body["status"] == ("down" if stops else "degraded" if by_check else "ok")
    assert answer.status_code == (503 if stops else 200)
    for name, one in by_check.items():
        assert (one["stops"], one["do"]) == (CHECKS[name].stops, CHECKS[name].do)
        assert datetime.fromisoformat(one["since"]).tzinfo is not None
    return by_check


async def test_a_writer_that_hangs_stops_it(
    tmp_path: Path, folder: Payments, database: dict[str, str]
) -> None:
    go, begun = threading.Event(), threading.Event()

    def hang(tx: Tx) -> None:
        begun.set()
        assert go.wait(30)

    async with running(tmp_path / "data", folder.path, pool_size=1, watch_s=60, **database) as bank:
        await mended(bank)  # the look at the start is over, and has its usual patience
        bank.service.watch._patience_s = 0.3
        hung = asyncio.create_task(bank.service.db.write(hang))
        await asyncio.to_thread(begun.wait, 10)
        assert "no unit of work comes back" in await broken(bank, "writer", stops=True)
        go.set()
        await hung
        bank.service.watch._patience_s = 10
        await mended(bank)


# a server's disk cannot be filled here; the next test is of both
@pytest.mark.parametrize("engine", ["sqlite"])
async def test_a_full_disk_stops_it_until_there_is_room_again(bank: World) -> None:
    await sql(bank, "CREATE TABLE filler (x BLOB)")
    pages = await bank.service.db.read(lambda conn: conn.execute(text("PRAGMA page_count")).scalar_one())
    await sql(bank, f"PRAGMA max_page_count = {pages}")
    with pytest.raises(ServiceError):
        await sql(bank, "INSERT INTO filler VALUES (zeroblob(3000000))")
    assert "SQLITE_FULL" in await broken(bank, "writer", stops=True)
    await sql(bank, f"PRAGMA max_page_count = {pages + 10_000}")
    await mended(bank)


async def test_one_failed_commit_that_can_be_repeated_stops_nothing(bank: World, engine: str) -> None:
    """A database that does not answer does."""
    await mended(bank)  # the look at the start is over: it would find that all is well again by itself
    ending = "SELECT pg_terminate_backend(pg_backend_pid())"
    if engine == "sqlite":
        bomb = "CREATE TRIGGER bomb BEFORE INSERT ON bombs BEGIN SELECT RAISE(ROLLBACK, 'boom'); END"
        await sql(bank, "CREATE TABLE bombs (x)", bomb)
        ending = "INSERT INTO bombs VALUES (1)"
    with pytest.raises(ServiceError):
        await sql(bank, ending)
    assert bank.service.db.failed is not None
    await mended(bank)
    assert bank.service.db.failed is None
    await sql(bank, "ALTER TABLE tasks RENAME TO gone")
    await broken(bank, "database", stops=True)
    await sql(bank, "ALTER TABLE gone RENAME TO tasks")
    await mended(bank)


async def test_a_log_nobody_numbers_stops_it_since_its_oldest_line(bank: World) -> None:
    leases = table(LeaseRow)
    robot = await bank.agent("robot")
    await bank.service.sequencer.number()
    later = datetime.now(UTC) + timedelta(days=1)
    await write(bank, update(leases).values(holder="another-process", expires_at=later))
    began = bank.clock()
    assert (await robot.submit(await pay(bank))).status_code == 201
    await mended(bank)  # a line may wait for a moment
    bank.clock.pass_(seconds=11)
    await broken(bank, "log", stops=True)
    since = datetime.fromisoformat((await found(bank))["log"]["since"])
    assert abs(since - began) < timedelta(seconds=5)
    await write(bank, delete(leases))
    await bank.service.sequencer.number()
    await mended(bank)


async def test_lines_written_before_a_start_are_late_only_after_the_start(
    tmp_path: Path, folder: Payments, database: dict[str, str]
) -> None:
    async with running(tmp_path / "data", folder.path, **database) as bank:
        await bank.agent("robot")
        await bank.service.sequencer.number()
        later = bank.clock() + timedelta(days=1)
        await write(bank, update(table(LeaseRow)).values(holder="another-process", expires_at=later))
        await bank.operator("stop", {"tool": None, "reason": "restored"})
    clock = Clock()
    clock.pass_(hours=1)
    async with running(tmp_path / "data", folder.path, clock=clock, **database) as bank:
        for seconds, checks in ((0, ["frozen"]), (11, ["log", "frozen"])):
            clock.pass_(seconds=seconds)
            await bank.service.watch.look()
            assert list(await found(bank)) == checks


async def test_an_epoch_mark_that_cannot_be_written_stops_it(bank: World) -> None:
    mark, signal = bank.settings.key_dir / "epoch.json", bank.service.mark.signal
    await asyncio.sleep(0.3)
    kept = mark.read_bytes()
    mark.unlink()
    mark.mkdir()
    await bank.agent("one-more-line")
    await until(lambda: signal.wrong)
    await broken(bank, "epoch", stops=True)
    mark.rmdir()
    mark.write_bytes(kept)
    mark.chmod(0o600)
    await until(lambda: not signal.wrong)
    await mended(bank)


async def test_clocks_that_disagree_stop_it(bank: World, folder: Payments) -> None:
    """One behind the log, and those of the host and the database; of several things the worst is told first."""
    await bank.agent("somebody")
    await bank.service.sequencer.number()
    bank.clock.pass_(hours=-1)
    assert "behind the newest line" in await broken(bank, "clock", stops=True)
    folder.policies("permit (principal, action, resource")
    await bank.activate()
    assert list(await found(bank)) == ["clock", "bundle"]
    folder.rules()
    await bank.activate()
    bank.clock.pass_(hours=1)
    await mended(bank)
    service, health = bank.service, Health(bank.clock, patience_s=60)
    parts: dict[str, Any] = {"scheduler": service.scheduler, "kid": service.watch._kid}
    ahead = HealthMonitor(
        service.db, health, bank.settings, **parts, clock=lambda: bank.clock() + timedelta(seconds=60)
    )
    await ahead.look()
    (told,) = health.findings()
    assert told.check == "clock" and "60 s apart" in told.wrong


async def test_a_disk_that_runs_low_and_keys_that_cannot_be_read_are_warnings(bank: World) -> None:
    watch = bank.service.watch
    watch._settings = bank.settings.model_copy(update={"disk_low_mb": 10**9})
    await broken(bank, "disk", stops=False)
    watch._settings = bank.settings
    await mended(bank)
    secret = bank.settings.key_dir / "nonce.secret"
    secret = secret if secret.exists() else next(bank.settings.key_dir.glob("*nonce*"))
    secret.chmod(0o644)
    assert "would not start again" in await broken(bank, "keys", stops=False)
    secret.chmod(0o600)
    await mended(bank)
    kid = rotate_keys(bank.settings.key_dir, now=datetime.now(UTC).timestamp(), compromised=True)
    assert kid in await broken(bank, "keys", stops=False)  # it waits for a restart


async def test_a_bundle_that_does_not_load_is_a_warning_since_it_first_did_not(
    bank: World, folder: Payments
) -> None:
    assert await failing(bank, "bundle") == "0.0"
    folder.policies('@id("hunter2") permit (principal, action, resource) when { "hunter2"')
    await bank.activate()
    assert await failing(bank, "bundle") == "1.0"  # though nobody asks whether it is ready
    told = (await found(bank))["bundle"]
    assert told["stops"] is False and "hunter2" not in told["wrong"]
    assert bank.service.active.current.digest in told["wrong"]
    assert ".cedar" in told["wrong"], "it names the file"
    bank.clock.pass_(minutes=5)
    folder.policies("permit (principal, action, resour")
    await bank.activate()
    assert (await found(bank))["bundle"]["since"] == told["since"]
    folder.rules()
    await bank.activate()
    assert await found(bank) == {} and await failing(bank, "bundle") == "0.0"
    told, active = (await bank.http.get("/readyz")).json(), bank.service.active.current
    assert (told["commit"], told["bundle"]) == (active.commit, active.digest)


async def test_a_fifo_in_the_bundle_is_a_warning_until_it_is_gone(bank: World, folder: Payments) -> None:
    os.mkfifo(folder.path / "waits.cedar")
    await asyncio.wait_for(bank.activate(), 10)
    assert "waits.cedar" in (await found(bank))["bundle"]["wrong"]
    (folder.path / "waits.cedar").unlink()
    await bank.activate()
    assert await found(bank) == {}


async def test_a_bundle_folder_that_does_not_answer_is_a_warning_until_it_does(
    bank: World, folder: Payments, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(600)\n")
    with monkeypatch.context() as hanging:
        hanging.setattr(folder_reader, "__file__", str(tmp_path / "hangs.py"))
        hanging.setattr(bank.service.active._source._reader, "_seconds", 0.5)  # type: ignore[attr-defined]
        await bank.activate()
        told = (await found(bank))["bundle"]
        assert "reading it took longer than 0.5 s" in told["wrong"]
        assert bank.service.active.current.digest in told["wrong"]
    await bank.activate()
    assert await found(bank) == {}


async def test_what_an_operator_stopped_is_a_warning_until_it_may_go_on(bank: World) -> None:
    stops = {"pay": "1 tool", "unpay": "2 tools", None: "everything and 2 tools"}
    for tool, told in stops.items():
        await bank.operator("stop", {"tool": tool, "reason": "it pays twice"})
        assert await broken(bank, "frozen", stops=False) == f"stopped by an operator: {told}"
    lines = (await bank.http.get("/metrics")).text
    assert 'countersign_frozen{what="everything"} 1.0' in lines
    assert 'countersign_frozen{what="tool"} 2.0' in lines
    page = (await (await bank.person("maya")).get("/")).text
    assert "Stopped: everything" in page and "Stopped: the tool pay" in page
    for tool in stops:
        await bank.operator("go-on", {"tool": tool})
    await mended(bank)


async def test_a_sweep_that_fails_is_a_warning_until_it_succeeds(bank: World) -> None:
    scheduler = bank.service.scheduler
    jobs = {job.name: job for job in scheduler._jobs}
    await sql(bank, "ALTER TABLE sign_in_links RENAME TO gone")
    await scheduler._tick(jobs["forget"])
    assert "forget" in await broken(bank, "sweeps", stops=False)
    await sql(bank, "ALTER TABLE gone RENAME TO sign_in_links")
    await scheduler._tick(jobs["forget"])
    await mended(bank)
    at, when = scheduler._succeeded["expire_reviews"]  # one that hangs tells nobody
    scheduler._succeeded["expire_reviews"] = (at - 3 * 3_600 - 61, when)
    assert "expire_reviews" in await broken(bank, "sweeps", stops=False)
    await scheduler._tick(jobs["expire_reviews"])
    await mended(bank)
    assert await failing(bank, "watch") == "0.0"
    bank.service.health._patience_s = -1
    assert await failing(bank, "watch") == "1.0"


async def test_a_message_that_does_not_leave_is_a_warning(bank: World) -> None:
    outbox = table(OutboxRow)
    await bank.service.db.write(lambda tx: enqueue(tx, "review_opened", {}))
    later = datetime.now(UTC) + timedelta(days=2)
    await write(bank, update(outbox).values(state="waiting", next_at=later))
    await mended(bank)  # a message may wait for a while
    bank.clock.pass_(seconds=901)
    assert "1 messages wait" in await broken(bank, "outbox", stops=False)
    await write(bank, update(outbox).values(state="dead"))
    assert "given up" in await broken(bank, "outbox", stops=False)
    await write(bank, delete(outbox))
    await mended(bank)


async def test_a_provider_nobody_reaches_is_a_warning(
    tmp_path: Path, folder: Payments, database: dict[str, str]
) -> None:
    provider = {"name": "corp", "title": "Corp", "issuer": "http://127.0.0.1:9", "client_id": "countersign",
                "client_secret": "s"}  # fmt: skip
    async with running(tmp_path / "data", folder.path, providers=[provider], **database) as bank:
        assert (await bank.http.get("/sign-in/corp")).status_code == 503
        assert "127.0.0.1 does not answer" in await broken(bank, "issuers", stops=False)


async def test_a_watch_that_does_not_come_round_stops_it() -> None:
    health = Health(lambda: datetime(2026, 1, 1, tzinfo=UTC), patience_s=0.05)
    assert health.findings() == []
    await asyncio.sleep(0.1)
    assert [(one.check, one.stops) for one in health.findings()] == [("watch", True)]
    health.looked()
    assert health.findings() == []


async def broken(world: World, check: str, *, stops: bool) -> str:
    """What is said of the one finding, told with the moment it was found however late and often one looks."""
    await world.service.watch.look()
    told = await found(world)
    assert list(told) == [check]
    assert told[check]["stops"] is stops
    world.clock.pass_(seconds=2)
    await world.service.watch.look()
    assert (await found(world))[check]["since"] == told[check]["since"]
    wrong: str = told[check]["wrong"]
    return wrong


async def mended(world: World) -> None:
    await world.service.watch.look()
    assert await found(world) == {}


async def write(world: World, *statements: Executable) -> None:
    """Run statements in one unit of work."""

    def run(tx: Tx) -> None:
        for one in statements:
            tx.conn.execute(one)

    await world.service.db.write(run)


async def sql(world: World, *statements: str) -> None:
    await write(world, *map(text, statements))


async def failing(world: World, check: str) -> str:
    """What the metrics say of a check; nobody has asked /readyz."""
    name = f'countersign_check_failing{{check="{check}"}} '
    lines = (await world.http.get("/metrics")).text.splitlines()
    return next(line.removeprefix(name) for line in lines if line.startswith(name))
