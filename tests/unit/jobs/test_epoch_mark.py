"""The epoch mark follows the audit log, and a database that lacks something does not start."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import text

from policy_service.audit.log import Sequencer, append
from policy_service.errors import StartError
from policy_service.jobs.epoch_mark import EpochMarkWriter
from policy_service.storage.database import Database
from policy_service.tokens.epoch import Mark, read_mark, write_mark
from policy_service.workflow.revocation.restore import reconcile_epoch
from tests.fakes.patience import until


async def log_lines(db: Database, count: int) -> None:
    for _ in range(count):
        await db.write(lambda tx: append(tx, "x", actor="system", body={}))
    await Sequencer(db, holder="a").number()


def test_the_first_start_makes_both_and_the_next_finds_them(store: Database, tmp_path: Path) -> None:
    assert reconcile_epoch(store, tmp_path / "keys") == Mark(1, 0)
    assert reconcile_epoch(store, tmp_path / "keys") == Mark(1, 0)
    assert read_mark(tmp_path / "keys") == Mark(1, 0)


async def test_a_mark_left_behind_by_a_crash_catches_up_at_the_start(store: Database, tmp_path: Path) -> None:
    reconcile_epoch(store, tmp_path)
    await log_lines(store, 3)
    assert reconcile_epoch(store, tmp_path) == Mark(1, 3)
    assert read_mark(tmp_path) == Mark(1, 3)


async def test_a_database_from_a_backup_does_not_start(store: Database, tmp_path: Path) -> None:
    """L6. Neither does a new database with old keys, nor keys without their mark on a database that has a log: a
    replica with copied keys but no mark could not detect an old database.
    """
    write_mark(tmp_path, Mark(1, 1))
    with pytest.raises(StartError):
        reconcile_epoch(store, tmp_path)
    await log_lines(store, 3)
    with pytest.raises(StartError, match=r"copy epoch\.json"):
        reconcile_epoch(store, tmp_path / "copied")
    write_mark(tmp_path, Mark(1, 4))
    with pytest.raises(StartError, match="policy-service restored --dry-run"):
        reconcile_epoch(store, tmp_path)
    assert read_mark(tmp_path) == Mark(1, 4), "refusing does not lower the mark"


def test_a_database_of_another_epoch_does_not_start(store: Database, tmp_path: Path) -> None:
    reconcile_epoch(store, tmp_path)
    later = text("UPDATE meta SET value = '2' WHERE name = 'epoch'")
    store.write_sync(lambda tx: tx.conn.execute(later).rowcount)
    with pytest.raises(StartError):
        reconcile_epoch(store, tmp_path)


@asynccontextmanager
async def running(mark: EpochMarkWriter) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(mark.run())
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_mark_follows_the_log_and_never_decreases(tmp_path: Path) -> None:
    mark = EpochMarkWriter(tmp_path, Mark(3, 5))
    async with running(mark):
        mark.reached(7)
        await until(lambda: read_mark(tmp_path) == Mark(3, 7))
        mark.reached(6)
        mark.reached(9)
        await until(lambda: read_mark(tmp_path) == Mark(3, 9))
    assert mark.current_epoch() == 3


async def test_the_final_write_is_current(tmp_path: Path) -> None:
    mark = EpochMarkWriter(tmp_path, Mark(1, 5))
    mark.reached(6)
    await mark.write()
    assert read_mark(tmp_path) == Mark(1, 6)


async def test_a_mark_is_retried_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_folder: Path, _mark: Mark) -> None:
        raise OSError(28, "No space left on device")

    mark = EpochMarkWriter(tmp_path, Mark(1, 5))
    async with running(mark) as task:
        with monkeypatch.context() as patch:
            patch.setattr("policy_service.jobs.epoch_mark.write_mark", full)
            mark.reached(6)
            await until(lambda: mark.signal.wrong is not None)
        await until(lambda: read_mark(tmp_path) == Mark(1, 6) and not mark.signal.wrong)
        assert not task.done()


async def test_the_last_write_waits_for_the_one_a_cancelled_run_left_in_its_thread(tmp_path: Path) -> None:
    mark = EpochMarkWriter(tmp_path, Mark(1, 0))
    for index in range(1, 60):
        async with running(mark):
            mark.reached(index)
            await asyncio.sleep(0.0005 * (index % 7))
        await mark.write()
        assert read_mark(tmp_path) == Mark(1, index)
