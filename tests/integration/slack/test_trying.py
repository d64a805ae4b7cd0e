"""`policy-service slack test` and `slack status` before the third-party Slack: what the operator reads."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from examples.local_service import free_port
from policy_service.cli import app
from tests.fakes.operated import Operated, environment
from tests.fakes.payments import Payments
from tests.fakes.slack_faults import Fault, NotOk, Status
from tests.fakes.world import fresh_data
from tests.integration.slack.conftest import SlackAndFaults
from tests.integration.slack.office import APPROVALS, PAYMENTS, POST, secrets_in, until


class Shell:
    """A terminal where the app is in the settings, with both ways of delivery."""

    def __init__(self, folder: Path, both: SlackAndFaults, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slack, self.faults = both
        self._folder, self._patch = folder, monkeypatch

    def run(self, *args: str, **more: Any) -> tuple[int, str]:
        """The exit code of `policy-service slack`, and what it said."""
        secrets = self._folder / "slack"
        settings = secrets_in(secrets, self.slack) | {"api_url": self.faults.api_url}
        settings |= {"signing_secret_file": secrets / "signing", "app_token_file": secrets / "app", **more}
        given = {name: str(one) for name, one in settings.items()}
        self._patch.setenv("COUNTERSIGN_SLACK", json.dumps(given))
        self._patch.setenv("COUNTERSIGN_DATA_DIR", str(self._folder / "data"))
        done = CliRunner().invoke(app, ["slack", *args])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.output.strip()

    def test(self, *args: str, **more: Any) -> tuple[int, str, int]:
        """The same of `slack test`, and how many messages stand in #approvals then."""
        code, result = self.run("test", *args, **more)
        return code, result, len(asyncio.run(self.slack.messages(APPROVALS)))


@pytest.fixture
def shell(tmp_path: Path, slack_and_faults: SlackAndFaults, monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(tmp_path, slack_and_faults, monkeypatch)


def test_slack_test_reports_success_and_posts_a_message(shell: Shell) -> None:
    code, result, messages = shell.test()
    assert (code, messages) == (0, 1)
    assert result.splitlines() == [
        f"the bot token is valid for {shell.slack.team_id}, as {shell.slack.app.bot_user}",
        "posted a message in #approvals",
        "the app-level token is valid for Socket Mode",
    ]
    (message,) = asyncio.run(shell.slack.messages(APPROVALS))
    assert "Countersign can post here" in message["text"]
    code, result = shell.run("test", PAYMENTS, "--json")
    assert (code, json.loads(result)["posted"]) == (0, True)
    assert len(asyncio.run(shell.slack.messages(PAYMENTS))) == 1


OPEN: Final = "apps.connections.open"
WRONG: Final[list[tuple[str, Fault, tuple[str, ...]]]] = [
    (POST, NotOk("not_in_channel"), ("not_in_channel", "/invite @Countersign")),
    (POST, NotOk("channel_not_found"), ("channel_not_found", "private", "/invite @Countersign")),
    ("auth.test", NotOk("invalid_auth"), ("invalid_auth", "/slack/bot", "install")),
    (POST, NotOk("missing_scope"), ("missing_scope", "chat:write")),
    ("conversations.list", NotOk("missing_scope"), ("missing_scope", "channels:read and groups:read")),
    (OPEN, NotOk("invalid_auth"), ("open: invalid_auth", "/slack/app", "app_token_file")),
    (OPEN, NotOk("missing_scope"), ("connections:write",)),
    ("auth.test", Status(429, 5), ("ratelimited", "in a minute")),
    (POST, NotOk("as_yet_unheard"), ("as_yet_unheard", "reference of chat.postMessage")),
]


def test_slack_test_reports_errors_with_a_remedy(shell: Shell) -> None:
    before = 0
    for method, fault, says in WRONG:
        shell.faults.on.always(method, fault)
        code, result, messages = shell.test()
        shell.faults.on.lift()
        assert (code, [word for word in says if word not in result]) == (1, [])
        opening = method == OPEN
        assert ("posted a message in #approvals" in result, messages - before) == (opening, int(opening))
        before = messages


def test_slack_test_reports_wrong_settings_and_posts_nothing(shell: Shell, tmp_path: Path) -> None:
    code, result, messages = shell.test(team_id="T0RIVAL")
    assert (code, messages) == (1, 0)
    assert "the bot token belongs to T0NORTHWIND, the settings name T0RIVAL" in result
    code, result, _ = shell.test("#nowhere")
    assert (code, "channel_not_found" in result) == (1, True)
    shell.faults.calls.clear()
    code, result, _ = shell.test("@dana")
    assert (code, "is not a Slack channel" in result, shell.faults.calls) == (1, True, [])
    code, result, _ = shell.test(bot_token_file=tmp_path / "nowhere")
    assert (code, shell.faults.calls) == (1, [])
    assert f"[slack]: bot_token_file: the file {tmp_path / 'nowhere'} is missing" in result


def test_commands_work_with_a_running_service(shell: Shell, tmp_path: Path, own_bundle: Payments) -> None:
    slack, faults, port = shell.slack, shell.faults, free_port()
    shutil.copytree(fresh_data(), tmp_path / "data")
    code, result = shell.run("status")
    assert (code, "the service is not running: nothing is sent and nothing arrives" in result) == (0, True)
    env = environment(tmp_path / "data", own_bundle.path, port)
    with Operated(env | {"COUNTERSIGN_SLACK": os.environ["COUNTERSIGN_SLACK"]}):
        asyncio.run(until(slack.is_connected))
        code, result = shell.run("status")
        assert code == 0
        address = f"http://127.0.0.1:{port}/slack/events"
        arrive = f"payloads arrive over HTTP at {address} and over Socket Mode (connected)"
        assert result.splitlines() == [f"{slack.team_id}  waiting 0  failed 0", arrive]
        assert shell.test()[0] == 0
        faults.on.always("*", NotOk("token_revoked"))
        event = {
            "type": "event_callback", "token": "t", "team_id": slack.team_id, "api_app_id": slack.app_id,
            "event_id": "Ev1", "event_time": 1, "event": {"type": "tokens_revoked", "tokens": {"bot": ["U1"]}},
        }  # fmt: skip
        faults.deliveries.to(f"http://127.0.0.1:{port}/slack/events")
        assert asyncio.run(faults.deliveries.forge("events_api", event)).status == 200

        async def said() -> str | None:
            result = shell.run("status")[1]
            return result if "wrong: " in result else None

        assert "wrong: Slack accepts no messages (token" in asyncio.run(until(said))
