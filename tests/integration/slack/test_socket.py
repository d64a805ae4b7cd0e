"""Socket Mode that cannot be connected: it is said, tried anew, and works once Slack takes it."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from policy_service.channels.slack import socket_mode
from tests.counterparts.slack import SlackServer
from tests.fakes.slack_faults import CutBefore, Fault, Hang, NotOk, SlackFaults, Status
from tests.integration.slack.conftest import OpenOffice
from tests.integration.slack.office import Office, until

pytestmark = pytest.mark.anyio

OPEN = "apps.connections.open"
AWAY = [
    (NotOk("invalid_auth"), "invalid_auth"),
    pytest.param(CutBefore(), "connection_lost", marks=pytest.mark.long),
    pytest.param(Hang(20), "no_answer", marks=pytest.mark.long),
]


async def connected(office: Office) -> None:
    """Wait until Slack has a connection, and the service says that all is well."""

    async def well() -> bool:
        return await office.slack.is_connected() and await office.finding() == ""

    await until(well, 30.0)


@pytest.mark.parametrize(("away", "code"), AWAY)
async def test_a_connection_that_does_not_come_is_said_and_is_well_once_it_comes(
    open_office: OpenOffice,
    slack_and_faults: tuple[SlackServer, SlackFaults],
    monkeypatch: pytest.MonkeyPatch,
    away: Fault,
    code: str,
) -> None:
    """A service that listens by Socket Mode alone, and whose Slack connects nobody from the start."""
    slack_and_faults[1].on.always(OPEN, away)
    monkeypatch.setattr(socket_mode, "CONNECT_S", 0.3)
    monkeypatch.setattr(socket_mode, "_LONGEST_PAUSE_S", 0.1)
    with capture_logs() as told:
        async with open_office(ways=("app",)) as office:

            async def asked_again() -> bool:
                return len(office.calls(OPEN)) > 2

            assert f"Socket Mode cannot be connected ({code})" in await until(office.finding)
            await until(asked_again)
            office.faults.on.lift()
            await connected(office)
    kinds = [(one["event"], one.get("error")) for one in told if one["event"].startswith("slack_socket")]
    assert kinds == [("slack_socket_failed", code), ("slack_socket_connected", None)]


async def test_what_slack_asks_to_wait_is_waited_before_it_is_asked_again(
    open_office: OpenOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the SDK or we were about to connect anew."""
    slept: list[float] = []
    clients: list[socket_mode._Client] = []
    kept = asyncio.sleep

    class Kept(socket_mode._Client):
        """A client that the test finds again."""

        async def connect(self) -> None:
            clients.append(self)
            await super().connect()  # type: ignore[no-untyped-call]

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await kept(min(seconds, 0.05))

    monkeypatch.setattr(socket_mode, "_LOOK_S", 0.05)
    monkeypatch.setattr(socket_mode, "_Client", Kept)
    async with open_office(ways=("app",)) as office:
        await connected(office)
        monkeypatch.setattr(socket_mode.asyncio, "sleep", sleep)
        office.faults.calls.clear()
        office.faults.on.next(OPEN, Status(429, 77), Status(429, 78))
        session = clients[-1].current_session  # the connection that is up is closed under the service
        assert session is not None
        await session.close()

        async def waited() -> bool:
            return {77.0, 78.0} <= set(slept) and await office.slack.is_connected()

        await until(waited, 40.0)
        assert len(office.calls(OPEN)) == 3
