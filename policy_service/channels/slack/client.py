"""Calling Slack, and what each of its answers means for a message.

Every call has a time limit and is made once: whoever sends a message decides from the answer whether it may be said
again, because Slack has no key that would make saying it twice the same as once. Of an error only its code is kept.

What may go wrong with Slack, by code, and what an operator does about it. Slack's codes are Slack's; those of ours
stand in docs/how-to/slack.md, and no name of a class is ever one.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
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
"""What is raised before Slack has seen anything of a call."""

_TRANSPORT_ERRORS: Final[tuple[tuple[tuple[type[Exception], ...], str], ...]] = (
    ((aiohttp.ClientSSLError,), "certificate_not_trusted"),
    ((aiohttp.ClientProxyConnectionError, aiohttp.ClientHttpProxyError), "proxy_refused"),
    (NOT_SENT_ERRORS, "not_reachable"),
    ((aiohttp.ContentTypeError,), "not_json"),
    ((aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError), "connection_lost"),
    ((ValueError,), "not_json"),
)
"""Between us and Slack; a kind stands before those it is one of."""

NOT_UNDERSTOOD: Final = "not_understood"
"""An answer that is none of Slack's."""

ANOTHER_WORKSPACE: Final = "token_of_another_workspace"
"""The bot token is not of the workspace that the settings name."""


def error_code(error: Exception) -> str:
    """Our code for what was raised on the way to Slack."""
    return next((code for kinds, code in _TRANSPORT_ERRORS if isinstance(error, kinds)), NOT_UNDERSTOOD)


_NOT_TAKEN: Final = "is not taken: install the app again ('OAuth & Permissions'), and put the bot token there"
_ITS_OWN_NOT_TAKEN: Final = (
    "is not taken: make an app-level token with the scope connections:write ('Basic Information', 'App-Level Tokens'), "
    "and put it there"
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
    if error in _TOKEN_ERRORS:
        if method == "apps.connections.open":
            return f"the token in {app.app_token_file} (app_token_file) {_ITS_OWN_NOT_TAKEN}"
        return f"the token in {app.bot_token_file} (bot_token_file) {_NOT_TAKEN}"
    if error == "missing_scope":
        scope = _SCOPES.get(method, "one that deploy/slack/manifest.yaml has")
        return f"the app lacks the scope {scope}: see that its manifest has it, and install the app again"
    if error.startswith("restricted_action"):
        return "who may post in that channel is restricted: let the app, in the channel's settings"
    return _REMEDIES.get(error, f"Slack's reference of {method} says what this means")


VIEW_TIMEOUT_S: Final = 2.5
"""For what a person waits for: a form opens within three seconds of the press, or never."""

ACCOUNT_TIMEOUT_S: Final = 1.5
"""For who somebody is: it is asked before a press is acknowledged, and Slack waits three seconds for that."""

ACCOUNT_CACHE_S: Final = 60.0
"""How long an answer about an account counts, so that a row of presses is one question."""

_MAX_CACHED_ACCOUNTS: Final = 2_000

THREAD_ERRORS: Final = frozenset(
    {
        "restricted_action_thread_locked", "restricted_action_non_threadable_channel", "cannot_reply_to_message",
        "restricted_action_thread_only_channel",
    }
)  # fmt: skip
"""Codes that tell of one thread alone where a reply was to be posted."""

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
"""Slack's codes. What is not here may be of the place or of the message: its place rests, and it is tried again so
often (`courier.TRIES_IN_THE_DARK`), not for ever."""

_FORM_METHODS: Final = frozenset(
    {"users.info", "conversations.list", "conversations.history", "conversations.replies"}
)
"""Methods that take no JSON."""

_SILENT_METHODS: Final = _FORM_METHODS | {"conversations.open", "auth.test"}
"""Methods after which nobody was told anything, whatever came of them."""

_CODE: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
"""What Slack's codes look like; anything else is not theirs, and is put down nowhere."""

_TIMEOUT_PAUSE: Final = timedelta(seconds=10)

SDK_LOGGER: Final = logging.getLogger("policy_service.slack_sdk")
"""What the SDK tells: it prints every call and delivery in full at lower levels, with what people wrote in them."""

SDK_LOGGER.setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True)
class TokenOwner:
    """Whose token it is, as Slack says: the workspace (or the organisation, for an app of all of it), and the bot."""

    team_id: str
    bot_user: str


class SlackCallError(Exception):
    """A call that did not go well, by what it means. ``unsent``: Slack has certainly not acted on it. ``dark``: nobody
    knows what it means, and it may be so for ever."""

    def __init__(
        self,
        came: SendStatus,
        error: str,
        *,
        rest: timedelta | None = None,
        unsent: bool = False,
        unexplained: bool = False,
    ) -> None:
        super().__init__(error)
        self.came, self.error, self.rest, self.unsent, self.unexplained = (
            came,
            error,
            rest,
            unsent,
            unexplained,
        )
        self.found: tuple[str, str] | None = None  # channel and ts of the message that was to change

    @property
    def outcome(self) -> SendResult:
        """As what came of a message."""
        channel, ts = self.found or (None, None)
        return SendResult(
            self.came, self.error, self.rest, channel, ts, unsent=self.unsent, unexplained=self.unexplained
        )


class SlackClient:
    """The app, as it calls its workspace."""

    def __init__(self, app: SlackApp, bot_token: str, route: Route = DIRECT) -> None:
        self.app = app
        self._route = route
        self._token = bot_token
        self._session: aiohttp.ClientSession | None = None
        self._accounts: dict[str, tuple[float, Account]] = {}
        self.met: TokenOwner | None = None

    async def call(self, method: str, *, timeout_s: float | None = None, **arguments: Any) -> dict[str, Any]:
        """One call of the Web API.

        Raises:
            SlackFault: it did not go well.
        """
        try:
            return await self._call(method, timeout_s or self.app.timeout_s, arguments)
        except SlackCallError as fault:
            # what is in the dark counts as an attempt, so that it ends
            fault.unsent = fault.unsent or (method in _SILENT_METHODS and not fault.unexplained)
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
        """Who presses, as Slack knows them now.

        Raises:
            ForbiddenError: Slack does not say; who nobody vouches for decides nothing.
        """
        if team_id != self.app.team_id:
            return unverified_account(team_id, user_id)
        kept = self._accounts.get(user_id)
        if kept is not None and time.monotonic() - kept[0] < ACCOUNT_CACHE_S:
            return kept[1]
        try:
            told = await self.call("users.info", timeout_s=ACCOUNT_TIMEOUT_S, user=user_id)
            account = _account(told["user"], user_id)
        except (SlackCallError, KeyError, TypeError, AttributeError):
            raise ForbiddenError(
                "Slack does not say who you are just now; press again in a moment, or open it on the web",
                code="not_eligible",
            ) from None
        if len(self._accounts) >= _MAX_CACHED_ACCOUNTS:
            self._accounts.clear()
        self._accounts[user_id] = (time.monotonic(), account)
        return account

    async def test_auth(self) -> SendResult:
        """Whether Slack answers and takes the app's token, and whether that is of the workspace of the settings."""
        try:
            answer = await self.call("auth.test")
            self.met = _token_owner(answer)
        except SlackCallError as fault:
            return fault.outcome
        return (
            SendResult(SendStatus.SENT)
            if self.workspace_mismatch is None
            else SendResult(SendStatus.APP, ANOTHER_WORKSPACE)
        )

    @property
    def workspace_mismatch(self) -> str | None:
        """That the token is not of the workspace of the settings, in words; None where it is, or nobody knows yet."""
        if self.met is None or self.met.team_id == self.app.team_id:
            return None
        return f"the bot token is of {self.met.team_id}, the settings name {self.app.team_id}"

    async def close(self) -> None:
        """Let go of the connections."""
        if self._session is not None:
            await self._session.close()

    def _client(self) -> AsyncWebClient:
        if self._session is None:
            self._session = slack_session()
        return web_client(self.app, self._token, self._route, self._session)


def web_client(
    app: SlackApp, token: str, route: Route, session: aiohttp.ClientSession | None = None
) -> AsyncWebClient:
    """The SDK's client: it repeats nothing by itself, and tells little."""
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
    """Where the next page of a list begins; None after the last."""
    return (answer.get("response_metadata") or {}).get("next_cursor") or None


CALL_ERRORS: Final = (SlackClientError, aiohttp.ClientError, OSError, ValueError, AttributeError)
"""What the SDK raises where a call did not go well: a time limit is an OSError, JSON that is no object an
AttributeError."""


def call_error(error: Exception) -> SlackCallError:
    """What a call that raised this means, by Slack's code or one of ours."""
    if isinstance(error, SlackApiError):
        return _api_error(error)
    if isinstance(error, TimeoutError):
        # it may still be on its way: whoever looks at once may look too early
        return SlackCallError(SendStatus.WORLD, "no_answer", rest=_TIMEOUT_PAUSE)
    return SlackCallError(SendStatus.WORLD, error_code(error), unsent=isinstance(error, NOT_SENT_ERRORS))


def _api_error(error: SlackApiError) -> SlackCallError:
    response = error.response
    if not isinstance(response, AsyncSlackResponse):  # what calls itself JSON and is none
        return SlackCallError(SendStatus.WORLD, "not_json")
    status = response.status_code
    told = response.get("error") if isinstance(response.data, dict) else None
    says = isinstance(told, str) and _CODE.fullmatch(told) is not None
    if status == 200 and not says:
        return SlackCallError(
            SendStatus.WORLD, "not_json"
        )  # a page of something on the way, whatever it calls itself
    code = str(told) if says else f"http_{status}"
    if status == 429:
        return SlackCallError(
            SendStatus.RATE_LIMITED, "ratelimited", rest=_retry_after(response.headers), unsent=True
        )
    if code not in _MEANING and status == 200:
        return SlackCallError(SendStatus.PLACE, code, unexplained=True)
    came = _MEANING.get(code, SendStatus.WORLD)
    rest = _retry_after(response.headers) if came is SendStatus.RATE_LIMITED else None
    return SlackCallError(came, code, rest=rest, unsent=came is not SendStatus.WORLD)


def _token_owner(answer: Mapping[str, Any]) -> TokenOwner:
    """Whose token it is. A token of a whole organisation is of that.

    Raises:
        SlackFault: it is not said; a token of nobody knows whom is not used.
    """
    of = answer.get("enterprise_id") if answer.get("is_enterprise_install") is True else answer.get("team_id")
    if not is_team(of):
        raise SlackCallError(SendStatus.WORLD, NOT_UNDERSTOOD, unsent=True)
    return TokenOwner(of, str(answer.get("user_id") or ""))


def _retry_after(headers: Mapping[str, str]) -> timedelta:
    told = {name.lower(): value for name, value in headers.items()}.get("retry-after", "")
    seconds = int(told[:6]) if told.isascii() and told.isdigit() else 30
    return timedelta(seconds=max(1, seconds))


def _account(user: Mapping[str, Any], user_id: str) -> Account:
    """What ``users.info`` says; what it leaves out of a flag is a no, as Slack has it."""
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
