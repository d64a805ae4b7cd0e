"""Client of Slack's Web API: calls, the meaning of each error code for a message, and remedies for operators.

Every call has a timeout and is sent once. Slack has no idempotency keys, so the sender of a message decides from the
result whether to repeat it. Of an error only its code is kept. Our own codes are in docs/how-to/slack.md.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import aiohttp
from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from policy_service.channels.slack.send_queue import SendResult, SendStatus
from policy_service.errors import ForbiddenError
from policy_service.http_clients import DIRECT, Route, slack_client, slack_session
from policy_service.slack import SlackApp, is_team
from policy_service.workflow.slack.account_links import Account, unverified_account

NOT_SENT_ERRORS: Final = (aiohttp.ClientConnectorError, aiohttp.InvalidURL)
"""Exceptions raised before Slack has received anything of a call."""

_TRANSPORT_ERRORS: Final[tuple[tuple[tuple[type[Exception], ...], str], ...]] = (
    ((aiohttp.ClientSSLError,), "certificate_not_trusted"),
    ((aiohttp.ClientProxyConnectionError, aiohttp.ClientHttpProxyError), "proxy_refused"),
    (NOT_SENT_ERRORS, "not_reachable"),
    ((aiohttp.ContentTypeError,), "not_json"),
    ((aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError), "connection_lost"),
    ((ValueError,), "not_json"),
)
"""Our codes for errors between this service and Slack. A subclass is listed before its base class."""

NOT_UNDERSTOOD: Final = "not_understood"
"""A response that is not from Slack."""

ANOTHER_WORKSPACE: Final = "token_of_another_workspace"
"""The bot token belongs to another workspace than the configured one."""


def error_code(error: Exception) -> str:
    """Our code for an exception of a call."""
    return next((code for kinds, code in _TRANSPORT_ERRORS if isinstance(error, kinds)), NOT_UNDERSTOOD)


_NOT_TAKEN: Final = "is not valid: reinstall the app ('OAuth & Permissions'), and put the bot token there"
_ITS_OWN_NOT_TAKEN: Final = (
    "is not valid: create an app-level token with the scope connections:write ('Basic Information', 'App-Level "
    "Tokens'), and put it there"
)
_TOKEN_ERRORS: Final = frozenset(
    "invalid_auth not_authed account_inactive token_revoked token_expired not_allowed_token_type".split()
)
_SCOPES: Final[Mapping[str, str]] = {
    "chat.postMessage": "chat:write",
    "conversations.list": "channels:read and groups:read",
    "apps.connections.open": "connections:write, which is one of the app-level token",
}
_INVITE: Final = "/invite @Countersign"
_REMEDIES: Final[Mapping[str, str]] = {
    "not_in_channel": f"the app is not in that channel; run there: {_INVITE}",
    "channel_not_found": "the app sees no such channel; a private one is invisible until the app is invited there: "
    f"{_INVITE}",
    "is_archived": "the channel is archived: name another one, or unarchive it and invite the app again",
    "ratelimited": "Slack's rate limit is reached; retry in a minute",
    "not_reachable": "Slack's address does not respond: check the network, DNS and the firewall of this host",
    "proxy_refused": "the proxy of the setting https_proxy refuses the connection to Slack",
    "certificate_not_trusted": "the certificate at Slack's address is not trusted: a proxy intercepts TLS, or "
    "this host has old root certificates",
    "connection_lost": "the connection was lost; retry, and check the proxy and the firewall",
    "no_answer": "Slack did not respond in time (timeout_s); retry, and check the proxy and the firewall",
    "not_json": "the response at Slack's address is not from Slack, for example an error page of a proxy",
    NOT_UNDERSTOOD: "the response at Slack's address is not from Slack, for example an error page of a proxy",
}


def remedy(error: str, method: str, app: SlackApp) -> str:
    """A sentence for operators: how to fix a failed call."""
    if error in _TOKEN_ERRORS:
        if method == "apps.connections.open":
            return f"the token in {app.app_token_file} (app_token_file) {_ITS_OWN_NOT_TAKEN}"
        return f"the token in {app.bot_token_file} (bot_token_file) {_NOT_TAKEN}"
    if error == "missing_scope":
        scope = _SCOPES.get(method, "one that deploy/slack/manifest.yaml has")
        return f"the app lacks the scope {scope}: add it to the app's manifest, and reinstall the app"
    if error.startswith("restricted_action"):
        return "posting in that channel is restricted: allow the app in the channel's settings"
    return _REMEDIES.get(error, f"see Slack's reference of {method}")


VIEW_TIMEOUT_S: Final = 2.5
"""Timeout for opening a view: Slack's trigger expires three seconds after the press."""

ACCOUNT_TIMEOUT_S: Final = 1.5
"""Timeout for users.info, which runs before a press is acknowledged. Slack waits three seconds for that."""

ACCOUNT_CACHE_S: Final = 60.0
"""How long an account is cached, so that a series of presses costs one call."""

_MAX_CACHED_ACCOUNTS: Final = 2_000

THREAD_ERRORS: Final = frozenset(
    {
        "restricted_action_thread_locked", "restricted_action_non_threadable_channel", "cannot_reply_to_message",
        "restricted_action_thread_only_channel",
    }
)  # fmt: skip
"""Codes that concern only the thread of a reply, not its channel."""

_MEANING: Final[Mapping[str, SendStatus]] = {
    **dict.fromkeys(("ratelimited", "rate_limited", "message_limit_exceeded"), SendStatus.RATE_LIMITED),
    **dict.fromkeys(
        (
            "invalid_auth", "not_authed", "account_inactive", "token_revoked", "token_expired", "missing_scope",
            "no_permission", "access_denied", "org_login_required", "ekm_access_denied",
            "team_access_not_granted", "not_allowed_token_type", "two_factor_setup_required", "accesslimited",
            "enterprise_is_restricted",
        ),
        SendStatus.APP,
    ),
    **dict.fromkeys(
        (
            "channel_not_found", "is_archived", "not_in_channel", "restricted_action",
            "restricted_action_read_only_channel", "is_inactive", "channel_is_limited_access", "user_not_found",
            "user_disabled", "cannot_dm_bot", "messages_tab_disabled", "user_not_in_channel", "team_not_found",
            "user_not_visible", *THREAD_ERRORS,
        ),
        SendStatus.PLACE,
    ),
    **dict.fromkeys(
        ("internal_error", "fatal_error", "service_unavailable", "request_timeout", "team_added_to_org"),
        SendStatus.WORLD,
    ),
    **dict.fromkeys(
        ("message_not_found", "cant_update_message", "thread_not_found", "invalid_thread_ts"), SendStatus.GONE
    ),
    **dict.fromkeys(
        (
            "invalid_blocks", "invalid_blocks_format", "msg_too_long", "msg_blocks_too_long", "no_text",
            "invalid_arguments", "invalid_arg_name", "invalid_attachments", "too_many_attachments",
            "metadata_too_large", "invalid_metadata_format", "invalid_metadata_schema", "edit_window_closed",
            "block_mismatch", "duplicate_message_not_found",
        ),
        SendStatus.REFUSED,
    ),
}  # fmt: skip
"""The meaning of Slack's codes. Any other code may concern the channel or the message: the channel is paused, and the
message is retried at most `delivery.MAX_UNEXPLAINED_ATTEMPTS` times."""

_FORM_METHODS: Final = frozenset(
    {"users.info", "conversations.list", "conversations.history", "conversations.replies"}
)
"""Methods that accept no JSON."""

_SILENT_METHODS: Final = _FORM_METHODS | {"conversations.open", "auth.test"}
"""Methods that show nothing to anyone, so that a failed call certainly posted nothing."""

_CODE: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
"""The format of Slack's codes. Anything else is not from Slack and is not recorded."""

_TIMEOUT_PAUSE: Final = timedelta(seconds=10)

SDK_LOGGER: Final = logging.getLogger("policy_service.slack_sdk")
"""The SDK's logger. At lower levels the SDK logs every call and payload in full, including people's texts."""

SDK_LOGGER.setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True)
class TokenOwner:
    """The owner of a token: its workspace (or organisation, for an org-wide app) and its bot user."""

    team_id: str
    bot_user: str


class SlackCallError(Exception):
    """A failed call. ``result``: what it means for the message that was to be sent."""

    def __init__(
        self,
        status: SendStatus,
        error: str,
        *,
        rest: timedelta | None = None,
        unsent: bool = False,
        unexplained: bool = False,
    ) -> None:
        super().__init__(error)
        self.error = error
        self.result = SendResult(status, error, rest, unsent=unsent, unexplained=unexplained)


class SlackClient:
    """The app's client of its workspace."""

    def __init__(self, app: SlackApp, bot_token: str, route: Route = DIRECT) -> None:
        self.app = app
        self._route = route
        self._token = bot_token
        self._session: aiohttp.ClientSession | None = None
        self._accounts: dict[str, tuple[float, Account]] = {}
        self.token_owner: TokenOwner | None = None

    async def call(self, method: str, *, timeout_s: float | None = None, **arguments: Any) -> dict[str, Any]:
        """Call a method of the Web API once.

        Raises:
            SlackCallError: the call failed.
        """
        try:
            return await self._call(method, timeout_s or self.app.timeout_s, arguments)
        except SlackCallError as fault:
            # an unexplained error counts as an attempt, so that retries end
            if method in _SILENT_METHODS and not fault.result.unexplained:
                fault.result = replace(fault.result, unsent=True)
            raise

    async def _call(self, method: str, limit: float, arguments: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in arguments.items() if value is not None}
        reads = method in _FORM_METHODS
        try:
            async with asyncio.timeout(limit):
                answer = await self._client().api_call(
                    method, params=given if reads else None, json=None if reads else given
                )
        except CALL_ERRORS as error:
            raise call_error(error) from None
        if not isinstance(answer.data, dict):
            raise SlackCallError(SendStatus.WORLD, "not_json")
        return answer.data

    async def account(self, user_id: str, team_id: str) -> Account:
        """The account that pressed a button, with its current state in Slack.

        Raises:
            ForbiddenError: Slack did not return the account. An unverified account cannot decide.
        """
        if team_id != self.app.team_id:
            return unverified_account(team_id, user_id)
        kept = self._accounts.get(user_id)
        if kept is not None and time.monotonic() - kept[0] < ACCOUNT_CACHE_S:
            return kept[1]
        try:
            given = await self.call("users.info", timeout_s=ACCOUNT_TIMEOUT_S, user=user_id)
            account = _account(given["user"], user_id)
        except (SlackCallError, KeyError, TypeError, AttributeError):
            raise ForbiddenError(
                "Slack could not confirm your account; press again in a moment, or open the review on the web",
                code="not_eligible",
            ) from None
        if len(self._accounts) >= _MAX_CACHED_ACCOUNTS:
            self._accounts.clear()
        self._accounts[user_id] = (time.monotonic(), account)
        return account

    async def check_auth(self) -> SendResult:
        """Call auth.test: whether the token is valid and belongs to the configured workspace."""
        try:
            answer = await self.call("auth.test")
            self.token_owner = _token_owner(answer)
        except SlackCallError as fault:
            return fault.result
        return (
            SendResult(SendStatus.SENT)
            if self.workspace_mismatch is None
            else SendResult(SendStatus.APP, ANOTHER_WORKSPACE)
        )

    @property
    def workspace_mismatch(self) -> str | None:
        """A sentence if the token belongs to another workspace than the configured one; None if not, or unknown."""
        if self.token_owner is None or self.token_owner.team_id == self.app.team_id:
            return None
        return f"the bot token belongs to {self.token_owner.team_id}, the settings name {self.app.team_id}"

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _client(self) -> AsyncWebClient:
        if self._session is None:
            self._session = slack_session()
        return web_client(self.app, self._token, self._route, self._session)


def web_client(
    app: SlackApp, token: str, route: Route, session: aiohttp.ClientSession | None = None
) -> AsyncWebClient:
    """The SDK's client, without retries and verbose logs."""
    return slack_client(
        token,
        app.api_url,
        route,
        session,
        timeout=int(app.timeout_s) + 1,
        retry_handlers=[],
        logger=SDK_LOGGER,
    )


def cursor_after(answer: Mapping[str, Any]) -> str | None:
    """The cursor of the next page; None after the last one."""
    return (answer.get("response_metadata") or {}).get("next_cursor") or None


CALL_ERRORS: Final = (SlackClientError, aiohttp.ClientError, OSError, ValueError, AttributeError)
"""What the SDK raises for a failed call. A timeout is an OSError; JSON that is not an object is an AttributeError."""


def call_error(error: Exception) -> SlackCallError:
    """The meaning of an exception of a call, by Slack's code or one of ours."""
    if isinstance(error, SlackApiError):
        return _api_error(error)
    if isinstance(error, TimeoutError):
        # the message may still arrive: wait before looking it up
        return SlackCallError(SendStatus.WORLD, "no_answer", rest=_TIMEOUT_PAUSE)
    return SlackCallError(SendStatus.WORLD, error_code(error), unsent=isinstance(error, NOT_SENT_ERRORS))


def _api_error(error: SlackApiError) -> SlackCallError:
    response = error.response
    if not isinstance(response, AsyncSlackResponse):  # declared as JSON, but not JSON
        return SlackCallError(SendStatus.WORLD, "not_json")
    status = response.status_code
    given = response.get("error") if isinstance(response.data, dict) else None
    says = isinstance(given, str) and _CODE.fullmatch(given) is not None
    if status == 200 and not says:
        return SlackCallError(SendStatus.WORLD, "not_json")  # a page of a proxy with a wrong content type
    code = str(given) if says else f"http_{status}"
    if status == 429:
        return SlackCallError(
            SendStatus.RATE_LIMITED, "ratelimited", rest=_retry_after(response.headers), unsent=True
        )
    if code not in _MEANING and status == 200:
        return SlackCallError(SendStatus.PLACE, code, unexplained=True)
    meaning = _MEANING.get(code, SendStatus.WORLD)
    rest = _retry_after(response.headers) if meaning is SendStatus.RATE_LIMITED else None
    return SlackCallError(meaning, code, rest=rest, unsent=meaning is not SendStatus.WORLD)


def _token_owner(answer: Mapping[str, Any]) -> TokenOwner:
    """The owner of the token: its organisation for an org-wide app, otherwise its workspace.

    Raises:
        SlackCallError: the response does not name it. A token of an unknown owner is not used.
    """
    of = answer.get("enterprise_id") if answer.get("is_enterprise_install") is True else answer.get("team_id")
    if not is_team(of):
        raise SlackCallError(SendStatus.WORLD, NOT_UNDERSTOOD, unsent=True)
    return TokenOwner(of, str(answer.get("user_id") or ""))


def _retry_after(headers: Mapping[str, str]) -> timedelta:
    given = {name.lower(): value for name, value in headers.items()}.get("retry-after", "")
    seconds = int(given[:6]) if given.isascii() and given.isdigit() else 30
    return timedelta(seconds=max(1, seconds))


def _account(user: Mapping[str, Any], user_id: str) -> Account:
    """The account of a ``users.info`` response. A missing flag is false, as Slack documents."""
    if user["id"] != user_id:
        raise KeyError("another user")
    profile = user.get("profile") or {}
    return Account(
        team_id=str(user["team_id"]),
        user_id=user_id,
        name=str(profile.get("display_name") or user.get("real_name") or user.get("name") or user_id),
        email=str(profile["email"]) if profile.get("email") else None,
        deleted=bool(user.get("deleted")),
        bot=bool(user.get("is_bot")) or bool(user.get("is_workflow_bot")) or user_id == "USLACKBOT",
        guest=bool(user.get("is_restricted")) or bool(user.get("is_ultra_restricted")),
        stranger=bool(user.get("is_stranger")),
    )
