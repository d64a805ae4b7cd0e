"""Reads members of a response, whether it is an object or a dict: counts that are counts, and short words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

MAX_TOKENS: Final = 10**8  # of one call; more is no count of tokens, and sums of it must fit 64 bits


def get(body: Any, *path: str) -> Any:
    """A member of an object or a dict, by its name or as JSON writes it (`usage_metadata`, `usageMetadata`)."""
    for name in path:
        body = _of_mapping(body, name) if isinstance(body, Mapping) else getattr(body, name, None)
    return body


def _of_mapping(body: Mapping[Any, Any], name: str) -> Any:
    return body.get(name, body.get(_camel(name)))


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


def items(body: Any, name: str) -> list[Any]:
    found = get(body, name)
    return list(found) if isinstance(found, list | tuple) else []


def count(body: Any, *path: str) -> int | None:
    """A count of tokens; None where there is none, or something that is not one (true, 1.5, a mock)."""
    found = get(body, *path)
    return found if type(found) is int and 0 <= found <= MAX_TOKENS else None


def word(body: Any, *path: str) -> str | None:
    """A short text, or the name of an enum's member."""
    found = get(body, *path)
    found = getattr(found, "name", found)
    return found if isinstance(found, str) and found else None


def words(found: Iterator[str | None]) -> tuple[str, ...]:
    return tuple(word for word in found if word is not None)
