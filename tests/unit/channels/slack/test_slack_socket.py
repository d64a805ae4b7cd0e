"""What comes through the socket: acknowledged, counted, finished, and ended with the service."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from slack_sdk.socket_mode.request import SocketModeRequest
from structlog.testing import capture_logs

from examples.local_service import free_port
from policy_service import metrics
from policy_service.channels.slack import transports
from policy_service.channels.slack.client import SlackCallError
from policy_service.channels.slack.dispatcher import FollowUp, SlackResponse
from policy_service.channels.slack.send_queue import SendStatus
from policy_service.channels.slack.transports import SocketMode
from policy_service.health import Health
from policy_service.slack import SlackApp

COMMAND = {
    "command": "/countersign", "text": "", "team_id": "T0", "channel_id": "C0", "user_id": "U0", "api_app_id": "A0",
    "trigger_id": "1.trigger",
}  # fmt: skip
GIVEN = SocketModeRequest(type="slash_commands", envelope_id="e1", payload=COMMAND)


class Client:
    """A fake of the SDK's client."""

    def __init__(
        self, *, heard: bool = True, fault: Exception | None = None, rest_s: float = 0.0, opens: bool = True
    ) -> None:
        self.heard, self.closed, self.opens = heard, False, opens
        self.said: list[str] = []
        self.fault, self.rest_s, self.wss_uri = fault, rest_s, ""

    async def issue_new_wss_url(self) -> str:
        if not self.opens and self.fault is not None:
            raise self.fault
        return "wss://slack.example"

    async def send_socket_mode_response(self, response: Any) -> None:
        if not self.heard:
            raise ConnectionResetError
        self.said.append(response.envelope_id)

    async def connect(self) -> None:
        """It is connected."""

    async def is_connected(self) -> bool:
        return True

    async def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[Any]]:
    """What is logged, wherever an earlier test has sent the log of the process."""
    with capture_logs() as logged:
        yield logged


def socket(after: FollowUp | None = None, api_url: str = "") -> SocketMode:
    app = SlackApp.model_construct(team_id="T0", app_id="A0", api_url=api_url, timeout_s=1)

    async def take(_delivery: object) -> SlackResponse:
        return SlackResponse(after=after)

    desk: Any = SimpleNamespace(take=take)
    return SocketMode(app, "xapp-1", desk, Health(lambda: datetime.now(UTC), 60.0))


async def given_to(mode: SocketMode, client: Client) -> None:
    """Deliver it as the SDK does, and wait until nothing is under way."""
    await mode._listen(cast(Any, client), GIVEN)
    await asyncio.gather(*mode._under_way)


def taken() -> float:
    labels = {"way": "socket", "result": "taken"}
    return metrics.REGISTRY.get_sample_value("countersign_slack_deliveries_total", labels) or 0.0


@pytest.mark.parametrize("heard", [True, False])
async def test_acknowledged_payloads_are_counted_and_finished(heard: bool) -> None:
    done: list[str] = []

    async def after() -> None:
        done.append("opened")

    before, client = taken(), Client(heard=heard)
    await given_to(socket(after), client)
    assert (client.said, done, taken() - before) == (["e1"] if heard else [], ["opened"], 1 if heard else 0)


async def test_a_failing_follow_up_is_logged(logged: list[Any]) -> None:
    async def after() -> None:
        raise RuntimeError("the database is away")

    await given_to(socket(after), Client())
    assert [one["event"] for one in logged] == ["slack_afterwards_failed"]


async def test_work_in_progress_ends_with_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def after() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    mode, client = socket(after), Client()
    monkeypatch.setattr("policy_service.channels.slack.transports._SHUTDOWN_S", 0.05)
    monkeypatch.setattr(mode, "_client", lambda: client)
    running = asyncio.create_task(mode.run())
    await mode._listen(cast(Any, client), GIVEN)
    await asyncio.wait_for(began.wait(), 5)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert client.closed
    assert ended.is_set()


async def test_the_sdk_that_cannot_connect_prints_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It would print the whole trace each time it tries."""
    client = socket(api_url=f"http://127.0.0.1:{free_port()}/api/")._client()
    client.ping_interval = 0.02
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await client.connect()  # type: ignore[no-untyped-call]
    await client.close()  # type: ignore[no-untyped-call]
    assert caplog.records == []
    assert client.fault is not None and client.fault.error == "not_reachable"


async def test_no_request_is_sent_before_retry_after(monkeypatch: pytest.MonkeyPatch) -> None:
    client, asked = socket()._client(), []

    async def opens(**_: object) -> None:
        asked.append("again")
        raise SlackCallError(SendStatus.RATE_LIMITED, "ratelimited")

    monkeypatch.setattr(client.web_client, "apps_connections_open", opens)
    client.fault = SlackCallError(SendStatus.RATE_LIMITED, "ratelimited", rest=timedelta(hours=5))
    with pytest.raises(SlackCallError):
        await client.issue_new_wss_url()
    await client.close()  # type: ignore[no-untyped-call]
    assert (asked, client.rest_s) == ([], 3_600)


FAILURES: list[tuple[Client, float, str]] = [
    (Client(fault=SlackCallError(SendStatus.RATE_LIMITED, "ratelimited"), rest_s=77.0), 77.0, "ratelimited"),
    (Client(fault=TimeoutError(), opens=False), 2.0, "no_answer"),
]


@pytest.mark.parametrize(("client", "wait_s", "code"), FAILURES, ids=["while connected", "while connecting"])
async def test_a_failed_connection_is_logged_and_opened_again_when_slack_permits_it(
    monkeypatch: pytest.MonkeyPatch, logged: list[Any], client: Client, wait_s: float, code: str
) -> None:
    async def sleep(seconds: float) -> None:
        if seconds != transports._CHECK_INTERVAL_S:
            raise RuntimeError(str(seconds))

    mode = socket()
    monkeypatch.setattr(mode, "_client", lambda: client)
    monkeypatch.setattr(transports.asyncio, "sleep", sleep)
    with pytest.raises(RuntimeError, match=f"^{wait_s}$"):
        await mode.run()
    failures = [one["error"] for one in logged if one["event"] == "slack_socket_failed"]
    assert (failures, client.closed) == ([code], True)
