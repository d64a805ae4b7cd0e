"""The words of people and for people: how long theirs may be, and sentences that every channel says alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from countersign.contract.wire import MAX_TEXT_CHARS
from policy_service.errors import InvalidRequestError

_CLOSED: Final[Mapping[str, str]] = {
    "met": "this was approved already",
    "denied": "this was denied already",
    "expired": "the time to answer this is over",
    "withdrawn": "the agent has withdrawn this",
    "revoked": "this was approved, and the release was revoked since",
}


def require_text_length(words: str) -> str:
    """The words, unless they are too long.

    Raises:
        InvalidRequestError: they are longer than `MAX_TEXT_CHARS`.
    """
    if len(words) > MAX_TEXT_CHARS:
        raise InvalidRequestError(f"write {MAX_TEXT_CHARS:,} characters at most, not {len(words):,}")
    return words


def closed_review_text(state: str) -> str:
    """Why a review in this state takes no answer."""
    return _CLOSED.get(state, f"this review is closed ({state})")


def not_in_groups_text(groups: Iterable[str], does: str) -> str:
    """Why somebody outside these groups may not do it, and what they can do."""
    named = " or ".join(groups)
    return (
        f"only people in {named} {does}, and you are not one of them; ask one of them, or ask your administrator to "
        "add you to the group"
    )
