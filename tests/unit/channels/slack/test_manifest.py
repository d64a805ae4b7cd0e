"""The app manifest asks for what the code calls, and no more; its addresses are the route's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from policy_service.slack import EVENTS_PATH as PATH

ROOT = Path(__file__).parents[4]
CODE = ROOT / "policy_service/channels/slack"
# What each method of the Web API that we call needs, from Slack's reference of its methods.
NEEDS = {
    "apps.connections.open": set[str](),  # with the app-level token, which has scopes of its own
    "auth.test": set[str](),
    "chat.postMessage": {"chat:write"},
    "chat.postEphemeral": {"chat:write"},
    "chat.update": {"chat:write"},
    "conversations.history": {"channels:history", "groups:history", "im:history"},
    "conversations.replies": {"channels:history", "groups:history", "im:history"},
    "conversations.list": {"channels:read", "groups:read"},
    "conversations.open": {"im:write"},
    "users.info": {"users:read"},
    "views.open": set[str](),
    "views.publish": set[str](),
    "views.update": set[str](),
}
BESIDE = {"commands", "users:read.email"}  # of what Slack sends by itself, and of a field of users.info


@pytest.fixture
def manifest() -> dict[str, Any]:
    text = (ROOT / "deploy/slack/manifest.yaml").read_text()
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def called() -> set[str]:
    """Every method that is named in the code of the channel."""
    text = "".join(file.read_text() for file in sorted(CODE.glob("*.py")))
    return set(re.findall(r'"((?:chat|conversations|users|views|auth|apps|im|reactions)\.[a-zA-Z.]+)"', text))


def test_every_method_that_is_called_is_known_here() -> None:
    assert called() == set(NEEDS)


def test_the_app_asks_for_the_scopes_it_needs_and_no_other(manifest: dict[str, Any]) -> None:
    assert set(manifest["oauth_config"]["scopes"]["bot"]) == BESIDE.union(*NEEDS.values())


def test_everything_is_delivered_to_the_one_address_we_have(manifest: dict[str, Any]) -> None:
    told = re.findall(
        r"https://countersign\.example\.com(\S*)", (ROOT / "deploy/slack/manifest.yaml").read_text()
    )
    addresses = [
        manifest["features"]["slash_commands"][0]["url"],
        manifest["settings"]["event_subscriptions"]["request_url"],
        manifest["settings"]["interactivity"]["request_url"],
    ]
    assert {address.removeprefix("https://countersign.example.com") for address in addresses} == {PATH}
    assert told.count(PATH) == len(addresses)


def test_the_events_that_are_asked_for_are_those_the_desk_knows(manifest: dict[str, Any]) -> None:
    asked = set(manifest["settings"]["event_subscriptions"]["bot_events"])
    desk = (CODE / "desk.py").read_text()
    assert asked == {"app_home_opened", "app_uninstalled", "tokens_revoked"}
    assert all(f'"{event}"' in desk for event in asked)
