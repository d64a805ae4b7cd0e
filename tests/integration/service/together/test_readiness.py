"""/readyz reports what is wrong, since when and what to do: every check is broken for real, and repaired.

"Since" is when it was found, not when /readyz was read: the clock moves on between the two.
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
from policy_service.storage.system_tables import LeaseRow, OutboxRow
from policy_service.storage.unit_of_work import enqueue
from policy_service.tokens.keys import rotate_keys
from tests.fakes.pages import holds
from tests.fakes.patience import until
from tests.fakes.payments import Payments
from tests.fakes.world import Clock, World, running
from tests.integration.service.effects import pay
from tests.integration.service.engines import SQLITE_IN_SHORT
from tests.integration.service.together.bank import Bank


@pytest.fixture(autouse=True)
async def numbered(bank: Bank) -> None:
    """When a test begins no row waits for its number, no message to be sent, and the health was just checked."""
    await bank.service.sequencer.number()
    await write(bank, delete(table(OutboxRow)))
    await bank.service.watch.look()


async def found(world: World) -> dict[str, dict[str, Any]]:
    """The findings of /readyz by check; its status line must agree with them."""
    answer = await world.http.get("/readyz")
    body = answer.json()
    by_check = {one["check"]: one for one in body["findings"]}
    stops = any(one["stops"] for one in by_check.values())
    status = "down" if stops else "degraded" if by_check else "ok"
    assert (body["status"], answer.status_code) == (status, 503 if stops else 200)
    for name, one in by_check.items():
        assert (one["stops"], one["do"]) == (CHECKS[name].stops, CHECKS[name].do)
        assert datetime.fromisoformat(one["since"]).tzinfo is not None
    return by_check


async def broken(world: World, check: str, *, stops: bool) -> Any:
    """The text of the only finding; its moment is the first time it was found."""
    await world.service.watch.look()
    first = await found(world)
    assert (list(first), first[check]["stops"]) == ([check], stops)
    world.clock.pass_(seconds=2)
    await world.service.watch.look()
    assert (await found(world))[check]["since"] == first[check]["since"]
    return first[check]["wrong"]


async def healthy(world: World) -> None:
    await world.service.watch.look()
    assert await found(world) == {}


async def write(world: World, *statements: Executable) -> None:
    """Run statements in one unit of work."""
    await world.service.db.write(lambda tx: [tx.conn.execute(one).close() for one in statements])


async def sql(world: World, *statements: str) -> None:
    await write(world, *map(text, statements))


async def failing(world: World, check: str) -> str:
    """The metric of a check; it does not depend on reads of /readyz."""
    name = f'countersign_check_failing{{check="{check}"}} '
    lines = (await world.http.get("/metrics")).text.splitlines()
    return next(line.removeprefix(name) for line in lines if line.startswith(name))


@pytest.mark.parametrize("engine", SQLITE_IN_SHORT)
async def test_a_hanging_writer_stops_it(tmp_path: Path, folder: Payments, database: dict[str, str]) -> None:
    go, begun = threading.Event(), threading.Event()

    def hang(tx: Tx) -> None:
        begun.set()
        assert go.wait(30)

    async with running(tmp_path / "data", folder.path, pool_size=1, **database) as own:
        await healthy(own)  # the look at the start is over, and has its usual patience
        usual, own.service.watch._patience_s = own.service.watch._patience_s, 0.3
        hung = asyncio.create_task(own.service.db.write(hang))
        await asyncio.to_thread(begun.wait, 10)
        assert "no unit of work comes back" in await broken(own, "writer", stops=True)
        go.set()
        await hung
        own.service.watch._patience_s = usual
        await healthy(own)


# A server's disk cannot be filled here.
@pytest.mark.parametrize("database_of_all", ["sqlite"], indirect=True)
async def test_a_full_disk_stops_it_until_there_is_space_again(bank: Bank) -> None:
    await sql(bank, "CREATE TABLE filler (x BLOB)")
    pages = await bank.service.db.read(lambda conn: conn.execute(text("PRAGMA page_count")).scalar_one())
    await sql(bank, f"PRAGMA max_page_count = {pages}")
    with pytest.raises(ServiceError):
        await sql(bank, "INSERT INTO filler VALUES (zeroblob(3000000))")
    assert "SQLITE_FULL" in await broken(bank, "writer", stops=True)
    await sql(bank, f"PRAGMA max_page_count = {pages + 10_000}")
    await healthy(bank)


async def test_one_failed_commit_that_can_be_repeated_stops_nothing(bank: Bank) -> None:
    """A database that does not answer does."""
    await healthy(bank)  # the look at the start is over: it would find by itself that all is well again
    ending = "SELECT pg_terminate_backend(pg_backend_pid())"
    if not bank.settings.database_url.startswith("postgresql"):
        bomb = "CREATE TRIGGER bomb BEFORE INSERT ON bombs BEGIN SELECT RAISE(ROLLBACK, 'boom'); END"
        await sql(bank, "CREATE TABLE bombs (x)", bomb)
        ending = "INSERT INTO bombs VALUES (1)"
    with pytest.raises(ServiceError):
        await sql(bank, ending)
    assert bank.service.db.failed is not None
    await healthy(bank)
    assert bank.service.db.failed is None
    await sql(bank, "ALTER TABLE tasks RENAME TO gone")
    await broken(bank, "database", stops=True)
    await sql(bank, "ALTER TABLE gone RENAME TO tasks")
    await healthy(bank)


@pytest.mark.xdist_group("postgresql")
@pytest.mark.parametrize("engine", ["postgresql"])
async def test_an_unnumbered_log_stops_it_unless_its_rows_are_of_an_earlier_start(
    tmp_path: Path, folder: Payments, database: dict[str, str]
) -> None:
    async with running(tmp_path / "data", folder.path, **database) as own:
        robot = await own.agent("robot")
        await own.service.sequencer.number()
        later = own.clock() + timedelta(days=1)
        await write(own, update(table(LeaseRow)).values(holder="another-process", expires_at=later))
        began = own.clock()
        assert (await robot.submit(await pay(own))).status_code == 201
        await healthy(own)  # a row may wait for a moment
        own.clock.pass_(seconds=11)
        await broken(own, "log", stops=True)
        since = datetime.fromisoformat((await found(own))["log"]["since"])
        assert abs(since - began) < timedelta(seconds=5)
    clock = Clock()
    clock.pass_(hours=1)
    async with running(tmp_path / "data", folder.path, clock=clock, **database) as own:
        await healthy(own)
        clock.pass_(seconds=11)
        await broken(own, "log", stops=True)
        await write(own, delete(table(LeaseRow)))
        await own.service.sequencer.number()
        await healthy(own)


async def test_an_epoch_mark_that_cannot_be_written_stops_it(bank: Bank) -> None:
    mark, signal = bank.settings.key_dir / "epoch.json", bank.service.mark.signal
    await asyncio.sleep(0.3)
    kept = mark.read_bytes()
    mark.unlink()
    mark.mkdir()
    await bank.fresh()  # one more row
    await until(lambda: signal.wrong)
    await broken(bank, "epoch", stops=True)
    mark.rmdir()
    mark.write_bytes(kept)
    mark.chmod(0o600)
    await until(lambda: not signal.wrong)
    await healthy(bank)


async def test_clocks_that_disagree_stop_it(bank: Bank) -> None:
    """One behind the log, and those of the host and the database; the worst finding comes first."""
    bank.clock.pass_(hours=-1)
    assert "behind the newest line" in await broken(bank, "clock", stops=True)
    await bank.policies("permit (principal, action, resource")
    assert list(await found(bank)) == ["clock", "bundle"]
    await bank.rules()
    bank.clock.pass_(hours=1)
    await healthy(bank)
    service, health = bank.service, Health(bank.clock, patience_s=60)
    parts: dict[str, Any] = {"scheduler": service.scheduler, "kid": service.watch._kid}
    parts["clock"] = lambda: bank.clock() + timedelta(seconds=60)
    await HealthMonitor(service.db, health, bank.settings, **parts).look()
    (finding,) = health.findings()
    assert finding.check == "clock" and "60 s apart" in finding.wrong


async def test_a_disk_that_runs_low_and_keys_that_cannot_be_read_are_warnings(bank: Bank) -> None:
    watch, secret = bank.service.watch, next(bank.settings.key_dir.glob("*nonce*"))
    watch._settings = bank.settings.model_copy(update={"disk_low_mb": 10**9})
    await broken(bank, "disk", stops=False)
    watch._settings = bank.settings
    await healthy(bank)
    secret.chmod(0o644)
    assert "would not start again" in await broken(bank, "keys", stops=False)
    secret.chmod(0o600)
    await healthy(bank)
    kept = {file: file.read_bytes() for file in bank.settings.key_dir.iterdir()}
    kid = rotate_keys(bank.settings.key_dir, now=datetime.now(UTC).timestamp(), compromised=True)
    assert kid in await broken(bank, "keys", stops=False)  # it waits for a restart
    for file in bank.settings.key_dir.iterdir():
        file.write_bytes(kept[file]) if file in kept else file.unlink()
    await healthy(bank)


async def test_a_bundle_that_does_not_load_is_a_warning_since_it_first_did_not(bank: Bank) -> None:
    assert await failing(bank, "bundle") == "0.0"
    await bank.policies('@id("hunter2") permit (principal, action, resource) when { "hunter2"')
    assert await failing(bank, "bundle") == "1.0"  # without a read of /readyz
    first, active = (await found(bank))["bundle"], bank.service.active.current
    assert first["stops"] is False and "hunter2" not in first["wrong"]
    assert active.digest in first["wrong"] and ".cedar" in first["wrong"]
    bank.clock.pass_(minutes=5)
    await bank.policies("permit (principal, action, resour")
    assert (await found(bank))["bundle"]["since"] == first["since"]
    await bank.rules()
    assert await found(bank) == {} and await failing(bank, "bundle") == "0.0"
    body, active = (await bank.http.get("/readyz")).json(), bank.service.active.current
    assert (body["commit"], body["bundle"]) == (active.commit, active.digest)


async def test_a_fifo_in_the_bundle_is_a_warning_until_it_is_gone(bank: Bank) -> None:
    os.mkfifo(bank.folder.path / "waits.cedar")
    await asyncio.wait_for(bank.activate(), 10)
    assert "waits.cedar" in (await found(bank))["bundle"]["wrong"]
    (bank.folder.path / "waits.cedar").unlink()
    await bank.activate()
    assert await found(bank) == {}


async def test_a_hanging_bundle_folder_is_a_warning(
    bank: Bank, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(600)\n")
    with monkeypatch.context() as hanging:
        hanging.setattr(folder_reader, "__file__", str(tmp_path / "hangs.py"))
        hanging.setattr(bank.service.active._source._reader, "_seconds", 0.5)  # type: ignore[attr-defined]
        await bank.activate()
        wrong = (await found(bank))["bundle"]["wrong"]
        assert "reading it took longer than 0.5 s" in wrong and bank.service.active.current.digest in wrong
    await bank.activate()
    assert await found(bank) == {}


async def test_an_emergency_stop_is_a_warning_until_it_ends(bank: Bank) -> None:
    stops = {"pay": "1 tool", "unpay": "2 tools", None: "everything and 2 tools"}
    for tool, what in stops.items():
        await bank.operator("stop", {"tool": tool, "reason": "it pays twice"})
        assert await broken(bank, "frozen", stops=False) == f"stopped by an operator: {what}"
    metrics, frozen = (await bank.http.get("/metrics")).text, "countersign_frozen{what="
    holds(metrics, frozen + '"everything"} 1.0', frozen + '"tool"} 2.0')
    holds((await bank.maya.get("/")).text, "Stopped: everything", "Stopped: the tool pay")
    for tool in stops:
        await bank.operator("go-on", {"tool": tool})
    await healthy(bank)


async def test_a_sweep_that_fails_is_a_warning_until_it_succeeds(bank: Bank) -> None:
    scheduler = bank.service.scheduler
    jobs = {job.name: job for job in scheduler._jobs}
    await sql(bank, "ALTER TABLE sign_in_links RENAME TO gone")
    await scheduler._tick(jobs["forget"])
    assert "forget" in await broken(bank, "sweeps", stops=False)
    await sql(bank, "ALTER TABLE gone RENAME TO sign_in_links")
    await scheduler._tick(jobs["forget"])
    await healthy(bank)
    at, when = scheduler._succeeded["expire_reviews"]  # one that hangs reports nothing
    scheduler._succeeded["expire_reviews"] = (at - 3 * 3_600 - 61, when)
    assert "expire_reviews" in await broken(bank, "sweeps", stops=False)
    await scheduler._tick(jobs["expire_reviews"])
    await healthy(bank)
    assert await failing(bank, "watch") == "0.0"
    usual, bank.service.health._patience_s = bank.service.health._patience_s, -1
    assert await failing(bank, "watch") == "1.0"
    bank.service.health._patience_s = usual


async def test_a_message_that_does_not_leave_is_a_warning(bank: Bank) -> None:
    outbox, later = table(OutboxRow), bank.clock() + timedelta(days=2)
    await bank.service.db.write(lambda tx: enqueue(tx, "review_opened", {}))
    await write(bank, update(outbox).values(state="waiting", next_at=later))
    await healthy(bank)  # a message may wait for a while
    bank.clock.pass_(seconds=901)
    assert "1 messages wait" in await broken(bank, "outbox", stops=False)
    await write(bank, update(outbox).values(state="dead"))
    assert "given up" in await broken(bank, "outbox", stops=False)
    await write(bank, delete(outbox))
    await healthy(bank)


async def test_an_unreachable_provider_is_a_warning(tmp_path: Path, folder: Payments) -> None:
    provider = {"name": "corp", "title": "Corp", "issuer": "http://127.0.0.1:9", "client_id": "countersign",
                "client_secret": "s"}  # fmt: skip
    async with running(tmp_path / "data", folder.path, providers=[provider]) as own:
        assert (await own.http.get("/sign-in/corp")).status_code == 503
        assert "127.0.0.1 does not answer" in await broken(own, "issuers", stops=False)


async def test_a_watch_that_does_not_come_round_stops_it() -> None:
    health = Health(lambda: datetime(2026, 1, 1, tzinfo=UTC), patience_s=0.05)
    assert health.findings() == []
    await asyncio.sleep(0.1)
    assert [(one.check, one.stops) for one in health.findings()] == [("watch", True)]
    health.looked()
    assert health.findings() == []
