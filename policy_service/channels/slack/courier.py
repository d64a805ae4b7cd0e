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

from policy_service.channels.slack.client import OF_A_THREAD, Slack, SlackFault, cursor_after
from policy_service.channels.slack.drawing.blocks import Drawn, Pointer, block_id
from policy_service.channels.slack.drawing.card import bare_card, card, digest, reply
from policy_service.channels.slack.drawing.views import refusal
from policy_service.channels.slack.sending import Came, Outcome, found
from policy_service.channels.slack.subjects import CardSubject, DigestSubject, ReplySubject, read_subject
from policy_service.errors import StorageUnavailableError
from policy_service.queries.context import Context
from policy_service.storage.outbox import Message
from policy_service.storage.slack_tables import SlackCardRow, SlackPlaceRow
from policy_service.workflow.slack.enqueue import EPHEMERAL

_CHANNELS_A_PAGE: Final = 1000
_CHANNEL_PAGES: Final = 50


class Places:
    """Finds channels as Slack names them."""

    def __init__(self, ctx: Context, slack: Slack) -> None:
        self._ctx, self._slack = ctx, slack

    async def channel_of(self, place: SlackPlaceRow) -> str:
        """Slack's own id of a place.

        Raises:
            SlackFault: there is none that the app can see, or Slack does not say.
        """
        if place.channel is not None:
            return place.channel
        channel = await self._look_up(place.place)
        await found(self._ctx, place.place, channel)
        return channel

    async def _look_up(self, place: str) -> str:
        if place.startswith(("U", "W")):
            opened = await self._slack.call("conversations.open", users=place)
            return str(opened["channel"]["id"])
        return await channel_named(self._slack, place.removeprefix("#")) if place.startswith("#") else place


async def channel_named(slack: Slack, name: str) -> str:
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
    raise SlackFault(Came.PLACE, "channel_not_found", unsent=True)


log = structlog.get_logger(__name__)

EVENT: Final = "countersign_message"
"""The kind of our messages' metadata."""

_AS_WRITTEN: Final[Mapping[str, Any]] = {
    "mrkdwn": False, "link_names": False, "parse": "none", "unfurl_links": False, "unfurl_media": False,
}  # fmt: skip
"""Nothing in a message is looked for names or links: what they are, our blocks say."""

_CHANGED_AS_WRITTEN: Final = {name: _AS_WRITTEN[name] for name in ("link_names", "parse")}
"""What a change takes of these."""

_PAGE: Final = 200  # messages of a page, when looking for one that may be there already
_PAGES: Final = 25
_LOOK_BACK_S: Final = 120  # Slack's clock is not ours

CARRY_S: Final = 50.0
"""For all calls of one message: less than the lease it is sent under, so that no other process sends it too."""

TRIES_IN_THE_DARK: Final = 20
"""After so many attempts a message is set aside whose last one failed for what nobody knows: with the rests of its
place between them that is more than an hour, and whatever stands behind it waits no longer."""

_SHUT: Final = frozenset({"channel_not_found", "is_archived"})

_NOTHING: Final = Outcome(Came.NOTHING_TO_SAY)


class Courier:
    """Carries what the outbox holds for Slack."""

    def __init__(self, ctx: Context, slack: Slack) -> None:
        self._ctx, self._slack = ctx, slack
        self._places = Places(ctx, slack)
        self._url = ctx.settings.public_url

    async def carry(self, place: SlackPlaceRow, message: Message) -> Outcome:
        """Send one message; what came of it. All of it is over before the claim is."""
        try:
            async with asyncio.timeout(CARRY_S):
                return _ended(message, await self._carry(place, message))
        except SlackFault as fault:
            return _ended(message, fault.outcome)
        except TimeoutError:
            return Outcome(Came.WORLD, "took_too_long")
        except StorageUnavailableError:
            raise  # of no message: the claim lapses, and it is tried again
        except Exception:
            log.exception("slack_message_not_carried", outbox_id=message.outbox_id, kind=message.kind)
            return _ended(message, Outcome(Came.PLACE, "fault_of_this_service", dark=True))

    async def _carry(self, place: SlackPlaceRow, message: Message) -> Outcome:
        if message.kind == EPHEMERAL:
            return await self._answer(message)
        now = self._ctx.clock()
        subject = await self._ctx.db.read(lambda conn: read_subject(conn, self._ctx, message, now))
        if subject is None:
            return _NOTHING
        if isinstance(subject, ReplySubject):
            return await self._reply(place, message, subject)
        return replace(await self._bring_up_to_date(place, message, subject), at=now)

    # -- cards and digests -------------------------------------------------------------------------------------------

    async def _bring_up_to_date(
        self, place: SlackPlaceRow, message: Message, subject: CardSubject | DigestSubject
    ) -> Outcome:
        try:
            # off the loop: marking a large effect takes its time
            drawn = await asyncio.to_thread(_drawing, lambda: self._drawn(message, subject))
            # an attempt before this one may have drawn something else there
            if message.attempt == 1 and subject.card.ts is not None and subject.card.drawn == drawn.digest():
                return _NOTHING
            return await self._send(place, message, subject.card, drawn)
        except SlackFault as fault:
            if fault.came is not Came.REFUSED or not isinstance(subject, CardSubject):
                raise
            bare = _drawing(lambda: self._bare(message, subject))
            return await self._send(place, message, subject.card, bare)

    def _drawn(self, message: Message, subject: CardSubject | DigestSubject) -> Drawn:
        row, at = subject.card, self._ctx.clock()
        if isinstance(subject, CardSubject):
            pointer = Pointer(row.card_id, subject.view_digest)
            return card(
                subject.page, pointer=pointer, outbox_id=message.outbox_id, public_url=self._url, now=at
            )
        return digest(
            subject.lines, subject.more,
            digest_id=row.card_id, outbox_id=message.outbox_id, public_url=self._url, now=at,
        )  # fmt: skip

    def _bare(self, message: Message, subject: CardSubject) -> Drawn:
        return bare_card(
            subject.page, outbox_id=message.outbox_id, public_url=self._url, now=self._ctx.clock()
        )

    async def _send(self, place: SlackPlaceRow, message: Message, row: SlackCardRow, drawn: Drawn) -> Outcome:
        if row.ts is not None and row.channel is not None:
            try:
                await self._update(row.channel, row.ts, drawn)
            except SlackFault as fault:
                raise await self._of_a_place_before(place, row.channel, fault) from None
            return Outcome(Came.SENT, channel=row.channel, ts=row.ts, drawn=drawn.digest())
        channel = await self._places.channel_of(place)
        named = block_id(row.review_id or row.card_id, row.rev or 0, message.outbox_id)
        ts = await self._posted_before(message, named, channel)
        if ts is not None:
            # what it showed then is not known any more
            try:
                await self._update(channel, ts, drawn)
            except SlackFault as fault:
                fault.found = (channel, ts)  # it stands there all the same, and is not posted again
                raise
        else:
            ts = await self._post(message, named, channel, drawn)
        return Outcome(Came.SENT, channel=channel, ts=ts, drawn=drawn.digest())

    async def _update(self, channel: str, ts: str, drawn: Drawn) -> None:
        await self._slack.call(
            "chat.update", channel=channel, ts=ts, text=drawn.text, blocks=list(drawn.blocks), **_CHANGED_AS_WRITTEN
        )  # fmt: skip

    async def _of_a_place_before(self, place: SlackPlaceRow, channel: str, fault: SlackFault) -> SlackFault:
        """A message in a channel that had the place's name before this one is gone with it: the place is well."""
        if fault.error not in _SHUT or await self._places.channel_of(place) == channel:
            return fault
        return SlackFault(Came.GONE, fault.error, unsent=True)

    # -- threads -----------------------------------------------------------------------------------------------------

    async def _reply(self, place: SlackPlaceRow, message: Message, subject: ReplySubject) -> Outcome:
        channel, parent = subject.carrier.channel, subject.carrier.ts
        if channel is None or parent is None:
            return _NOTHING
        drawn = _drawing(
            lambda: reply(
                subject.line, subject.words, review_id=subject.review_id, rev=subject.rev,
                outbox_id=message.outbox_id, public_url=self._url,
            )
        )  # fmt: skip
        named = block_id(subject.review_id, subject.rev, message.outbox_id)
        try:
            ts = await self._posted_before(message, named, channel, thread=parent)
            if ts is None:
                ts = await self._post(message, named, channel, drawn, thread=parent)
        except SlackFault as fault:
            if fault.error in OF_A_THREAD:
                raise SlackFault(Came.REFUSED, fault.error, unsent=True) from None
            raise await self._of_a_place_before(place, channel, fault) from None
        return Outcome(Came.SENT, channel=channel, ts=ts)

    # -- answers to one person ---------------------------------------------------------------------------------------

    async def _answer(self, message: Message) -> Outcome:
        """Nobody can look up what one person alone was shown: what may have been said is not said again."""
        if message.attempt > 1:
            return Outcome(Came.LOST, "may_have_been_said")
        told = message.payload
        drawn = refusal(str(told["sentence"]), url=told["url"])
        try:
            await self._slack.call(
                "chat.postEphemeral", channel=told["channel"], user=told["user"], text=drawn.text,
                blocks=list(drawn.blocks),
            )  # fmt: skip
        except SlackFault as fault:
            if (fault.came is Came.WORLD and not fault.unsent) or fault.came is Came.PLACE:
                return Outcome(Came.LOST, fault.error)
            raise
        return Outcome(Came.SENT)

    # -- posting once ------------------------------------------------------------------------------------------------

    async def _post(
        self, message: Message, named: str, channel: str, drawn: Drawn, thread: str | None = None
    ) -> str:
        answer = await self._slack.call(
            "chat.postMessage",
            channel=channel,
            thread_ts=thread,
            text=drawn.text,
            blocks=list(drawn.blocks),
            **_AS_WRITTEN,
            metadata={"event_type": EVENT, "event_payload": {"outbox_id": message.outbox_id, "named": named}},
        )
        return str(answer["ts"])

    async def _posted_before(
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
        raise SlackFault(Came.PLACE, "too_much_to_look_through", dark=True)


def _ended(message: Message, outcome: Outcome) -> Outcome:
    """What came of it, and that this was the last attempt where nobody knows what another one would be good for."""
    last = outcome.dark and message.attempt >= TRIES_IN_THE_DARK
    return replace(outcome, came=Came.REFUSED) if last else outcome


def _drawing(draw: Callable[[], Drawn]) -> Drawn:
    """What this draws. What cannot be drawn would be refused, and holds up nothing behind it either."""
    try:
        return draw()
    except (ValueError, SlackObjectFormationError) as error:
        raise SlackFault(Came.REFUSED, "cannot_be_drawn", unsent=True) from error
