"""The proxy before the Slack of the tests: each fault does what its name says, and no more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from slack_sdk.errors import SlackApiError
from slack_sdk.signature import SignatureVerifier
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.async_client import AsyncBaseSocketModeClient
from slack_sdk.socket_mode.request import SocketModeRequest
from slack_sdk.socket_mode.response import SocketModeResponse
from slack_sdk.web.async_client import AsyncWebClient

from tests.counterparts.slack import SlackServer
from tests.fakes.slack_deliveries import BothWays, Manner, Twice
from tests.fakes.slack_faults import (
    CutAfter,
    CutBefore,
    Fault,
    Garbled,
    Hang,
    NotOk,
    SlackFaults,
    Status,
    failing_slack,
)
from tests.fakes.slack_truth import FOREIGN_TEAM
from tests.integration.counterparts.receiver import Got, Receiver, receiving
from tests.integration.counterparts.test_slack import BUTTONS

pytestmark = [pytest.mark.anyio, pytest.mark.long]

METADATA = {"event_type": "review", "event_payload": {"review_id": "r-1"}}
POST = "chat.postMessage"


@dataclass
class Rig:
    """The server, the proxy on both sides of it, and the receiver behind the proxy."""

    slack: SlackServer
    faults: SlackFaults
    receiver: Receiver
    channel: str = "C0APPROVALS"
    dana: str = "U0DANA"
    sockets: int = 0

    def web(self, **more: Any) -> AsyncWebClient:
        return AsyncWebClient(token=self.slack.bot_token, base_url=self.faults.api_url, **more)

    async def posted(self, **more: Any) -> str:
        answer = await self.web().chat_postMessage(
            channel=self.channel, text="Refund", blocks=BUTTONS, **more
        )
        return str(answer["ts"])

    async def click(self, **more: Any) -> None:
        await self.slack.click(self.channel, await self.posted(), self.dana, "approve")


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


@pytest.fixture
def rig(tmp_path: Path, receiver: Receiver, request: pytest.FixtureRequest) -> Iterator[Rig]:
    with failing_slack(tmp_path, mode=getattr(request, "param", "events")) as (slack, faults):
        faults.deliveries.to(receiver.url)
        yield Rig(slack, faults, receiver)


SOCKET = pytest.mark.parametrize("rig", ["socket"], indirect=True)


def verifies(got: Got, secret: str) -> bool:
    return SignatureVerifier(secret).is_valid_request(got.body, dict(got.headers))


UNSEEN: dict[str, tuple[Fault, Any]] = {
    "a 429": (Status(429, retry_after=7), SlackApiError),
    "a 503": (Status(503), SlackApiError),
    "a revoked token": (NotOk("token_revoked"), SlackApiError),
    "an archived channel": (NotOk("is_archived"), SlackApiError),
    "a cut before": (CutBefore(), aiohttp.ServerDisconnectedError),
    "a long silence": (Hang(60), TimeoutError),
}
DONE: dict[str, tuple[Fault, Any]] = {
    "a cut after": (CutAfter(), aiohttp.ServerDisconnectedError),
    "a page of somebody else": (Garbled(), SlackApiError),
    "a long silence": (Hang(60, accepted=True), TimeoutError),
}


@pytest.mark.parametrize("case", UNSEEN)
async def test_slack_does_not_see(rig: Rig, case: str) -> None:
    fault, expected = UNSEEN[case]
    rig.faults.on.next(POST, fault)
    with pytest.raises(expected):
        await rig.web(timeout=1, retry_handlers=[]).chat_postMessage(channel=rig.channel, text="once")
    assert await rig.slack.messages(rig.channel) == []
    assert rig.faults.accepted(POST) == []
    assert [call.done for call in rig.faults.calls] == [repr(fault)]


@pytest.mark.parametrize("case", DONE)
async def test_slack_does_it_and_nobody_hears(rig: Rig, case: str) -> None:
    fault, expected = DONE[case]
    rig.faults.on.next(POST, fault)
    with pytest.raises(expected):
        await rig.web(timeout=1, retry_handlers=[]).chat_postMessage(channel=rig.channel, text="once")
    assert [m["text"] for m in await rig.slack.messages(rig.channel)] == ["once"]
    assert len(rig.faults.accepted(POST)) == 1


async def test_a_queue_belongs_to_its_method_and_a_lasting_fault_to_all_until_lifted(rig: Rig) -> None:
    rig.faults.on.next("chat.update", NotOk("cant_update_message"))
    ts = await rig.posted()
    rig.faults.on.always("*", NotOk("account_inactive"))
    for _ in range(2):
        with pytest.raises(SlackApiError, match="account_inactive"):
            await rig.web().auth_test()
    with pytest.raises(SlackApiError, match="cant_update_message"):
        await rig.web().chat_update(channel=rig.channel, ts=ts, text="decided")
    with pytest.raises(SlackApiError, match="account_inactive"):
        await rig.web().chat_update(channel=rig.channel, ts=ts, text="decided")
    rig.faults.on.lift()
    assert (await rig.web().auth_test())["team_id"] == rig.slack.team_id


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dana", {"is_restricted": False, "is_bot": False, "deleted": False, "team_id": "T0NORTHWIND"}),
        ("grace", {"is_restricted": True, "is_ultra_restricted": False}),
        ("walter", {"deleted": True}),
        ("ximena", {"is_stranger": True, "team_id": FOREIGN_TEAM}),
        ("robot", {"is_bot": True}),
    ],
)
async def test_a_person_is_described_as_slack_would(rig: Rig, name: str, said: dict[str, Any]) -> None:
    user = (await rig.web().users_info(user=rig.slack.users[name]))["user"]
    assert {key: user.get(key) for key in said} == said


async def test_a_person_of_another_workspace_says_so_in_a_signed_click(rig: Rig) -> None:
    ximena = rig.slack.users["ximena"]
    await rig.slack.click(rig.channel, await rig.posted(), ximena, "approve")
    [got] = rig.receiver.got
    assert (got.payload["user"]["team_id"], got.payload["team"]["id"]) == (FOREIGN_TEAM, rig.slack.team_id)
    assert verifies(got, rig.slack.signing_secret)


async def test_metadata_is_found_in_history_and_replies_by_those_who_ask(rig: Rig) -> None:
    rig.faults.on.next(POST, CutAfter())
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await rig.web(retry_handlers=[]).chat_postMessage(channel=rig.channel, text="once", metadata=METADATA)
    [found] = (await rig.web().conversations_history(channel=rig.channel, include_all_metadata=True))[
        "messages"
    ]
    assert found["metadata"] == METADATA
    reply = await rig.web().chat_postMessage(
        channel=rig.channel, text="in the thread", thread_ts=found["ts"], metadata={**METADATA, "n": 2}
    )
    thread = await rig.web().conversations_replies(
        channel=rig.channel, ts=found["ts"], include_all_metadata=True
    )
    assert [m["ts"] for m in thread["messages"]] == [found["ts"], reply["ts"]]
    assert [m["metadata"].get("n") for m in thread["messages"]] == [None, 2]
    [plain] = (await rig.web().conversations_history(channel=rig.channel))["messages"]
    assert "metadata" not in plain


async def test_history_has_no_ephemerals_and_keeps_to_its_limits(rig: Rig) -> None:
    await rig.web().chat_postEphemeral(channel=rig.channel, user=rig.dana, text="to you")
    ts = [await rig.posted() for _ in range(3)]

    async def found(**asked: Any) -> list[str]:
        history = await rig.web().conversations_history(channel=rig.channel, **asked)
        return [message["ts"] for message in history["messages"]]

    assert await found() == ts[::-1]
    assert await found(limit=2) == [ts[2], ts[1]]
    assert await found(oldest=ts[1]) == [ts[2]]
    assert await found(oldest=ts[1], inclusive=True) == [ts[2], ts[1]]
    assert await found(latest=ts[1]) == [ts[0]]
    first = await rig.web().conversations_history(channel=rig.channel, limit=2)
    assert first["has_more"] is True
    assert await found(limit=2, cursor=first["response_metadata"]["next_cursor"]) == [ts[0]]


@pytest.mark.parametrize("manner", [Twice(), Twice(together=True)])
async def test_a_press_is_delivered_twice_with_the_same_bytes(rig: Rig, manner: Manner) -> None:
    rig.faults.deliveries.how.next("interactive", manner)
    await rig.click()
    first, second = rig.receiver.got
    assert first.body == second.body
    assert "X-Slack-Retry-Num" not in second.headers


async def test_an_old_delivery_replayed_is_stale_until_it_is_signed_anew(rig: Rig) -> None:
    await rig.click()
    kept = rig.faults.deliveries.last("interactive")
    await rig.faults.deliveries.send(kept)
    await rig.faults.deliveries.send(kept, at=time.time() - 301)
    await rig.faults.deliveries.send(kept, secret="another")
    await rig.faults.deliveries.send(kept, at=time.time())
    secret = rig.slack.signing_secret
    assert [verifies(got, secret) for got in rig.receiver.got] == [True, True, False, False, True]
    assert all(got.payload == kept.payload for got in rig.receiver.got)


@pytest.mark.parametrize("kind", ["interactive", "slash_commands", "events_api"])
async def test_what_slack_never_said_can_be_said(rig: Rig, kind: Any) -> None:
    said = {"type": "url_verification", "challenge": "abc"}
    await rig.faults.deliveries.forge(kind, said)
    await rig.faults.deliveries.forge(kind, said, secret="another")
    right, wrong = rig.receiver.got
    assert right.payload == said
    assert verifies(right, rig.slack.signing_secret) and not verifies(wrong, rig.slack.signing_secret)


@dataclass
class Listening:
    """What a Socket Mode client took, and what it answers."""

    client: SocketModeClient
    got: list[SocketModeRequest] = field(default_factory=list)

    async def take(self, client: AsyncBaseSocketModeClient, request: SocketModeRequest) -> None:
        self.got.append(request)
        await client.send_socket_mode_response(SocketModeResponse(envelope_id=request.envelope_id))


@asynccontextmanager
async def listening(rig: Rig) -> AsyncIterator[Listening]:
    web = AsyncWebClient(token=rig.slack.bot_token, base_url=rig.faults.api_url)
    listening = Listening(SocketModeClient(app_token=rig.slack.app_token, web_client=web, ping_interval=0.5))
    listening.client.socket_mode_request_listeners.append(listening.take)
    await listening.client.connect()
    await rig.faults.relay.until_open(rig.sockets + 1)
    rig.sockets += 1
    try:
        yield listening
    finally:
        await listening.client.close()


@pytest.mark.parametrize("rig", ["events", "socket"], indirect=True)
async def test_one_press_arrives_by_both_ways(rig: Rig) -> None:
    rig.faults.deliveries.how.always("interactive", BothWays())
    async with listening(rig) as client:
        await rig.click()
        [by_http], [by_socket] = rig.receiver.got, client.got
        assert by_http.payload == by_socket.payload
        assert verifies(by_http, rig.slack.signing_secret)


@pytest.mark.parametrize("cut", [False, True])
@SOCKET
async def test_a_connection_that_ends_is_made_again(rig: Rig, cut: bool) -> None:
    async with listening(rig) as client:
        [gone] = rig.faults.relay.open
        await rig.faults.relay.disconnect(cut=cut)
        while rig.faults.relay.open in ([], [gone]):  # noqa: ASYNC110  the client's own pace
            await asyncio.sleep(0.01)
        await rig.click()
        assert len(client.got) == 1
