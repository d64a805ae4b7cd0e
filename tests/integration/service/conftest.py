"""A running service for each test; when it is over, its log must tell exactly what happened (I-8)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.log_check import faults_of_log
from tests.fakes.payments import Payments
from tests.fakes.world import Agent, World, running


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """The real service over the shipped bundle, on SQLite."""
    async with running(tmp_path / "data") as started:
        yield started
        assert await started.service.db.read(faults_of_log) == []


@pytest.fixture
async def desk(world: World) -> Agent:
    """The support desk's agent."""
    return await world.agent()


@pytest.fixture
def folder(tmp_path: Path) -> Payments:
    """A bundle whose rules the test may change."""
    return Payments(tmp_path / "bundle")


@pytest.fixture
async def bank(tmp_path: Path, folder: Payments) -> AsyncIterator[World]:
    """The real service over ``folder``."""
    async with running(tmp_path / "data", folder.path) as started:
        yield started
        assert await started.service.db.read(faults_of_log) == []


@pytest.fixture
async def robot(bank: World) -> Agent:
    """The agent that pays."""
    return await bank.agent("robot")
