"""The secrets of the app: what is empty, short or readable by others starts nothing, and is not quoted."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from policy_service.channels.slack.workers import SlackService
from policy_service.errors import StartError
from policy_service.health import Health
from policy_service.slack import SlackApp
from tests.fakes.slack_accounts import secret_file

BAD: Final[dict[str, tuple[str, str]]] = {
    "an empty signing secret": ("signing-secret", ""),
    "a blank one": ("signing-secret", " \n\t "),
    "one of one character": ("signing-secret", "a"),
    "one of fifteen": ("signing-secret", "canary-3b91d0c7"[:15]),
    "one with a space": ("signing-secret", "canary-3b91 d0c7-8f742231b10e"),
    "one of two lines": ("signing-secret", "canary-3b91d0c7\n8f742231b10e8888"),
    "one that is no ASCII": ("signing-secret", "canary-é" * 4),
    "an empty bot token": ("bot-token", ""),
    "a user's token for the bot's": ("bot-token", "xoxp-canary-3b91d0c7"),
    "an app token for the bot's": ("bot-token", "xapp-canary-3b91d0c7"),
    "a bot token for the app's": ("app-token", "xoxb-canary-3b91d0c7"),
    "an empty app token": ("app-token", ""),
}
# Each file, and where Slack shows what it holds.
SHOWN = {
    "signing-secret": "Basic Information",
    "bot-token": "OAuth & Permissions",
    "app-token": "App-Level Tokens",
}


def start(folder: Path) -> SlackService:
    """A channel of the secrets in these files."""
    files: dict[str, Any] = {f"{name.replace('-', '_')}_file": folder / name for name in SHOWN}
    app = SlackApp(team_id="T0ACME", app_id="A0COUNTERSIGN", default_channel="#approvals", **files)
    settings = SimpleNamespace(public_url="http://127.0.0.1", https_proxy=None, ca_file=None)
    ctx: Any = SimpleNamespace(clock=None, settings=settings)
    return SlackService(ctx.settings, app, ctx, Health(lambda: datetime.now(UTC), 60))


def refused(folder: Path) -> str:
    with pytest.raises(StartError) as caught:
        start(folder)
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("bot-token", "xoxb-one"), ("app-token", "xapp-one"), ("signing-secret", "5" * 32)):
        secret_file(tmp_path / name, text)
    return tmp_path


def test_with_secrets_of_its_own_it_starts(folder: Path) -> None:
    assert start(folder).signatures is not None


@pytest.mark.parametrize(("file", "text"), BAD.values(), ids=BAD)
def test_what_is_no_secret_starts_nothing_and_is_not_quoted(folder: Path, file: str, text: str) -> None:
    secret_file(folder / file, text)
    told = refused(folder)
    assert f"[slack]: {file.replace('-', '_')}_file: the file {folder / file} does not hold a" in told
    assert "Slack shows the" in told
    assert "canary" not in told


@pytest.mark.parametrize("file", SHOWN)
def test_a_secret_that_others_can_read_or_that_is_missing_starts_nothing(folder: Path, file: str) -> None:
    (folder / file).chmod(0o640)
    assert "can be read by others" in refused(folder)
    (folder / file).unlink()
    told = refused(folder)
    assert told.startswith(f"[slack]: {file.replace('-', '_')}_file: the file {folder / file} is missing; ")
    assert f"'{SHOWN[file]}'" in told
    assert "policy-service init" not in told, "which makes no secret of Slack's"
