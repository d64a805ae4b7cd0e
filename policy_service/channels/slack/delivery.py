"""Carrying one message to Slack: exactly once, as far as Slack lets anybody know.

Posting has no key that would make it the same twice, so a message that may have been posted before is first looked for:
by the name of its first block and by its metadata, which both say which row of the outbox it was. Where that cannot be
looked up, it waits. Changing a message may be repeated: it shows what stands. What is said is read and drawn now, and
what a message says already is not sent again.

Which channel of Slack's a place is: found once, so that a channel that is renamed stays the same.
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

_CHANNELS_A_PAGE: Final = 1000
_CHANNEL_PAGES: Final = 50


class ChannelResolver:
    """Finds channels as Slack names them."""

    def __init__(self, ctx: Context, slack: SlackClient) -> None:
        self._ctx, self._slack = ctx, slack

    async def channel_of(self, place: SlackPlaceRow) -> str:
        """Slack's own id of a place.

        Raises:
            SlackFault: there is none that the app can see, or Slack does not say.
        """
        if place.channel is not None:
            return place.channel
        channel = await self._look_up(place.place)
        await save_channel_id(self._ctx, place.place, channel)
        return channel

    async def _look_up(self, place: str) -> str:
        if place.startswith(("U", "W")):
            opened = await self._slack.call("conversations.open", users=place)
            return str(opened["channel"]["id"])
        return await find_channel(self._slack, place.removeprefix("#")) if place.startswith("#") else place


async def find_channel(slack: SlackClient, name: str) -> str:
    """The channel of this name, without its ``#``, among those the app can see.

    Raises:
        SlackFault: there is none, or Slack does not say.
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


log = structlog.get_logger(__name__)

METADATA_EVENT: Final = "countersign_message"
"""The kind of our messages' metadata."""

_NO_MARKUP: Final[Mapping[str, Any]] = {
    "mrkdwn": False, "link_names": False, "parse": "none", "unfurl_links": False, "unfurl_media": False,
}  # fmt: skip
"""Nothing in a message is looked for names or links: what they are, our blocks say."""

_NO_MARKUP_ON_UPDATE: Final = {name: _NO_MARKUP[name] for name in ("link_names", "parse")}
"""What a change takes of these."""

_PAGE: Final = 200  # messages of a page, when looking for one that may be there already
_PAGES: Final = 25
_LOOK_BACK_S: Final = 120  # Slack's clock is not ours

SEND_TIMEOUT_S: Final = 50.0
"""For all calls of one message: less than the lease it is sent under, so that no other process sends it too."""

MAX_UNEXPLAINED_ATTEMPTS: Final = 20
"""After so many attempts a message is set aside whose last one failed for what nobody knows: with the rests of its
place between them that is more than an hour, and whatever stands behind it waits no longer."""

_CHANNEL_GONE_ERRORS: Final = frozenset({"channel_not_found", "is_archived"})

_UNCHANGED: Final = SendResult(SendStatus.UNCHANGED)


class MessageSender:
    """Carries what the outbox holds for Slack."""

    def __init__(self, ctx: Context, slack: SlackClient) -> None:
        self._ctx, self._slack = ctx, slack
        self._places = ChannelResolver(ctx, slack)
        self._url = ctx.settings.public_url

    async def send_message(self, place: SlackPlaceRow, message: Message) -> SendResult:
        """Send one message; what came of it. All of it is over before the claim is."""
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                return _limit_attempts(message, await self._carry(place, message))
        except SlackCallError as fault:
            return _limit_attempts(message, fault.outcome)
        except TimeoutError:
            return SendResult(SendStatus.WORLD, "took_too_long")
        except StorageUnavailableError:
            raise  # of no message: the claim lapses, and it is tried again
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
            # off the loop: marking a large effect takes its time
            drawn = await asyncio.to_thread(_render, lambda: self._drawn(message, subject))
            # an attempt before this one may have drawn something else there
            if message.attempt == 1 and subject.card.ts is not None and subject.card.drawn == drawn.digest():
                return _UNCHANGED
            return await self._send(place, message, subject.card, drawn)
        except SlackCallError as fault:
            if fault.came is not SendStatus.REFUSED or not isinstance(subject, CardContent):
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
        channel = await self._places.channel_of(place)
        named = block_id(row.review_id or row.card_id, row.rev or 0, message.outbox_id)
        ts = await self._find_posted(message, named, channel)
        if ts is not None:
            # what it showed then is not known any more
            try:
                await self._update(channel, ts, drawn)
            except SlackCallError as fault:
                fault.found = (channel, ts)  # it stands there all the same, and is not posted again
                raise
        else:
            ts = await self._post(message, named, channel, drawn)
        return SendResult(SendStatus.SENT, channel=channel, ts=ts, drawn=drawn.digest())

    async def _update(self, channel: str, ts: str, drawn: RenderedMessage) -> None:
        await self._slack.call(
            "chat.update", channel=channel, ts=ts, text=drawn.text, blocks=list(drawn.blocks), **_NO_MARKUP_ON_UPDATE
        )  # fmt: skip

    async def _error_of_old_channel(
        self, place: SlackPlaceRow, channel: str, fault: SlackCallError
    ) -> SlackCallError:
        """A message in a channel that had the place's name before this one is gone with it: the place is well."""
        if fault.error not in _CHANNEL_GONE_ERRORS or await self._places.channel_of(place) == channel:
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
        """Nobody can look up what one person alone was shown: what may have been said is not said again."""
        if message.attempt > 1:
            return SendResult(SendStatus.LOST, "may_have_been_said")
        told = message.payload
        drawn = refusal_message(str(told["sentence"]), url=told["url"])
        try:
            await self._slack.call(
                "chat.postEphemeral", channel=told["channel"], user=told["user"], text=drawn.text,
                blocks=list(drawn.blocks),
            )  # fmt: skip
        except SlackCallError as fault:
            if (fault.came is SendStatus.WORLD and not fault.unsent) or fault.came is SendStatus.PLACE:
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
        """The message of this row that is there already; only one that was tried before can be."""
        if message.attempt == 1:
            return None
        since = message.created_at.timestamp() - _LOOK_BACK_S  # nobody tried before it was owed
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


def _limit_attempts(message: Message, outcome: SendResult) -> SendResult:
    """What came of it, and that this was the last attempt where nobody knows what another one would be good for."""
    last = outcome.unexplained and message.attempt >= MAX_UNEXPLAINED_ATTEMPTS
    return replace(outcome, came=SendStatus.REFUSED) if last else outcome


def _render(draw: Callable[[], RenderedMessage]) -> RenderedMessage:
    """What this draws. What cannot be drawn would be refused, and holds up nothing behind it either."""
    try:
        return draw()
    except (ValueError, SlackObjectFormationError) as error:
        raise SlackCallError(SendStatus.REFUSED, "cannot_be_drawn", unsent=True) from error
