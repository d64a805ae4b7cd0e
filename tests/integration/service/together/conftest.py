"""One service for a whole file, which is most of what such a test costs.

Each test has an agent of its own, and rules it has changed are put back after it. What a test here says about tasks,
votes or attempts, it says about its own agent's.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.fakes.log_check import faults_of_log
from tests.fakes.payments import Payments
from tests.fakes.world import Agent, World, running
from tests.integration.service.engines import ENGINES, database_on

# These run on both engines in the fast suite, the others on PostgreSQL in the long one: what they are about (names,
# words, who counts) is decided before the database is asked.
_RACY = {"test_redemption", "test_revisions", "test_text", "test_votes"}

_HERE = Path(__file__).parent
_names = (f"robot-{n}" for n in itertools.count(1))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most of PostgreSQL to the long suite."""
    for item in items:
        if item.path.parent == _HERE and item.path.stem not in _RACY and "postgresql" in item.name:
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="module", params=ENGINES)
def database_of_all(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """The settings of a database for a file's tests, on each engine."""
    with database_on(request, request.param) as settings:
        yield settings


@pytest.fixture(scope="module")
def folder_of_all(tmp_path_factory: pytest.TempPathFactory) -> Payments:
    """The bundle of a file's tests."""
    return Payments(tmp_path_factory.mktemp("together") / "bundle")


@pytest.fixture(scope="module")
async def bank_of_all(
    tmp_path_factory: pytest.TempPathFactory, folder_of_all: Payments, database_of_all: dict[str, str]
) -> AsyncIterator[World]:
    """The service of a file's tests; at the end its log must tell exactly what happened (I-8)."""
    data = tmp_path_factory.mktemp("together") / "data"
    async with running(data, folder_of_all.path, **database_of_all) as started:
        yield started
        assert await started.service.db.read(faults_of_log) == []


@pytest.fixture
def folder(folder_of_all: Payments) -> Payments:
    """A bundle whose rules the test may change."""
    return folder_of_all


@pytest.fixture
async def bank(bank_of_all: World, folder: Payments) -> AsyncIterator[World]:
    """The service, under the usual rules."""
    yield bank_of_all
    bank_of_all.clock.go_on()
    if folder.touched:
        folder.restore()
        await bank_of_all.activate()


@pytest.fixture
async def robot(bank: World) -> Agent:
    """An agent of the test's own."""
    return await bank.agent(next(_names))
