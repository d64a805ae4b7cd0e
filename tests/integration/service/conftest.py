"""A running service for each test; when it is over, its audit log must match what happened (I-8)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.log_check import faults_of_log
from tests.fakes.payments import Payments
from tests.fakes.receivers import Receiver
from tests.fakes.vault import Vault
from tests.fakes.world import Agent, Clock, Visitor, World, running
from tests.integration.service.engines import SQLITE_IN_SHORT, database_on
from tests.integration.service.slack_links import Workspace, with_slack
from tests.integration.service.together.bank import Bank, serving
from tests.unit.storage.databases import migrated_template, postgres_server

__all__ = ["migrated_template", "postgres_server"]


@pytest.fixture
def engine() -> str:
    """Which engine a test runs on; a file that is about both overrides this one."""
    return "sqlite"


@pytest.fixture
def database(request: pytest.FixtureRequest, engine: str) -> Iterator[dict[str, str]]:
    """The settings of a fresh database on that engine."""
    with database_on(request, engine) as settings:
        yield settings


@pytest.fixture
async def world(tmp_path: Path, database: dict[str, str]) -> AsyncIterator[World]:
    """The real service over the shipped bundle."""
    async with running(tmp_path / "data", **database) as started:
        yield started
        assert await started.service.db.read(faults_of_log) == []


@pytest.fixture
async def desk(world: World) -> Agent:
    """The support desk's agent."""
    return await world.agent()


@pytest.fixture
def folder(tmp_path: Path) -> Payments:
    """The bundle of ``bank``."""
    return Payments(tmp_path / "bundle")


@pytest.fixture
def settings() -> dict[str, Any]:
    """The settings in which the service of a file differs."""
    return {}


@pytest.fixture
def clock() -> Clock:
    """The clock of ``bank``."""
    return Clock()


@pytest.fixture
async def own_bank(
    tmp_path: Path, folder: Payments, clock: Clock, settings: dict[str, Any], database: dict[str, str]
) -> AsyncIterator[Bank]:
    """The real service over ``folder``, whose rules the test may change."""
    async with serving(tmp_path / "data", folder, clock=clock, **database, **settings) as started:
        yield started


@pytest.fixture
def bank(own_bank: Bank) -> Bank:
    """The service of a test: its own here, one for each file in ``together``."""
    return own_bank


@pytest.fixture
async def replicas(
    tmp_path: Path, folder: Payments, clock: Clock, database: dict[str, str]
) -> AsyncIterator[list[World]]:
    """The service, twice over one database where the engine allows it; at the end its log must match (I-8)."""
    async with AsyncExitStack() as stack:
        some = [running(tmp_path / f"data-{n}", folder.path, clock=clock, **database) for n in range(2)]
        started = [await stack.enter_async_context(one) for one in some[: 2 if database else 1]]
        yield started
        assert await started[0].service.db.read(faults_of_log) == []


@pytest.fixture
async def robot(bank: Bank) -> Agent:
    """The agent that pays."""
    bank.robot = await bank.agent("robot")
    return bank.robot


@pytest.fixture
async def maya(bank: Bank) -> Visitor:
    """Somebody of finance, signed in."""
    bank.maya = await bank.person("maya")
    return bank.maya


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver of webhooks."""
    with Receiver() as started:
        yield started


@pytest.fixture(scope="module", params=SQLITE_IN_SHORT)
async def slack_of_all(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """One service with a Slack app for all tests of a file."""
    home = tmp_path_factory.mktemp("slack")
    with database_on(request, request.param) as database:
        async with with_slack(home, Payments(home / "bundle").path, database) as started:
            yield started


@pytest.fixture
async def here(slack_of_all: World) -> AsyncIterator[Workspace]:
    """Its workspace, where no account is linked."""
    yield await Workspace(slack_of_all).emptied()
    slack_of_all.clock.go_on()


@pytest.fixture(params=SQLITE_IN_SHORT)
def vault(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Vault]:
    """A deployment that is not running yet."""
    bundle = Payments(tmp_path / "bundle").path
    server = template = None
    if request.param == "postgresql":
        server, template = map(request.getfixturevalue, ("postgres_server", "migrated_template"))
    with Vault.opened(tmp_path / "data", bundle, server, template) as opened:
        yield opened
