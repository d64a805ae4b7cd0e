"""What the third-party Slack of the tests does, and where it differs from Slack, pinned so that a change is seen; and
the proxy before it: each fault does what its name says, and no more."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from slack_sdk.errors import SlackApiError
from slack_sdk.signature import SignatureVerifier
from slack_sdk.web.async_client import AsyncWebClient

from examples.local_service import free_port
from tests.counterparts.slack import SlackServer
from tests.fakes.slack_deliveries import Twice, read
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

pytestmark = [pytest.mark.anyio, pytest.mark.long]

POST = "chat.postMessage"


def plain(text: str) -> dict[str, Any]:
    """A text as blocks have it."""
    return {"type": "plain_text", "text": text}


BUTTONS: list[dict[str, Any]] = [
    {"type": "section", "block_id": "what", "text": plain("Refund 120.00 EUR")},
    {"type": "actions", "block_id": "r-1", "elements": [
        {"type": "button", "action_id": "approve", "value": "a-pointer", "text": plain("Approve")},
    ]},
]  # fmt: skip
FIELD = {"type": "plain_text_input", "action_id": "text", "multiline": True}
REASON: dict[str, Any] = {
    "type": "modal", "callback_id": "deny", "private_metadata": "r-1", "notify_on_close": True,
    "title": plain("Deny"), "submit": plain("Deny"), "close": plain("Cancel"),
    "blocks": [{"type": "input", "block_id": "reason", "label": plain("Reason"), "element": FIELD}],
}  # fmt: skip


@dataclass
class Got:
    """One delivery as it came."""

    body: bytes
    headers: Mapping[str, str]

    @property
    def payload(self) -> dict[str, Any]:
        """What it says, whichever of Slack's three forms it has."""
        return read(self.body, self.headers)[1]


@dataclass
class Receiver:
    """A throw-away app: `got` in the order of arrival; it answers what `answers` says for a payload's type."""

    got: list[Got] = field(default_factory=list)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)

    async def take(self, request: web.Request) -> web.Response:
        """Keep it, and answer."""
        one = Got(await request.read(), dict(request.headers))
        self.got.append(one)
        answer = self.answers.get(one.payload.get("type", "command"))
        return web.Response(
            text="" if answer is None else json.dumps(answer), content_type="application/json"
        )


@dataclass
class Rig:
    """The server, the proxy on both sides of it, and the receiver behind the proxy."""

    slack: SlackServer
    faults: SlackFaults
    receiver: Receiver
    channel: str = "C0APPROVALS"
    dana: str = "U0DANA"

    def web(self, **more: Any) -> AsyncWebClient:
        return AsyncWebClient(token=self.slack.bot_token, base_url=self.faults.api_url, **more)

    async def posted(self, **more: Any) -> str:
        """The ts of a message with a button."""
        said = {"text": "Refund", "blocks": BUTTONS} | more
        return str((await self.web().chat_postMessage(channel=self.channel, **said))["ts"])

    async def click(self, user: str | None = None) -> str:
        """A message whose button was pressed."""
        ts = await self.posted()
        await self.slack.click(self.channel, ts, user or self.dana, "approve")
        return ts

    def verifies(self, got: Got) -> bool:
        """Whether it is signed."""
        return SignatureVerifier(self.slack.signing_secret).is_valid_request(got.body, dict(got.headers))


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    receiver, app = Receiver(), web.Application()
    app.router.add_post("/slack", receiver.take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    with failing_slack(tmp_path) as (slack, faults):
        port = free_port()
        faults.deliveries.to(f"http://127.0.0.1:{port}/slack")
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield Rig(slack, faults, receiver)
    await runner.cleanup()


async def test_a_click_arrives_signed(rig: Rig) -> None:
    ts = await rig.click()
    [got] = rig.receiver.got
    assert rig.verifies(got)
    payload = got.payload
    assert payload["type"] == "block_actions"
    assert payload["team"]["id"] == payload["user"]["team_id"] == rig.slack.team_id
    assert (payload["api_app_id"], payload["user"]["id"]) == (rig.slack.app_id, rig.dana)
    assert payload["container"] == {
        "type": "message", "message_ts": ts, "channel_id": rig.channel, "is_ephemeral": False,
    }  # fmt: skip
    [action] = payload["actions"]
    assert (action["action_id"], action["block_id"], action["value"]) == ("approve", "r-1", "a-pointer")
    assert float(action["action_ts"]) > 0
    assert payload["message"]["ts"] == ts


async def test_a_modal_is_opened_corrected_and_submitted(rig: Rig) -> None:
    await rig.click()
    got, slack = rig.receiver.got, rig.slack
    opened = await rig.web().views_open(trigger_id=got[0].payload["trigger_id"], view=REASON)
    assert [view["id"] for view in await slack.modals()] == [opened["view"]["id"]]

    errors = {"reason": "Say why."}
    rig.receiver.answers["view_submission"] = {"response_action": "errors", "errors": errors}
    refused = await slack.submit_view(rig.dana, {})
    assert (refused.errors, len(refused.open)) == (errors, 1)
    assert got[-1].payload["view"]["state"]["values"]["reason"]["text"]["value"] is None

    del rig.receiver.answers["view_submission"]
    taken = await slack.submit_view(rig.dana, {"reason": {"text": "twice the amount"}})
    assert (taken.errors, taken.open, rig.verifies(got[-1])) == ({}, (), True)
    view = got[-1].payload["view"]
    assert view["state"]["values"]["reason"]["text"]["value"] == "twice the amount"
    assert (view["callback_id"], view["private_metadata"]) == ("deny", "r-1")
    assert (view["id"], view["hash"]) == (opened["view"]["id"], opened["view"]["hash"])


CASES: list[tuple[Fault, Any, bool]] = [
    (Status(429, retry_after=7), SlackApiError, False),
    (Status(503), SlackApiError, False),
    (NotOk("token_revoked"), SlackApiError, False),
    (CutBefore(), aiohttp.ServerDisconnectedError, False),
    (Hang(60), TimeoutError, False),
    (CutAfter(), aiohttp.ServerDisconnectedError, True),
    (Garbled(), SlackApiError, True),
    (Hang(60, accepted=True), TimeoutError, True),
]


@pytest.mark.parametrize(("fault", "expected", "done"), CASES)
async def test_slack_does_it_or_not_and_nobody_hears(
    rig: Rig, fault: Fault, expected: Any, done: bool
) -> None:
    rig.faults.on.next(POST, fault)
    with pytest.raises(expected):
        await rig.web(timeout=1, retry_handlers=[]).chat_postMessage(channel=rig.channel, text="once")
    assert [one["text"] for one in await rig.slack.messages(rig.channel)] == ["once"] * done
    assert len(rig.faults.accepted(POST)) == done
    assert [call.done for call in rig.faults.calls] == [repr(fault)]


DESCRIBED: dict[str, dict[str, Any]] = {
    "dana": {"is_restricted": False, "is_bot": False, "deleted": False, "team_id": "T0NORTHWIND"},
    "grace": {"is_restricted": True, "is_ultra_restricted": False},
    "walter": {"deleted": True},
    "ximena": {"is_stranger": True, "team_id": FOREIGN_TEAM},
    "robot": {"is_bot": True},
}


async def test_a_person_is_described_as_slack_would(rig: Rig) -> None:
    for name, said in DESCRIBED.items():
        user = (await rig.web().users_info(user=rig.slack.users[name]))["user"]
        assert {key: user.get(key) for key in said} == said
    await rig.click(rig.slack.users["ximena"])
    [got] = rig.receiver.got
    assert (got.payload["user"]["team_id"], got.payload["team"]["id"]) == (FOREIGN_TEAM, rig.slack.team_id)
    assert rig.verifies(got)


async def test_metadata_is_found_by_those_who_ask_the_proxy_and_lost_without_it(rig: Rig) -> None:
    metadata = {"event_type": "review", "event_payload": {"review_id": "r-1"}}
    ts = await rig.posted(metadata=metadata)
    reply = await rig.posted(thread_ts=ts, metadata={**metadata, "n": 2})
    asked: Any = {"channel": rig.channel, "include_all_metadata": True}
    [found] = (await rig.web().conversations_history(**asked))["messages"]
    assert found["metadata"] == metadata
    thread = (await rig.web().conversations_replies(ts=ts, **asked))["messages"]
    assert [(one["ts"], one["metadata"].get("n")) for one in thread] == [(ts, None), (reply, 2)]
    straight = AsyncWebClient(token=rig.slack.bot_token, base_url=rig.slack.api_url)
    for client, more in ((rig.web(), {"channel": rig.channel}), (straight, asked)):
        assert "metadata" not in (await client.conversations_history(**more))["messages"][0]


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


async def test_a_delivery_is_made_twice_replayed_signed_anew_or_forged(rig: Rig) -> None:
    deliveries, got = rig.faults.deliveries, rig.receiver.got
    deliveries.how.next("interactive", Twice(together=True))
    await rig.click()
    assert got[0].body == got[1].body
    assert "X-Slack-Retry-Num" not in got[1].headers
    kept, now = deliveries.last("interactive"), time.time()
    how: list[dict[str, Any]] = [{}, {"at": now - 301}, {"secret": "another"}, {"at": now}]
    for one in how:
        await deliveries.send(kept, **one)
    assert [rig.verifies(one) for one in got[2:]] == [True, False, False, True]
    assert all(one.payload == kept.payload for one in got)
    said = {"type": "url_verification", "challenge": "abc"}
    await deliveries.forge("slash_commands", said)
    await deliveries.forge("events_api", said, secret="another")
    assert [rig.verifies(one) for one in got[6:]] == [True, False]
    assert got[-1].payload == said
