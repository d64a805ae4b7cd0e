"""The app's secrets, each from the file that the settings name.

What is wrong with one is told with the setting, the file and where Slack shows what belongs there; what is in it is
never quoted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from policy_service.errors import StartError
from policy_service.slack import SlackApp
from policy_service.tokens.files import read_secret


@dataclass(frozen=True, slots=True)
class Secret:
    """One of them: the setting that names its file, its name at Slack, where it is shown, and how it begins."""

    setting: str
    name: str
    shown: str
    begins: str = ""
    shortest: int = 1


BOT_TOKEN: Final = Secret("bot_token_file", "bot token", "'OAuth & Permissions'", "xoxb-")
APP_TOKEN: Final = Secret(
    "app_token_file", "app-level token", "'Basic Information', 'App-Level Tokens'", "xapp-"
)
SIGNING_SECRET: Final = Secret("signing_secret_file", "signing secret", "'Basic Information'", shortest=16)
"""Slack's have 32 characters, and whoever guesses it presses every button."""


def bot_token(app: SlackApp) -> str:
    """What the app calls Slack with.

    Raises:
        StartError: its file is missing, readable by others, or holds none.
    """
    return _read(BOT_TOKEN, app.bot_token_file)


def app_token(app: SlackApp) -> str | None:
    """What the app opens Socket Mode with; None where deliveries do not come by it.

    Raises:
        StartError: its file is missing, readable by others, or holds none.
    """
    return None if app.app_token_file is None else _read(APP_TOKEN, app.app_token_file)


def signing_secret(app: SlackApp) -> str | None:
    """What Slack signs deliveries over HTTP with; None where they do not come by it.

    Raises:
        StartError: its file is missing, readable by others, or holds none.
    """
    return None if app.signing_secret_file is None else _read(SIGNING_SECRET, app.signing_secret_file)


def _read(secret: Secret, path: Path) -> str:
    get = f"Slack shows the {secret.name} to the app's owner under {secret.shown}"
    named = f"[slack]: {secret.setting}: the file"
    found = read_secret(path, what=named, get=f"make it with chmod 600; {get}")
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
