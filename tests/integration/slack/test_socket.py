"""Socket Mode that cannot be connected: it is said, tried anew, and works once Slack takes it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from policy_service.channels.slack import socket_mode
from tests.counterparts.slack import SlackServer
from tests.fakes.payments import Payments
from tests.fakes.slack_faults import CutBefore, Fault, Hang, NotOk, SlackFaults, failing_slack
from tests.integration.slack.conftest import Office, opened, until
from tests.integration.slack.test_outage import finding

pytestmark = pytest.mark.anyio

OPEN = "apps.connections.open"


@pytest.fixture(scope="module")
def slack_and_faults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SlackServer, SlackFaults]]:
    with failing_slack(tmp_path_factory.mktemp("slack")) as both:
        yield both


@pytest.fixture(params=[NotOk("invalid_auth"), CutBefore(), Hang(20)], ids=str)
async def office(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    slack_and_faults: tuple[SlackServer, SlackFaults],
    bundle: Payments,
    database: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Office]:
    """A service that listens by Socket Mode alone, and whose Slack connects nobody from the start."""
    slack, faults = slack_and_faults
    await slack.reset()
    faults.forget()
    away: Fault = request.param
    faults.on.always(OPEN, away)
    monkeypatch.setattr(socket_mode, "CONNECT_S", 0.3)
    async with opened(tmp_path, slack, faults, bundle.path, ways=("app",), **database) as started:
        yield started


async def test_a_connection_that_does_not_come_is_said_and_is_well_once_it_comes(office: Office) -> None:
    async def said() -> str | None:
        told = await finding(office)
        return None if told is None else str(told["wrong"])

    assert "Socket Mode cannot be connected" in await until(said)

    async def asked_again() -> bool | None:
        return [call.method for call in office.faults.calls].count(OPEN) > 1 or None

    await until(asked_again)
    office.faults.on.lift()

    async def well() -> bool | None:
        return (await office.slack.is_connected() and await finding(office) is None) or None

    await until(well, 30.0)
