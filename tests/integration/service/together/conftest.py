"""One service for each file, because starting it is most of the cost of a test.

Each test has its own agent, and policies it changed are restored after it. Assertions about tasks, votes and attempts
are about its own agent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.fakes.payments import Payments
from tests.fakes.world import Agent, Visitor
from tests.integration.service.engines import ENGINES, database_on
from tests.integration.service.together.bank import Bank, serving

# These run on both engines in the short suite; everything else on PostgreSQL is for the long one.
_RACES = {
    "test_sixteen_redeemers_at_once_get_exactly_one_receipt",
    "test_ten_browsers_of_one_person_at_once_are_one_person",
    "test_one_of_two_concurrent_votes_wins",
    "test_concurrent_accept_vote_withdrawal_and_rerun_have_one_outcome",
}

_HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most of PostgreSQL to the long suite."""
    for item in items:
        if item.path.parent == _HERE and "postgresql" in item.name and item.originalname not in _RACES:
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="module", params=ENGINES)
def database_of_all(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """The database settings for a file's tests, on each engine."""
    with database_on(request, request.param) as settings:
        yield settings


@pytest.fixture(scope="module")
async def bank_of_all(
    tmp_path_factory: pytest.TempPathFactory, database_of_all: dict[str, str]
) -> AsyncIterator[Bank]:
    """The service for a file's tests; at the end its audit log must match what happened (I-8)."""
    folder = Payments(tmp_path_factory.mktemp("together") / "bundle")
    data = tmp_path_factory.mktemp("together") / "data"
    async with serving(data, folder, **database_of_all) as started:
        yield started


@pytest.fixture
async def bank(bank_of_all: Bank) -> AsyncIterator[Bank]:
    """The service under the default policies, a fresh agent, and the four people, signed in."""
    await bank_of_all.fresh()
    await bank_of_all.sign_in()
    yield bank_of_all
    bank_of_all.clock.go_on()
    if bank_of_all.folder.touched:
        bank_of_all.folder.restore()
        await bank_of_all.activate()


@pytest.fixture
def robot(bank: Bank) -> Agent:
    """The fresh agent of a test."""
    return bank.robot


@pytest.fixture
def maya(bank: Bank) -> Visitor:
    """A member of finance, signed in."""
    return bank.maya
