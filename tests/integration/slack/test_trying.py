"""`policy-service slack test` and `slack status` before the third-party Slack: what the operator reads."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from policy_service.cli import app
from tests.counterparts.slack import SlackServer
from tests.fakes.operated import Operated, environment, free_port
from tests.fakes.payments import Payments
from tests.fakes.slack_faults import Fault, NotOk, SlackFaults, Status
from tests.fakes.world import fresh_data
from tests.integration.slack.office import APPROVALS, PAYMENTS, secrets_in, until, words

pytestmark = pytest.mark.anyio

Said = tuple[int, str]
Shell = Callable[..., Said]


@pytest.fixture
async def shell(
    tmp_path: Path, slack_and_faults: tuple[SlackServer, SlackFaults], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    """A terminal where the app is in the settings, with both ways of delivery, and nothing runs."""
    slack, faults = slack_and_faults
    return shell_of(tmp_path / "slack", slack, faults, monkeypatch, tmp_path / "data")


def shell_of(
    folder: Path, slack: SlackServer, faults: SlackFaults, monkeypatch: pytest.MonkeyPatch, data: Path
) -> Shell:
    settings = secrets_in(folder, slack) | {
        "api_url": faults.api_url,
        "signing_secret_file": folder / "signing",
        "app_token_file": folder / "app",
    }

    def run(*args: str, **more: Any) -> Said:
        given = {name: str(one) for name, one in (settings | more).items()}
        monkeypatch.setenv("COUNTERSIGN_SLACK", json.dumps(given))
        monkeypatch.setenv("COUNTERSIGN_DATA_DIR", str(data))
        done = CliRunner().invoke(app, ["slack", *args])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.output.strip()

    return run


async def test_what_goes_well_is_said_and_stands_in_the_channel(
    shell: Shell, slack_and_faults: tuple[SlackServer, SlackFaults]
) -> None:
    slack, _ = slack_and_faults
    code, told = await asyncio.to_thread(shell, "test")
    assert code == 0
    assert told.splitlines() == [
        f"the bot token is of {slack.team_id}, as {slack.app.bot_user}",
        "#approvals has a message now",
        "Slack takes the app-level token for Socket Mode",
    ]
    (message,) = await slack.messages(APPROVALS)
    assert "Countersign can write here" in words(message["text"])
    code, told = await asyncio.to_thread(shell, "test", PAYMENTS, "--json")
    assert (code, json.loads(told)["posted"], len(await slack.messages(PAYMENTS))) == (0, True, 1)


WRONG: Final[dict[str, tuple[str, Fault, tuple[str, ...]]]] = {
    "the app is not in the channel": (
        "chat.postMessage", NotOk("not_in_channel"), ("not_in_channel", "/invite @Countersign")
    ),
    "the app is asked to see a channel it does not": (
        "chat.postMessage", NotOk("channel_not_found"), ("channel_not_found", "private", "/invite @Countersign")
    ),
    "the bot token is not taken": ("auth.test", NotOk("invalid_auth"), ("invalid_auth", "/slack/bot", "install")),
    "it may not write": ("chat.postMessage", NotOk("missing_scope"), ("missing_scope", "chat:write")),
    "it may not look channels up": (
        "conversations.list", NotOk("missing_scope"), ("missing_scope", "channels:read and groups:read")
    ),
    "the app token is not taken": (
        "apps.connections.open", NotOk("invalid_auth"), ("open: invalid_auth", "/slack/app", "app_token_file")
    ),
    "the app token has no scope": ("apps.connections.open", NotOk("missing_scope"), ("connections:write",)),
    "Slack asks for patience": ("auth.test", Status(429, 5), ("ratelimited", "in a minute")),
    "what nobody has heard of": (
        "chat.postMessage", NotOk("as_yet_unheard"), ("as_yet_unheard", "reference of chat.postMessage")
    ),
}  # fmt: skip


@pytest.mark.parametrize(("method", "fault", "says"), WRONG.values(), ids=WRONG)
async def test_what_slack_refuses_is_said_with_what_to_do(
    shell: Shell,
    slack_and_faults: tuple[SlackServer, SlackFaults],
    method: str,
    fault: Fault,
    says: tuple[str, ...],
) -> None:
    slack, faults = slack_and_faults
    faults.on.always(method, fault)
    code, told = await asyncio.to_thread(shell, "test")
    assert code == 1
    for word in says:
        assert word in told
    opening = method == "apps.connections.open"
    assert ("#approvals has a message now" in told) is opening
    assert len(await slack.messages(APPROVALS)) == int(opening)


async def test_a_token_of_another_workspace_writes_nowhere(
    shell: Shell, slack_and_faults: tuple[SlackServer, SlackFaults]
) -> None:
    slack, _ = slack_and_faults
    code, told = await asyncio.to_thread(lambda: shell("test", team_id="T0RIVAL"))
    assert code == 1
    assert "the bot token is of T0NORTHWIND, the settings name T0RIVAL" in told
    assert await slack.messages(APPROVALS) == []


async def test_a_name_that_no_channel_has_is_said_and_what_is_no_channel_is_not_asked_about(
    shell: Shell, slack_and_faults: tuple[SlackServer, SlackFaults]
) -> None:
    _, faults = slack_and_faults
    code, told = await asyncio.to_thread(shell, "test", "#nowhere")
    assert (code, "channel_not_found" in told) == (1, True)
    faults.calls.clear()
    code, told = await asyncio.to_thread(shell, "test", "@dana")
    assert (code, "is no Slack channel" in told, faults.calls) == (1, True, [])


async def test_a_token_whose_file_is_missing_is_told_before_slack_is_called(
    shell: Shell, slack_and_faults: tuple[SlackServer, SlackFaults], tmp_path: Path
) -> None:
    _, faults = slack_and_faults
    code, told = await asyncio.to_thread(lambda: shell("test", bot_token_file=tmp_path / "nowhere"))
    assert (code, faults.calls) == (1, [])
    assert f"[slack]: bot_token_file: the file {tmp_path / 'nowhere'} is missing" in told


def test_beside_a_service_that_runs_both_verbs_work_and_the_status_tells_what_it_alone_knows(
    tmp_path: Path,
    slack_and_faults: tuple[SlackServer, SlackFaults],
    own_bundle: Payments,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slack, faults = slack_and_faults
    asyncio.run(slack.reset())
    faults.forget()
    data, folder, port = tmp_path / "data", tmp_path / "slack", free_port()
    shutil.copytree(fresh_data(), data)
    shell = shell_of(folder, slack, faults, monkeypatch, data)
    code, told = shell("status")
    assert (code, told.splitlines()[-1]) == (
        0,
        "the service is not running: nothing is sent and nothing arrives",
    )
    env = environment(data, own_bundle.path, port) | {"COUNTERSIGN_SLACK": os.environ["COUNTERSIGN_SLACK"]}
    with Operated(env):
        asyncio.run(until(slack_connected(slack)))
        code, told = shell("status")
        assert code == 0
        assert told.splitlines() == [
            f"{slack.team_id}  waiting 0  set aside 0",
            f"deliveries arrive over HTTP at http://127.0.0.1:{port}/slack/events and over Socket Mode (connected)",
        ]
        assert shell("test")[0] == 0
        faults.on.always("*", NotOk("token_revoked"))
        event = {
            "type": "event_callback", "token": "t", "team_id": slack.team_id, "api_app_id": slack.app_id,
            "event_id": "Ev1", "event_time": 1, "event": {"type": "tokens_revoked", "tokens": {"bot": ["U1"]}},
        }  # fmt: skip
        faults.deliveries.to(f"http://127.0.0.1:{port}/slack/events")
        assert asyncio.run(faults.deliveries.forge("events_api", event)).status == 200

        async def said() -> str | None:
            told = shell("status")[1]
            return told if "wrong: " in told else None

        assert "wrong: Slack takes no message (token" in asyncio.run(until(said))


def slack_connected(slack: SlackServer) -> Callable[[], Awaitable[bool | None]]:
    async def connected() -> bool | None:
        return await slack.is_connected() or None

    return connected
