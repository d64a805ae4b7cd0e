"""A working day before the Slack of the tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser

from tests.counterparts.slack import SlackServer
from tests.e2e.slack.office import HTTP, Workday, workday
from tests.fakes.slack_faults import SlackFaults, failing_slack


@pytest.fixture(scope="module")
def way(request: pytest.FixtureRequest) -> str:
    """How Slack tells the service of things: by HTTP where a module does not say otherwise."""
    return str(getattr(request, "param", HTTP))


@pytest.fixture(scope="module")
def a_slack(way: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SlackServer, SlackFaults]]:
    mode = "events" if way == HTTP else "socket"
    with failing_slack(tmp_path_factory.mktemp("slack"), mode=mode) as both:
        yield both


@pytest.fixture
async def day(
    tmp_path: Path, a_slack: tuple[SlackServer, SlackFaults], way: str, browser: Browser
) -> AsyncIterator[Workday]:
    async with workday(tmp_path, *a_slack, browser, ("signing",) if way == HTTP else ("app",)) as started:
        yield started
