"""The app manifest asks for what the code calls, and no more; its addresses are the route's."""

import re
from pathlib import Path
from typing import Any

import yaml

from policy_service.slack import EVENTS_PATH as PATH

ROOT = Path(__file__).parents[4]
CODE = ROOT / "policy_service/channels/slack"
# What each method of the Web API that we call needs, from Slack's reference of its methods.
HISTORY = {"channels:history", "groups:history", "im:history"}
NEEDS = {
    **{f"chat.{name}": {"chat:write"} for name in ("postMessage", "postEphemeral", "update")},
    **{f"conversations.{name}": HISTORY for name in ("history", "replies")},
    **{name: set[str]() for name in ("auth.test", "views.open", "views.publish", "views.update")},
    "apps.connections.open": set[str](),  # with the app-level token, which has scopes of its own
    "conversations.list": {"channels:read", "groups:read"},
    "conversations.open": {"im:write"},
    "users.info": {"users:read"},
}
OTHER_SCOPES = {"commands", "users:read.email"}  # for the slash command, and for a field of users.info


TEXT = (ROOT / "deploy/slack/manifest.yaml").read_text()
MANIFEST: dict[str, Any] = yaml.safe_load(TEXT)
HOME = "https://countersign.example.com"


def called() -> set[str]:
    """Every method that is named in the code of the channel."""
    text = "".join(file.read_text() for file in sorted(CODE.glob("*.py")))
    return set(re.findall(r'"((?:chat|conversations|users|views|auth|apps|im|reactions)\.[a-zA-Z.]+)"', text))


def test_every_method_that_is_called_is_known_here() -> None:
    assert called() == set(NEEDS)


def test_the_app_asks_for_the_scopes_it_needs_and_no_other() -> None:
    assert set(MANIFEST["oauth_config"]["scopes"]["bot"]) == OTHER_SCOPES.union(*NEEDS.values())


def test_every_request_url_is_the_events_endpoint() -> None:
    settings, (command,) = MANIFEST["settings"], MANIFEST["features"]["slash_commands"]
    parts = [settings[part]["request_url"] for part in ("event_subscriptions", "interactivity")]
    output = [command["url"], *parts]
    assert set(output) == {HOME + PATH}
    assert re.findall(HOME + r"(\S*)", TEXT).count(PATH) == len(output)


def test_subscribed_events_are_those_the_dispatcher_handles() -> None:
    asked = set(MANIFEST["settings"]["event_subscriptions"]["bot_events"])
    dispatcher = (CODE / "dispatcher.py").read_text()
    assert asked == {"app_home_opened", "app_uninstalled", "tokens_revoked"}
    assert all(f'"{event}"' in dispatcher for event in asked)
