"""Send one outbox message to Slack, exactly once as far as Slack's API allows.

Posting has no idempotency key. Before a retry, the channel is searched for the message by the id of its first block and
its metadata, which both name its outbox row. If the search fails, the message waits. Updates are idempotent. The
content is read and rendered when it is sent, and an unchanged message is not sent again.

A channel name is resolved to Slack's id once, so that a renamed channel stays the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import structlog
from slack_sdk.errors import SlackObjectFormationError

from policy_service.channels.slack.blocks.block_kit import Pointer, RenderedMessage, block_id
from policy_service.channels.slack.blocks.card import card, digest, minimal_card, thread_reply
from policy_service.channels.slack.blocks.views import refusal_message
from policy_service.channels.slack.client import THREAD_ERRORS, SlackCallError, SlackClient, cursor_after
from policy_service.channels.slack.message_content import (
    CardContent,
    DigestContent,
    ReplyContent,
    read_content,
)
from policy_service.channels.slack.send_queue import SendResult, SendStatus, save_channel_id
from policy_service.errors import StorageUnavailableError
from policy_service.queries.context import Context
from policy_service.storage.outbox import Message
from policy_service.storage.slack_tables import SlackCardRow, SlackPlaceRow
from policy_service.workflow.slack.enqueue import EPHEMERAL

log = structlog.get_logger(__name__)

_CHANNELS_A_PAGE: Final = 1000
_CHANNEL_PAGES: Final = 50


METADATA_EVENT: Final = "countersign_message"
"""The event type in our messages' metadata."""

_NO_MARKUP: Final[Mapping[str, Any]] = {
    "mrkdwn": False, "link_names": False, "parse": "none", "unfurl_links": False, "unfurl_media": False,
}  # fmt: skip
"""Slack must not parse names or links in a message, so that text cannot mention people or unfurl links."""

_NO_MARKUP_ON_UPDATE: Final = {name: _NO_MARKUP[name] for name in ("link_names", "parse")}
"""The subset of these that chat.update accepts."""

_PAGE: Final = 200  # messages per page when searching for an earlier attempt
_PAGES: Final = 25
_LOOK_BACK_S: Final = 120  # tolerance between Slack's clock and ours

SEND_TIMEOUT_S: Final = 50.0
"""Timeout for all calls of one message. It is shorter than the lease, so that no other process sends it as well."""

MAX_UNEXPLAINED_ATTEMPTS: Final = 20
"""After so many attempts a message is abandoned if the last error is unexplained. With the pauses of its channel that
is more than an hour. Later messages then no longer wait for it."""

_CHANNEL_GONE_ERRORS: Final = frozenset({"channel_not_found", "is_archived"})

_UNCHANGED: Final = SendResult(SendStatus.UNCHANGED)


class MessageSender:
    """Sends the outbox's messages to Slack."""

    def __init__(self, ctx: Context, slack: SlackClient) -> None:
        self._ctx, self._slack = ctx, slack
        self._url = ctx.settings.public_url

    async def send_message(self, place: SlackPlaceRow, message: Message) -> SendResult:
        """Send one message and return the result, before its claim expires."""
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                return _limit_attempts(message, await self._carry(place, message))
        except SlackCallError as fault:
            return _limit_attempts(message, fault.result)
        except TimeoutError:
            return SendResult(SendStatus.WORLD, "took_too_long")
        except StorageUnavailableError:
            raise  # not an error of the message: its claim expires, and it is retried
        except Exception:
            log.exception("slack_message_not_carried", outbox_id=message.outbox_id, kind=message.kind)
            return _limit_attempts(
                message, SendResult(SendStatus.PLACE, "fault_of_this_service", unexplained=True)
            )

    async def _carry(self, place: SlackPlaceRow, message: Message) -> SendResult:
        if message.kind == EPHEMERAL:
            return await self._answer(message)
        now = self._ctx.clock()
        subject = await self._ctx.db.read(lambda conn: read_content(conn, self._ctx, message, now))
        if subject is None:
            return _UNCHANGED
        if isinstance(subject, ReplyContent):
            return await self._reply(place, message, subject)
        return replace(await self._post_or_update(place, message, subject), at=now)

    # -- cards and digests -------------------------------------------------------------------------------------------

    async def _post_or_update(
        self, place: SlackPlaceRow, message: Message, subject: CardContent | DigestContent
    ) -> SendResult:
        try:
            # in a thread: rendering a large effect is slow
            drawn = await asyncio.to_thread(_render, lambda: self._drawn(message, subject))
            # an earlier attempt may have posted other content
            if message.attempt == 1 and subject.card.ts is not None and subject.card.drawn == drawn.digest():
                return _UNCHANGED
            return await self._send(place, message, subject.card, drawn)
        except SlackCallError as fault:
            if fault.result.status is not SendStatus.REFUSED or not isinstance(subject, CardContent):
                raise
            bare = _render(lambda: self._bare(message, subject))
            return await self._send(place, message, subject.card, bare)

    def _drawn(self, message: Message, subject: CardContent | DigestContent) -> RenderedMessage:
        row, at = subject.card, self._ctx.clock()
        if isinstance(subject, CardContent):
            pointer = Pointer(row.card_id, subject.view_digest)
            return card(
                subject.page, pointer=pointer, outbox_id=message.outbox_id, public_url=self._url, now=at
            )
        return digest(
            subject.lines, subject.more,
            digest_id=row.card_id, outbox_id=message.outbox_id, public_url=self._url, now=at,
        )  # fmt: skip

    def _bare(self, message: Message, subject: CardContent) -> RenderedMessage:
        return minimal_card(
            subject.page, outbox_id=message.outbox_id, public_url=self._url, now=self._ctx.clock()
        )

    async def _send(
        self, place: SlackPlaceRow, message: Message, row: SlackCardRow, drawn: RenderedMessage
    ) -> SendResult:
        if row.ts is not None and row.channel is not None:
            try:
                await self._update(row.channel, row.ts, drawn)
            except SlackCallError as fault:
                raise await self._error_of_old_channel(place, row.channel, fault) from None
            return SendResult(SendStatus.SENT, channel=row.channel, ts=row.ts, drawn=drawn.digest())
        channel = await self._channel_of(place)
        named = block_id(row.review_id or row.card_id, row.rev or 0, message.outbox_id)
        ts = await self._find_posted(message, named, channel)
        if ts is not None:
            # its content is unknown, so update it
            try:
                await self._update(channel, ts, drawn)
            except SlackCallError as fault:
                # it exists, so it must not be posted again
                fault.result = replace(fault.result, channel=channel, ts=ts)
                raise
        else:
            ts = await self._post(message, named, channel, drawn)
        return SendResult(SendStatus.SENT, channel=channel, ts=ts, drawn=drawn.digest())

    async def _channel_of(self, place: SlackPlaceRow) -> str:
        """The Slack channel id of a place: of a channel, or of a direct message with a user."""
        if place.channel is not None:
            return place.channel
        name = channel = place.place
        if name.startswith(("U", "W")):
            channel = str((await self._slack.call("conversations.open", users=name))["channel"]["id"])
        elif name.startswith("#"):
            channel = await find_channel(self._slack, name.removeprefix("#"))
        await save_channel_id(self._ctx, name, channel)
        return channel

    async def _update(self, channel: str, ts: str, drawn: RenderedMessage) -> None:
        await self._slack.call(
            "chat.update", channel=channel, ts=ts, text=drawn.text, blocks=list(drawn.blocks), **_NO_MARKUP_ON_UPDATE
        )  # fmt: skip

    async def _error_of_old_channel(
        self, place: SlackPlaceRow, channel: str, fault: SlackCallError
    ) -> SlackCallError:
        """The error for an update in an earlier channel of the same name: that message is gone, the place is usable."""
        if fault.error not in _CHANNEL_GONE_ERRORS or await self._channel_of(place) == channel:
            return fault
        return SlackCallError(SendStatus.GONE, fault.error, unsent=True)

    # -- threads -----------------------------------------------------------------------------------------------------

    async def _reply(self, place: SlackPlaceRow, message: Message, subject: ReplyContent) -> SendResult:
        channel, parent = subject.carrier.channel, subject.carrier.ts
        if channel is None or parent is None:
            return _UNCHANGED
        drawn = _render(
            lambda: thread_reply(
                subject.line, subject.words, review_id=subject.review_id, rev=subject.rev,
                outbox_id=message.outbox_id, public_url=self._url,
            )
        )  # fmt: skip
        named = block_id(subject.review_id, subject.rev, message.outbox_id)
        try:
            ts = await self._find_posted(message, named, channel, thread=parent)
            if ts is None:
                ts = await self._post(message, named, channel, drawn, thread=parent)
        except SlackCallError as fault:
            if fault.error in THREAD_ERRORS:
                raise SlackCallError(SendStatus.REFUSED, fault.error, unsent=True) from None
            raise await self._error_of_old_channel(place, channel, fault) from None
        return SendResult(SendStatus.SENT, channel=channel, ts=ts)

    # -- answers to one person ---------------------------------------------------------------------------------------

    async def _answer(self, message: Message) -> SendResult:
        """Send an ephemeral message. It cannot be looked up, so it is not retried if it may have been shown."""
        if message.attempt > 1:
            return SendResult(SendStatus.LOST, "may_have_been_said")
        given = message.payload
        drawn = refusal_message(str(given["sentence"]), url=given["url"])
        try:
            await self._slack.call(
                "chat.postEphemeral", channel=given["channel"], user=given["user"], text=drawn.text,
                blocks=list(drawn.blocks),
            )  # fmt: skip
        except SlackCallError as fault:
            status = fault.result.status
            if (status is SendStatus.WORLD and not fault.result.unsent) or status is SendStatus.PLACE:
                return SendResult(SendStatus.LOST, fault.error)
            raise
        return SendResult(SendStatus.SENT)

    # -- posting once ------------------------------------------------------------------------------------------------

    async def _post(
        self, message: Message, named: str, channel: str, drawn: RenderedMessage, thread: str | None = None
    ) -> str:
        answer = await self._slack.call(
            "chat.postMessage",
            channel=channel,
            thread_ts=thread,
            text=drawn.text,
            blocks=list(drawn.blocks),
            **_NO_MARKUP,
            metadata={
                "event_type": METADATA_EVENT,
                "event_payload": {"outbox_id": message.outbox_id, "named": named},
            },
        )
        return str(answer["ts"])

    async def _find_posted(
        self, message: Message, named: str, channel: str, *, thread: str | None = None
    ) -> str | None:
        """The ts of an earlier attempt's message, if there is one."""
        if message.attempt == 1:
            return None
        since = message.created_at.timestamp() - _LOOK_BACK_S  # no attempt is older than the row
        async for one in self._messages(channel, thread, f"{since:.6f}"):
            payload = (one.get("metadata") or {}).get("event_payload") or {}
            blocks = one.get("blocks") or [{}]
            if payload.get("outbox_id") == message.outbox_id or blocks[0].get("block_id") == named:
                return str(one["ts"])
        return None

    async def _messages(
        self, channel: str, thread: str | None, oldest: str
    ) -> AsyncIterator[Mapping[str, Any]]:
        method = "conversations.history" if thread is None else "conversations.replies"
        cursor: str | None = None
        for _ in range(_PAGES):
            answer = await self._slack.call(
                method, channel=channel, ts=thread, oldest=oldest, limit=_PAGE, include_all_metadata="true",
                cursor=cursor,
            )  # fmt: skip
            for one in answer["messages"]:
                yield one
            cursor = cursor_after(answer)
            if cursor is None:
                return
        raise SlackCallError(SendStatus.PLACE, "too_much_to_look_through", unexplained=True)


async def find_channel(slack: SlackClient, name: str) -> str:
    """The id of the channel with this name (without ``#``), among those the app can see.

    Raises:
        SlackCallError: there is none, or the call failed.
    """
    cursor: str | None = None
    for _ in range(_CHANNEL_PAGES):
        answer = await slack.call(
            "conversations.list",
            types="public_channel,private_channel",
            exclude_archived="true",
            limit=_CHANNELS_A_PAGE,
            cursor=cursor,
        )
        for channel in answer["channels"]:
            if channel.get("name") == name:
                return str(channel["id"])
        cursor = cursor_after(answer)
        if cursor is None:
            break
    raise SlackCallError(SendStatus.PLACE, "channel_not_found", unsent=True)


def _limit_attempts(message: Message, outcome: SendResult) -> SendResult:
    """The result, or a refusal after too many unexplained attempts."""
    last = outcome.unexplained and message.attempt >= MAX_UNEXPLAINED_ATTEMPTS
    return replace(outcome, status=SendStatus.REFUSED) if last else outcome


def _render(draw: Callable[[], RenderedMessage]) -> RenderedMessage:
    """Render a message. One that cannot be rendered counts as refused, so that later messages are not blocked."""
    try:
        return draw()
    except (ValueError, SlackObjectFormationError) as error:
        raise SlackCallError(SendStatus.REFUSED, "cannot_be_drawn", unsent=True) from error
