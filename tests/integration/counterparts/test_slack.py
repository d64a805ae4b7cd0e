"""What the third-party Slack of the tests does, and where it differs from Slack: pinned, so that a change is seen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from slack_sdk.signature import SignatureVerifier
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.async_client import AsyncBaseSocketModeClient
from slack_sdk.socket_mode.request import SocketModeRequest
from slack_sdk.socket_mode.response import SocketModeResponse
from slack_sdk.web.async_client import AsyncWebClient

from tests.counterparts.slack import SlackServer, local_slack
from tests.integration.counterparts.receiver import Got, Receiver, receiving

pytestmark = [pytest.mark.anyio, pytest.mark.long]

BUTTONS: list[dict[str, Any]] = [
    {"type": "section", "block_id": "what", "text": {"type": "plain_text", "text": "Refund 120.00 EUR"}},
    {
        "type": "actions",
        "block_id": "r-1",
        "elements": [
            {
                "type": "button",
                "action_id": "approve",
                "value": "a-pointer",
                "text": {"type": "plain_text", "text": "Approve"},
                "confirm": {
                    "title": {"type": "plain_text", "text": "Sure?"},
                    "text": {"type": "plain_text", "text": "It cannot be taken back."},
                    "confirm": {"type": "plain_text", "text": "Approve"},
                    "deny": {"type": "plain_text", "text": "Back"},
                },
            }
        ],
    },
]
REASON: dict[str, Any] = {
    "type": "modal",
    "callback_id": "deny",
    "private_metadata": "r-1",
    "notify_on_close": True,
    "title": {"type": "plain_text", "text": "Deny"},
    "submit": {"type": "plain_text", "text": "Deny"},
    "close": {"type": "plain_text", "text": "Cancel"},
    "blocks": [
        {
            "type": "input",
            "block_id": "reason",
            "label": {"type": "plain_text", "text": "Reason"},
            "element": {"type": "plain_text_input", "action_id": "text", "multiline": True},
        }
    ],
}


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


@pytest.fixture
def slack(tmp_path: Path, receiver: Receiver) -> Iterator[SlackServer]:
    with local_slack(tmp_path, request_url=receiver.url) as slack:
        yield slack


def web(slack: SlackServer) -> AsyncWebClient:
    return AsyncWebClient(token=slack.bot_token, base_url=slack.api_url)


async def posted(slack: SlackServer, **more: Any) -> str:
    """The ts of a message with a button in #approvals."""
    answer = await web(slack).chat_postMessage(
        channel=slack.channels["approvals"], text="Refund", blocks=BUTTONS, **more
    )
    return str(answer["ts"])


def verifies(got: Got, secret: str) -> bool:
    return SignatureVerifier(secret).is_valid_request(got.body, dict(got.headers))


async def test_metadata_is_lost(slack: SlackServer) -> None:
    await posted(slack, metadata={"event_type": "review", "event_payload": {"review_id": "r-1"}})
    history = await web(slack).conversations_history(
        channel=slack.channels["approvals"], include_all_metadata=True
    )
    assert "metadata" not in history["messages"][0]


async def test_a_click_arrives_signed(slack: SlackServer, receiver: Receiver) -> None:
    ts = await posted(slack)
    await slack.click(slack.channels["approvals"], ts, slack.users["dana"], "approve")
    [got] = receiver.got
    assert verifies(got, slack.signing_secret)
    assert not verifies(got, "another")
    payload = got.payload
    assert payload["type"] == "block_actions"
    assert payload["team"]["id"] == payload["user"]["team_id"] == slack.team_id
    assert (payload["api_app_id"], payload["user"]["id"]) == (slack.app_id, slack.users["dana"])
    assert payload["container"] == {
        "type": "message", "message_ts": ts, "channel_id": slack.channels["approvals"], "is_ephemeral": False,
    }  # fmt: skip
    [action] = payload["actions"]
    assert (action["action_id"], action["block_id"], action["value"]) == ("approve", "r-1", "a-pointer")
    assert float(action["action_ts"]) > 0
    assert payload["message"]["ts"] == ts


async def test_a_modal_is_opened_corrected_and_submitted(slack: SlackServer, receiver: Receiver) -> None:
    ts = await posted(slack)
    await slack.click(slack.channels["approvals"], ts, slack.users["dana"], "approve")
    trigger = receiver.got[0].payload["trigger_id"]
    opened = await web(slack).views_open(trigger_id=trigger, view=REASON)
    assert [view["id"] for view in await slack.modals()] == [opened["view"]["id"]]

    errors = {"reason": "Say why."}
    receiver.answers["view_submission"] = {"response_action": "errors", "errors": errors}
    refused = await slack.submit_view(slack.users["dana"], {})
    assert refused.errors == errors and len(refused.open) == 1
    assert receiver.got[-1].payload["view"]["state"]["values"]["reason"]["text"]["value"] is None

    del receiver.answers["view_submission"]
    taken = await slack.submit_view(slack.users["dana"], {"reason": {"text": "twice the amount"}})
    assert taken.errors == {} and taken.open == ()
    assert verifies(receiver.got[-1], slack.signing_secret)
    view = receiver.got[-1].payload["view"]
    assert view["state"]["values"]["reason"]["text"]["value"] == "twice the amount"
    assert (view["callback_id"], view["private_metadata"]) == ("deny", "r-1")
    assert (view["id"], view["hash"]) == (opened["view"]["id"], opened["view"]["hash"])


async def test_socket_mode_delivers_and_is_acknowledged(tmp_path: Path) -> None:
    got: list[SocketModeRequest] = []

    async def take(client: AsyncBaseSocketModeClient, request: SocketModeRequest) -> None:
        got.append(request)
        await client.send_socket_mode_response(SocketModeResponse(envelope_id=request.envelope_id))

    with local_slack(tmp_path, mode="socket") as slack:
        client = SocketModeClient(app_token=slack.app_token, web_client=web(slack))
        client.socket_mode_request_listeners.append(take)
        await client.connect()
        assert await slack.is_connected()
        ts = await posted(slack)
        await slack.click(slack.channels["approvals"], ts, slack.users["dana"], "approve")
        await slack.command(slack.users["dana"], slack.channels["approvals"], "reviews")
        await slack.open_home(slack.users["dana"])
        assert [request.type for request in got] == ["interactive", "slash_commands", "events_api"]
        assert got[0].payload["actions"][0]["value"] == "a-pointer"
        assert got[1].payload["text"] == "reviews"
        acks = [entry["summary"] for entry in await slack.log() if entry["kind"] == "ack"]
        assert acks == [f"ack {request.envelope_id}" for request in got]
        await client.close()
