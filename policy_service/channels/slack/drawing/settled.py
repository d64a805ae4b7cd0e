"""What became of an effect, for a card nobody decides on any more. Pure."""

from __future__ import annotations

from slack_sdk.models.blocks import RichTextElement

from policy_service.channels.showing.standing import Outcome, outcome
from policy_service.channels.slack.drawing.people import decided_lines
from policy_service.channels.slack.drawing.writing import Pen, bold, own, section, when
from policy_service.queries.review_models import ReviewPage

_TOLD_WITH_WHO = frozenset({"Denied", "Approved", "Released", "Break-glass"})
"""Outcomes that the line of who settled it says already."""


def settled_lines(page: ReviewPage) -> list[RichTextElement]:
    """What became of it, whether anything fired above all; and who settled it. Nothing is said twice."""
    told, who = outcome(page), decided_lines(page)
    words = Pen().said(told.text, 300)
    if who and told.tag in _TOLD_WITH_WHO:
        return [*who, *([section(words)] if told.text else [])]
    head = bold(Pen().shown(told.heading, 120))
    if page.state == "expired" and page.superseded_by is None:
        return [section(head, own(" · "), when(page.answer_by)), section(words)]
    return [section(head, own("."), own(" "), words) if told.text else section(head), *who]


def state_words(page: ReviewPage) -> str:
    """The state of a review in a word or two."""
    if page.state == "open" and page.superseded_by is None:
        return "Review wanted"
    return _short(outcome(page))


def _short(told: Outcome) -> str:
    return Pen().shown(told.heading or told.tag)
