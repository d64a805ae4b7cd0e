"""Errors between the service and Slack have our codes, never class names."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from examples.local_service import free_port
from policy_service.channels.slack.client import SlackCallError, SlackClient
from policy_service.channels.slack.send_queue import SendStatus
from policy_service.slack import SlackApp

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def _cut(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def _late(request: web.Request) -> web.Response:
    await asyncio.sleep(5)
    return web.Response()


async def _short(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "100"})
    await answer.prepare(request)
    await answer.write(b'{"ok": ')
    return await _cut(request)


def _says(text: str, content_type: str = "application/json", status: int = 200) -> Handler:
    async def say(request: web.Request) -> web.Response:
        return web.Response(text=text, content_type=content_type, status=status)

    return say


ANSWERS: dict[str, tuple[Handler, str]] = {
    "the connection is cut": (_cut, "connection_lost"),
    "it is cut in the middle of the answer": (_short, "connection_lost"),
    "no answer": (_late, "no_answer"),
    "what calls itself JSON and is none": (_says("<html>"), "not_json"),
    "a page": (_says("<html>", "text/html"), "not_json"),
    "a page that is an error": (_says("<html>", "text/html", 502), "http_502"),
    "JSON that is no object": (_says("[1]"), "not_understood"),
}


def calling(url: str) -> SlackClient:
    app = SlackApp.model_construct(team_id="T0ACME", api_url=f"{url}/api/", timeout_s=0.5)
    return SlackClient(app, "xoxb-one")


@pytest.fixture
async def answering(request: pytest.FixtureRequest) -> AsyncIterator[SlackClient]:
    """A client of a Slack that answers like this."""
    app = web.Application()
    app.router.add_post("/api/auth.test", request.param)
    runner, port = web.AppRunner(app, access_log=None, shutdown_timeout=0.1), free_port()
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    slack = calling(f"http://127.0.0.1:{port}")
    yield slack
    await slack.close()
    await runner.cleanup()


@pytest.mark.parametrize(("answering", "code"), ANSWERS.values(), ids=ANSWERS, indirect=["answering"])
async def test_transport_errors_have_our_codes(answering: SlackClient, code: str) -> None:
    with pytest.raises(SlackCallError) as fault:
        await answering.call("auth.test")
    assert (fault.value.error, fault.value.result.status) == (code, SendStatus.WORLD)


async def test_a_closed_port_is_not_reachable() -> None:
    slack = calling(f"http://127.0.0.1:{free_port()}")
    outcome = await slack.check_auth()
    await slack.close()
    assert (outcome.error, outcome.status, outcome.unsent) == ("not_reachable", SendStatus.WORLD, True)


RIVAL = '{"ok": true, "team_id": "T0RIVAL"'
OF_OURS = f'{RIVAL}, "enterprise_id": "T0ACME", "is_enterprise_install": '
OTHER = "token_of_another_workspace"
WHOSE: dict[str, tuple[Handler, str | None]] = {
    "ours": (_says('{"ok": true, "team_id": "T0ACME", "user_id": "U0BOT"}'), None),
    "another one's": (_says(RIVAL + "}"), OTHER),
    "one of our organisation's, for its workspace alone": (_says(OF_OURS + "false}"), OTHER),
    "all our organisation's": (_says(OF_OURS + "true}"), None),
    "no owner": (_says('{"ok": true}'), "not_understood"),
    "one that is no id": (_says('{"ok": true, "team_id": "T0ACME\\nT0ACME"}'), "not_understood"),
}


@pytest.mark.parametrize(("answering", "error"), WHOSE.values(), ids=WHOSE, indirect=["answering"])
async def test_the_token_owner_must_match_the_settings(answering: SlackClient, error: str | None) -> None:
    assert (await answering.check_auth()).error == error
    words = "the bot token belongs to T0RIVAL, the settings name T0ACME" if error == OTHER else None
    assert answering.workspace_mismatch == words
