"""What may go wrong with Slack, by code, and what an operator does about it. Slack's codes are Slack's; those of ours
stand in docs/slack.md, and no name of a class is ever one.
"""

from __future__ import annotations

from typing import Final

import aiohttp

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
