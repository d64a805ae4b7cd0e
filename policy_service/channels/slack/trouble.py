"""What may go wrong with Slack, by code, and what an operator does about it. Slack's codes are Slack's; those of ours
stand in docs/slack.md, and no name of a class is ever one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import aiohttp

from policy_service.slack import SlackApp

CLEARLY_UNSENT: Final = (aiohttp.ClientConnectorError, aiohttp.InvalidURL)
"""What is raised before Slack has seen anything of a call."""

_ON_THE_WAY: Final[tuple[tuple[tuple[type[Exception], ...], str], ...]] = (
    ((aiohttp.ClientSSLError,), "certificate_not_trusted"),
    ((aiohttp.ClientProxyConnectionError, aiohttp.ClientHttpProxyError), "proxy_refused"),
    (CLEARLY_UNSENT, "not_reachable"),
    ((aiohttp.ContentTypeError,), "not_json"),
    ((aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError), "connection_lost"),
    ((ValueError,), "not_json"),
)
"""Between us and Slack; a kind stands before those it is one of."""

NOT_UNDERSTOOD: Final = "not_understood"
"""An answer that is none of Slack's."""

ANOTHER_WORKSPACE: Final = "token_of_another_workspace"
"""The bot token is not of the workspace that the settings name."""


def code_of(error: Exception) -> str:
    """Our code for what was raised on the way to Slack."""
    return next((code for kinds, code in _ON_THE_WAY if isinstance(error, kinds)), NOT_UNDERSTOOD)


_NOT_TAKEN: Final = "is not taken: install the app again ('OAuth & Permissions'), and put the bot token there"
_ITS_OWN_NOT_TAKEN: Final = (
    "is not taken: make an app-level token with the scope connections:write ('Basic Information', 'App-Level Tokens'), "
    "and put it there"
)
_OF_A_TOKEN: Final = frozenset(
    {
        "invalid_auth",
        "not_authed",
        "account_inactive",
        "token_revoked",
        "token_expired",
        "not_allowed_token_type",
    }
)
_SCOPES: Final[Mapping[str, str]] = {
    "chat.postMessage": "chat:write",
    "conversations.list": "channels:read and groups:read",
    "apps.connections.open": "connections:write, which is one of the app-level token",
}
_INVITE: Final = "/invite @Countersign"
_REMEDIES: Final[Mapping[str, str]] = {
    "not_in_channel": f"the app is not in that channel; write there: {_INVITE}",
    "channel_not_found": "the app sees no such channel; a private one looks like that until the app is invited there: "
    f"{_INVITE}",
    "is_archived": "the channel is archived: name another one, or unarchive it and invite the app again",
    "ratelimited": "Slack asks for patience; try again in a minute",
    "not_reachable": "nothing answers at Slack's address: see the network, DNS and the firewall of this host",
    "proxy_refused": "the proxy of the setting https_proxy does not let it through to Slack",
    "certificate_not_trusted": "the certificate at Slack's address is not trusted here: a proxy that opens TLS, or old "
    "root certificates on this host",
    "connection_lost": "the connection was cut in the middle; try again, and see the proxy and the firewall",
    "no_answer": "Slack did not answer in time (timeout_s); try again, and see the proxy and the firewall",
    "not_json": "what answers at Slack's address is not Slack: a proxy's own page, for one",
    NOT_UNDERSTOOD: "what answers at Slack's address is not Slack: a proxy's own page, for one",
}


def remedy(error: str, method: str, app: SlackApp) -> str:
    """What an operator does about a call that went wrong, in a sentence."""
    if error in _OF_A_TOKEN:
        if method == "apps.connections.open":
            return f"the token in {app.app_token_file} (app_token_file) {_ITS_OWN_NOT_TAKEN}"
        return f"the token in {app.bot_token_file} (bot_token_file) {_NOT_TAKEN}"
    if error == "missing_scope":
        scope = _SCOPES.get(method, "one that deploy/slack/manifest.yaml has")
        return f"the app lacks the scope {scope}: see that its manifest has it, and install the app again"
    if error.startswith("restricted_action"):
        return "who may post in that channel is restricted: let the app, in the channel's settings"
    return _REMEDIES.get(error, f"Slack's reference of {method} says what this means")
