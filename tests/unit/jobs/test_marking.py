"""The mark follows the log, and a database that has forgotten something does not start."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import text

from policy_service.audit.log import append
from policy_service.audit.sequencer import Sequencer
from policy_service.errors import StartError
from policy_service.jobs.marking import EpochMark, settle_epoch
from policy_service.storage.database import Database
from policy_service.tokens.epoch import Mark, read_mark, write_mark


async def log_lines(db: Database, count: int) -> None:
    for _ in range(count):
        await db.write(lambda tx: append(tx, "x", actor="system", body={}))
    await Sequencer(db, holder="a").number()


def test_the_first_start_makes_both_and_the_next_finds_them(store: Database, tmp_path: Path) -> None:
    assert settle_epoch(store, tmp_path / "keys") == Mark(1, 0)
    assert settle_epoch(store, tmp_path / "keys") == Mark(1, 0)
    assert read_mark(tmp_path / "keys") == Mark(1, 0)


@pytest.mark.anyio
async def test_a_mark_left_behind_by_a_crash_catches_up_at_the_start(store: Database, tmp_path: Path) -> None:
    settle_epoch(store, tmp_path)
    await log_lines(store, 3)
    assert settle_epoch(store, tmp_path) == Mark(1, 3)
    assert read_mark(tmp_path) == Mark(1, 3)


@pytest.mark.anyio
async def test_a_database_from_a_backup_does_not_start(store: Database, tmp_path: Path) -> None:
    """L6."""
    await log_lines(store, 3)
    write_mark(tmp_path, Mark(1, 4))
    with pytest.raises(StartError, match="policy-service restored --dry-run"):
        settle_epoch(store, tmp_path)
    assert read_mark(tmp_path) == Mark(1, 4), "refusing does not lower the mark"


@pytest.mark.anyio
async def test_keys_without_their_mark_do_not_start_on_a_database_that_has_a_log(
    store: Database, tmp_path: Path
) -> None:
    """A replica whose keys were copied without the mark could not tell an old database from the newest."""
    await log_lines(store, 3)
    with pytest.raises(StartError, match=r"copy epoch\.json"):
        settle_epoch(store, tmp_path)
    write_mark(tmp_path, Mark(1, 2))
    assert settle_epoch(store, tmp_path) == Mark(1, 3)


def test_a_new_database_beside_old_keys_does_not_start(store: Database, tmp_path: Path) -> None:
    write_mark(tmp_path, Mark(1, 1))
    with pytest.raises(StartError):
        settle_epoch(store, tmp_path)


def test_a_database_of_another_epoch_does_not_start(store: Database, tmp_path: Path) -> None:
    settle_epoch(store, tmp_path)
    store.write_sync(
        lambda tx: tx.conn.execute(text("UPDATE meta SET value = '2' WHERE name = 'epoch'")).rowcount
    )
    with pytest.raises(StartError):
        settle_epoch(store, tmp_path)


async def until_written(folder: Path, mark: Mark) -> None:
    async with asyncio.timeout(5):
        while read_mark(folder) != mark:  # noqa: ASYNC110  the file sets no event
            await asyncio.sleep(0.01)


@pytest.mark.anyio
async def test_the_mark_follows_and_never_goes_back(tmp_path: Path) -> None:
    mark = EpochMark(tmp_path, Mark(3, 5))
    task = asyncio.create_task(mark.run())
    mark.reached(7)
    await until_written(tmp_path, Mark(3, 7))
    mark.reached(6)
    mark.reached(9)
    await until_written(tmp_path, Mark(3, 9))
    assert mark.epoch == 3
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.mark.anyio
async def test_writing_at_the_end_brings_it_up_to_date(tmp_path: Path) -> None:
    mark = EpochMark(tmp_path, Mark(1, 5))
    mark.reached(6)
    await mark.write()
    assert read_mark(tmp_path) == Mark(1, 6)


@pytest.mark.anyio
async def test_a_mark_that_cannot_be_written_is_said_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_folder: Path, _mark: Mark) -> None:
        raise OSError(28, "No space left on device")

    mark = EpochMark(tmp_path, Mark(1, 5))
    monkeypatch.setattr("policy_service.jobs.marking.write_mark", full)
    task = asyncio.create_task(mark.run())
    mark.reached(6)
    async with asyncio.timeout(5):
        while not mark.signal.wrong:  # noqa: ASYNC110  nothing sets an event
            await asyncio.sleep(0.01)
    monkeypatch.undo()
    await until_written(tmp_path, Mark(1, 6))
    await asyncio.sleep(0.05)
    assert not mark.signal.wrong
    assert not task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.mark.anyio
async def test_the_last_write_waits_for_the_one_a_cancelled_run_left_in_its_thread(tmp_path: Path) -> None:
    mark = EpochMark(tmp_path, Mark(1, 0))
    for index in range(1, 60):
        task = asyncio.create_task(mark.run())
        mark.reached(index)
        await asyncio.sleep(0.0005 * (index % 7))
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await mark.write()
        assert read_mark(tmp_path) == Mark(1, index)
