"""The app's credentials from their files, and the operator's test of them (``policy-service slack test``).

Error texts name the setting, the file and where Slack shows the credential. They never quote its content.

The test calls Slack directly and records nothing. It works whether or not the service runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from policy_service.channels.slack.client import SlackCallError, SlackClient, remedy
from policy_service.channels.slack.delivery import find_channel
from policy_service.errors import StartError
from policy_service.http_clients import Route
from policy_service.slack import SlackApp
from policy_service.tokens.secret_files import read_secret
from policy_service.workflow.slack.admin import ApiFailure, CheckResult


@dataclass(frozen=True, slots=True)
class CredentialSpec:
    """One credential: the setting of its file, its name in Slack, the page that shows it, and its prefix."""

    setting: str
    name: str
    shown: str
    begins: str = ""
    shortest: int = 1


BOT_TOKEN: Final = CredentialSpec("bot_token_file", "bot token", "'OAuth & Permissions'", "xoxb-")
APP_TOKEN: Final = CredentialSpec(
    "app_token_file", "app-level token", "'Basic Information', 'App-Level Tokens'", "xapp-"
)
SIGNING_SECRET: Final = CredentialSpec(
    "signing_secret_file", "signing secret", "'Basic Information'", shortest=16
)
"""Slack's signing secrets have 32 characters. Anyone who guesses one can press every button."""


def bot_token(app: SlackApp) -> str:
    """The bot token.

    Raises:
        StartError: its file is missing, readable by others, or holds no such token.
    """
    return _read(BOT_TOKEN, app.bot_token_file)


def app_token(app: SlackApp) -> str | None:
    """The app-level token of Socket Mode; None if it is not configured.

    Raises:
        StartError: its file is missing, readable by others, or holds no such token.
    """
    return None if app.app_token_file is None else _read(APP_TOKEN, app.app_token_file)


def signing_secret(app: SlackApp) -> str | None:
    """The secret that signs payloads over HTTP; None if it is not configured.

    Raises:
        StartError: its file is missing, readable by others, or holds no such secret.
    """
    return None if app.signing_secret_file is None else _read(SIGNING_SECRET, app.signing_secret_file)


def _read(secret: CredentialSpec, path: Path) -> str:
    get = f"Slack shows the {secret.name} to the app's owner under {secret.shown}"
    named = f"[slack]: {secret.setting}: the file"
    found = read_secret(path, what=named, get=f"create it with chmod 600; {get}")
    try:
        text = found.decode("ascii").strip()
    except UnicodeDecodeError:
        text = ""
    if (
        len(text) < secret.shortest
        or not text.startswith(secret.begins)
        or any(char.isspace() for char in text)
    ):
        begins = f", which begins with {secret.begins}" if secret.begins else ""
        raise StartError(f"{named} {path} does not hold a {secret.name}{begins}; {get}")
    return text


TEST_TEXT: Final = "Countersign can post here. This is a test by its operator; no action is needed."


async def check_setup(app: SlackApp, place: str, route: Route) -> CheckResult:
    """Check both tokens and post a message. Nothing is posted if the bot token belongs to another workspace.

    Raises:
        StartError: the file of a token is missing, readable by others, or holds none.
    """
    bot, token = SlackClient(app, bot_token(app), route), app_token(app)
    failures = [failure for failure in (await _test_posting(bot, app, place),) if failure is not None]
    posted, opened = not failures, None
    if token is not None:
        refused = await _test_socket_mode(SlackClient(app, token, route), app)
        opened = refused is None
        failures += [] if refused is None else [refused]
    team_id, bot_user = (
        (None, None) if bot.token_owner is None else (bot.token_owner.team_id, bot.token_owner.bot_user)
    )
    return CheckResult(team_id, bot_user, posted, opened, tuple(failures))


async def _test_posting(slack: SlackClient, app: SlackApp, place: str) -> ApiFailure | None:
    method = "auth.test"
    try:
        error = (await slack.check_auth()).error
        if error is not None:
            why = slack.workspace_mismatch
            return ApiFailure(
                method, error, remedy(error, method, app) if why is None else f"{why}; {_WORKSPACE_REMEDY}"
            )
        channel = place
        if place.startswith("#"):
            method = "conversations.list"
            channel = await find_channel(slack, place.removeprefix("#"))
        method = "chat.postMessage"
        await slack.call(method, channel=channel, text=TEST_TEXT, unfurl_links=False)
    except SlackCallError as fault:
        return ApiFailure(method, fault.error, remedy(fault.error, method, app))
    finally:
        await slack.close()
    return None


_WORKSPACE_REMEDY: Final = "correct team_id, or install the app in that workspace and use its bot token"


async def _test_socket_mode(slack: SlackClient, app: SlackApp) -> ApiFailure | None:
    method = "apps.connections.open"
    try:
        await slack.call(method)
    except SlackCallError as fault:
        return ApiFailure(method, fault.error, remedy(fault.error, method, app))
    finally:
        await slack.close()
    return None
