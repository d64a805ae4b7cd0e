"""What people write: reasons, comments and answers have one limit in every channel, the wire's."""

from __future__ import annotations

from countersign.contract.wire import MAX_TEXT_CHARS
from policy_service.errors import InvalidRequestError


def require_short(words: str) -> str:
    """The words, unless they are too long.

    Raises:
        InvalidRequestError: they are longer than `MAX_TEXT_CHARS`.
    """
    if len(words) > MAX_TEXT_CHARS:
        raise InvalidRequestError(f"write {MAX_TEXT_CHARS:,} characters at most, not {len(words):,}")
    return words
