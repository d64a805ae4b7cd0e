"""What is told of a service's answer: its beginning, without the credentials that it was asked with.

Rules: what a header gave is hidden where an answer repeats it, whole or in part: no eight characters in a row of it are
told, however the answer quotes, cuts or masks them; the user and the password of basic authentication are hidden as
well. Up to seven characters may be left of what an answer cuts into pieces, and a value of three is no credential.
"""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Final

_MAX_TOLD: Final = 300  # characters of an answer that people and agents get to read
_SHORTEST: Final = 4  # characters of a value that can be a credential; "1" is a version
_RUN: Final = 8  # characters in a row that say too much: of a token, not of "Bearer"
_HIDDEN: Final = "[hidden]"
_SENDABLE: Final = re.compile(r"(?:[!-~]+(?:[ \t]+[!-~]+)*)?")
"""The values that a request can carry, RFC 9110 section 5.5. What sends it refuses others too, and quotes them."""


def unsendable(headers: Mapping[str, str]) -> str | None:
    """The name of a header whose value no request can carry, as one with the line break of the file it came from."""
    return next((name for name, value in headers.items() if not _SENDABLE.fullmatch(value)), None)


def told(text: str, headers: Mapping[str, str]) -> str:
    """The beginning of an answer's text, as it may stand in errors, journals and reports."""
    values = [value for given in headers.values() for value in (given, *_read_out(given))]
    seen = text[
        : _MAX_TOLD + max(map(len, values), default=0)
    ]  # a value that begins before the cut is seen whole
    hides = bytearray(len(seen))
    for piece in {piece for value in values for piece in _pieces(value)}:
        at = seen.find(piece)
        while at >= 0:
            hides[at : at + len(piece)] = b"\1" * len(piece)
            at = seen.find(piece, at + 1)
    runs = itertools.groupby(zip(seen[:_MAX_TOLD], hides, strict=False), key=lambda one: one[1])
    return "".join(_HIDDEN if hidden else "".join(one for one, _ in run) for hidden, run in runs)


def _pieces(value: str) -> Iterator[str]:
    """What must not be told of a value: itself, and whatever is long enough of its words."""
    if len(value) >= _SHORTEST:
        yield value
    for word in value.split():
        yield from (word[at : at + _RUN] for at in range(len(word) - _RUN + 1))


def _read_out(value: str) -> list[str]:
    """The user and the password that basic authentication (RFC 7617) packs."""
    scheme, _, packed = value.partition(" ")
    if scheme.lower() != "basic":
        return []
    try:
        return base64.b64decode(packed, validate=True).decode().split(":", 1)
    except ValueError:
        return []
