"""An office for all tests of a file, cleared before each; and for those who need it one of their own.

What a test moves in the rules or in Slack is put back; the clock runs on from wherever the test before left it. A test
that begins another way, restarts or lets days go by opens an office of its own.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from policy_service.channels.slack import client, send_queue, workers
from policy_service.channels.slack.send_queue import SEND_INTERVAL
from policy_service.workflow.slack import enqueue
from tests.counterparts.slack import SlackServer
from tests.fakes.payments import Payments
from tests.fakes.slack_faults import SlackFaults, failing_slack
from tests.integration.service.conftest import database, engine
from tests.integration.service.engines import database_on
from tests.integration.slack.office import Office, opened
from tests.unit.storage.databases import migrated_template, postgres_server

__all__ = ["database", "engine", "migrated_template", "postgres_server"]

SlackAndFaults = tuple[SlackServer, SlackFaults]
OpenOffice = Callable[..., AbstractAsyncContextManager[Office]]
_names = (f"robot-{n}" for n in itertools.count(2))


@pytest.fixture(scope="module", autouse=True)
def _looks_often() -> Iterator[None]:
    """Tests move the clock, so they wait neither for the next poll nor between two messages (`at_its_pace`)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "_POLL_S", 0.06)
        patch.setattr(send_queue, "SEND_INTERVAL", timedelta())
        yield


@pytest.fixture
def at_its_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two messages in one place it waits as long as it does."""
    monkeypatch.setattr(send_queue, "SEND_INTERVAL", SEND_INTERVAL)


@pytest.fixture
def each_press_is_answered() -> Iterator[None]:
    """However fast one person presses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(enqueue, "MAX_PENDING_EPHEMERALS", 1_000)
        yield


@pytest.fixture(scope="session")
def slack_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlackAndFaults]:
    with failing_slack(tmp_path_factory.mktemp("slack")) as both:
        yield both


@pytest.fixture(scope="module")
def how_it_opens() -> dict[str, Any]:
    """More for ``opened``, where a file's office is to be another than the usual one."""
    return {}


POSTGRES = pytest.param("postgresql", marks=[pytest.mark.long, pytest.mark.xdist_group("postgresql")])


@pytest.fixture(scope="module", params=["sqlite", POSTGRES])
def database_of_all(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """The settings of a database for a file's tests, on each engine."""
    with database_on(request, request.param) as settings:
        yield settings


@pytest.fixture(scope="module")
async def office_of_all(
    tmp_path_factory: pytest.TempPathFactory,
    slack_of_all: SlackAndFaults,
    database_of_all: dict[str, str],
    how_it_opens: dict[str, Any],
) -> AsyncIterator[tuple[Office, Payments]]:
    """The office of a file's tests, and its rules."""
    folder, (slack, faults) = tmp_path_factory.mktemp("office"), slack_of_all
    rules = Payments(folder / "bundle")
    async with opened(folder, slack, faults, rules.path, **database_of_all, **how_it_opens) as started:
        with pytest.MonkeyPatch.context() as patch:
            # how long an account is known is a matter of the office's clock
            clock = SimpleNamespace(monotonic=lambda: started.world.clock().timestamp())
            patch.setattr(client, "time", clock)
            yield started, rules


@pytest.fixture
async def office(office_of_all: tuple[Office, Payments]) -> AsyncIterator[Office]:
    """A new office: no linked account, empty channels, and a new agent."""
    started, rules = office_of_all
    await started.begin()
    started.robot = await started.world.agent(next(_names))
    yield started
    started.world.clock.go_on()
    await started.clear()
    for txn in started.robot.txns:  # a later change of policies must not affect this test's reviews
        await started.robot.send("POST", f"/v1/transactions/{txn}/withdraw", {})
    if rules.touched:
        rules.restore()
        await started.world.activate()


@pytest.fixture
def bundle(office_of_all: tuple[Office, Payments]) -> Payments:
    """The rules of the office, which a test may change."""
    return office_of_all[1]


@pytest.fixture
def slack_and_faults(slack_of_all: SlackAndFaults) -> SlackAndFaults:
    """Slack as on its first day, and a proxy that lets everything through."""
    slack, faults = slack_of_all
    asyncio.run(slack.reset())
    faults.forget()
    return slack, faults


@pytest.fixture
def own_bundle(tmp_path: Path) -> Payments:
    """The rules of an office of the test's own."""
    return Payments(tmp_path / "bundle")


@pytest.fixture
def open_office(
    tmp_path: Path, slack_and_faults: SlackAndFaults, own_bundle: Payments, database: dict[str, str]
) -> OpenOffice:
    """Opens an office of the test's own; again, it is the same one after a restart."""
    return partial(opened, tmp_path, *slack_and_faults, own_bundle.path, **database)


@pytest.fixture
async def own_office(open_office: OpenOffice) -> AsyncIterator[Office]:
    async with open_office() as started:
        yield started
