"""The home of the app: what waits for this person, or the way to say who they are. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from slack_sdk.models.blocks import ActionsBlock, Block, ButtonElement, ConfirmObject, HeaderBlock
from slack_sdk.models.views import View

from policy_service.channels.slack.drawing.message import viewed
from policy_service.channels.slack.drawing.rows import listed, number_waiting, numbered, row_of
from policy_service.channels.slack.drawing.writing import Pen, bold, own, plain, rich, section, stamp
from policy_service.queries.queue import QueuePage

MOST_NOTE: Final = 400  # characters of a note about Slack itself


def home(
    waiting: QueuePage | None,
    *,
    name: str | None,
    direct: bool,
    public_url: str,
    now: datetime,
    slack_note: str | None = None,
    why_not: str | None = None,
    linked: bool = False,
) -> dict[str, Any]:
    """A person's home; ``waiting`` is None for somebody who is asked nothing here: ``why_not`` says why, and without
    it they are not ``linked`` yet. ``direct``: they want direct messages; ``slack_note``: what is said first."""
    note = [_noted(slack_note)] if slack_note and slack_note != why_not else []
    queue = f"{public_url.rstrip('/')}/"
    if waiting is None:
        blocks = _refused(why_not, queue, linked=linked) if why_not else _unknown()
        return viewed(View(type="home", blocks=[*note, *blocks]))
    total = number_waiting(waiting)
    rows = listed((row_of(row, public_url) for row in waiting.rows), total, queue)
    head = numbered(total) if waiting.rows else "Nothing waits"
    blocks = [
        HeaderBlock(text=plain(f"{head} for you")),
        *rows,
        _foot(name, now),
        _ways(queue, direct=direct),
    ]
    return viewed(View(type="home", blocks=[*note, *blocks]))


def _noted(words: str) -> Block:
    return rich(section(Pen().said(words, MOST_NOTE)))


def _unknown() -> list[Block]:
    words = "Countersign does not know yet who you are in Slack. Link your account once, by signing in."
    way = "Write /countersign link to get a link of your own."
    return [HeaderBlock(text=plain("Link your account")), rich(section(own(words))), rich(section(own(way)))]


def _refused(why_not: str, queue: str, *, linked: bool) -> list[Block]:
    ways = [_open(queue), _unlink()] if linked else [_open(queue)]
    return [
        HeaderBlock(text=plain("You decide nothing from here")),
        _noted(why_not),
        ActionsBlock(elements=ways),
    ]


def _foot(name: str | None, now: datetime) -> Block:
    who = [*own("You are "), *bold(Pen().shown(name)), *own(" here. ")] if name else []
    return rich(section(who, own(f"As of {stamp(now)}.")))


def _ways(queue: str, *, direct: bool) -> Block:
    messages = ButtonElement(
        text=plain("Stop direct messages" if direct else "Send me direct messages"),
        action_id="direct",
        value="off" if direct else "on",
    )
    return ActionsBlock(elements=[_open(queue), messages, _unlink()])


def _open(queue: str) -> ButtonElement:
    return ButtonElement(text=plain("Open the queue"), action_id="open", url=queue)


def _unlink() -> ButtonElement:
    sure = ConfirmObject(
        title=plain("Unlink"),
        text=plain("Nobody decides for you from Slack any more. You can link again at any time."),
        confirm=plain("Unlink"),
        deny=plain("Go back"),
    )
    return ButtonElement(text=plain("Unlink…"), action_id="unlink", value="unlink", confirm=sure)
