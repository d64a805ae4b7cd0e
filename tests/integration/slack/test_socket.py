"""Socket Mode that cannot be connected: it is said, tried anew, and works once Slack takes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from policy_service.channels.slack import socket_mode
from tests.counterparts.slack import SlackServer
from tests.fakes.slack_faults import CutBefore, Fault, Hang, NotOk, SlackFaults, Status
from tests.integration.slack.conftest import OpenOffice
from tests.integration.slack.office import Office, until
from tests.integration.slack.test_outage import finding

pytestmark = pytest.mark.anyio

OPEN = "apps.connections.open"


CODES = {NotOk("invalid_auth"): "invalid_auth", CutBefore(): "connection_lost", Hang(20): "no_answer"}


@pytest.fixture(
    params=[
        NotOk("invalid_auth"),
        *(pytest.param(one, marks=pytest.mark.long) for one in (CutBefore(), Hang(20))),
    ],
    ids=str,
)
async def office(
    request: pytest.FixtureRequest,
    open_office: OpenOffice,
    slack_and_faults: tuple[SlackServer, SlackFaults],
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Office]:
    """A service that listens by Socket Mode alone, and whose Slack connects nobody from the start."""
    _, faults = slack_and_faults
    away: Fault = request.param
    faults.on.always(OPEN, away)
    monkeypatch.setattr(socket_mode, "CONNECT_S", 0.3)
    with capture_logs() as told:
        async with open_office(ways=("app",)) as started:
            yield started
    kinds = [(one["event"], one.get("error")) for one in told if one["event"].startswith("slack_socket")]
    assert kinds == [("slack_socket_failed", CODES[away]), ("slack_socket_connected", None)]


async def test_a_connection_that_does_not_come_is_said_and_is_well_once_it_comes(
    office: Office, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    code = CODES[request.node.callspec.params["office"]]

    async def said() -> str | None:
        told = await finding(office)
        return None if told is None else str(told["wrong"])

    assert f"Socket Mode cannot be connected ({code})" in await until(said)

    async def asked_again() -> bool | None:
        return [call.method for call in office.faults.calls].count(OPEN) > 2 or None

    await until(asked_again)
    office.faults.on.lift()

    async def well() -> bool | None:
        return (await office.slack.is_connected() and await finding(office) is None) or None

    await until(well, 30.0)


class Kept(socket_mode._Client):
    """A client that a test finds again."""

    newest: Kept

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        Kept.newest = self


async def cut() -> None:
    """The connection that is up is closed under the service."""
    assert Kept.newest.current_session is not None
    await Kept.newest.current_session.close()


@pytest.fixture
async def connected(open_office: OpenOffice, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Office]:
    """A service whose connection is up, and which looks at it often."""
    monkeypatch.setattr(socket_mode, "_LOOK_S", 0.05)
    monkeypatch.setattr(socket_mode, "_Client", Kept)
    async with open_office(ways=("app",)) as started:

        async def up() -> bool | None:
            return await started.slack.is_connected() or None

        await until(up)
        yield started


async def test_what_slack_asks_to_wait_is_waited_before_it_is_asked_again(
    connected: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the SDK or we were about to connect anew."""
    slept: list[float] = []
    kept = asyncio.sleep

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await kept(min(seconds, 0.05))

    monkeypatch.setattr(socket_mode.asyncio, "sleep", sleep)
    connected.faults.calls.clear()
    connected.faults.on.next(OPEN, Status(429, 77), Status(429, 78))
    await cut()

    async def waited() -> bool | None:
        return ({77.0, 78.0} <= set(slept) and await connected.slack.is_connected()) or None

    await until(waited, 40.0)
    assert [call.method for call in connected.faults.calls].count(OPEN) == 3
