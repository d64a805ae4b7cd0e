"""A start that fails half-way leaves nothing half open: no task, no timer, no lock, no database."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from policy_service.app import Service, create_app
from policy_service.errors import StorageUnavailableError
from policy_service.settings import Settings, load_settings
from tests.fakes.payments import Payments
from tests.fakes.world import fresh_data, running

pytestmark = pytest.mark.anyio


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
