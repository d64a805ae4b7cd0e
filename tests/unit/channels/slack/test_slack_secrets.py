"""The secrets of the app: what is empty, short or readable by others starts nothing, and is not quoted."""

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

SHORT: Final = "canary-3b91d0c7"
TEXTS = ("", " \n\t ", "a", SHORT, f"{SHORT} {SHORT}", f"{SHORT}\n{SHORT}", "canary-é" * 4)
BAD = [("bot-token", ""), ("app-token", ""), *(("signing-secret", text) for text in TEXTS)]
BAD += [("bot-token", f"xoxp-{SHORT}"), ("bot-token", f"xapp-{SHORT}"), ("app-token", f"xoxb-{SHORT}")]
# Each file, and where Slack shows what it holds.
SHOWN = {"signing-secret": "Basic Info", "bot-token": "OAuth & Permissions", "app-token": "App-Level Tokens"}


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


def test_valid_credentials_start_the_service(folder: Path) -> None:
    assert start(folder).signatures is not None


@pytest.mark.parametrize(("file", "text"), BAD)
def test_an_invalid_credential_is_refused_and_not_quoted(folder: Path, file: str, text: str) -> None:
    secret_file(folder / file, text)
    output = refused(folder)
    assert f"[slack]: {file.replace('-', '_')}_file: the file {folder / file} does not hold a" in output
    assert "Slack shows the" in output
    assert "canary" not in output


@pytest.mark.parametrize("file", SHOWN)
def test_a_readable_or_missing_credential_file_is_refused(folder: Path, file: str) -> None:
    (folder / file).chmod(0o640)
    assert "can be read by others" in refused(folder)
    (folder / file).unlink()
    output = refused(folder)
    assert output.startswith(f"[slack]: {file.replace('-', '_')}_file: the file {folder / file} is missing; ")
    assert f"'{SHOWN[file]}" in output
    assert "policy-service init" not in output, "which makes no secret of Slack's"
