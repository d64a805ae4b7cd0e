"""Ids for things that are not named by a digest: time-ordered, so that pages and indexes go by key.

``new_id("rev", now)`` is ``rev_`` and 26 characters of Crockford base32: 48 bits of milliseconds, then 80 random bits
(the layout of a ULID). Order within one millisecond is not promised and nothing relies on it.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_RANDOM_BITS = 80
_LENGTH = 26


def new_id(prefix: str, now: datetime) -> str:
    """A fresh id that says its kind and sorts by time of making."""
    number = (int(now.timestamp() * 1000) << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS)
    return f"{prefix}_{_encode(number)}"


def first_id(prefix: str, at: datetime) -> str:
    """What every id of that kind made at this moment or later is not less than."""
    return f"{prefix}_{_encode(int(at.timestamp() * 1000) << _RANDOM_BITS)}"


def made_at(made: str) -> datetime:
    """When an id of :func:`new_id` was made, to the millisecond."""
    number = 0
    for digit in made.rpartition("_")[2]:
        number = number * 32 + _ALPHABET.index(digit)
    return datetime.fromtimestamp((number >> _RANDOM_BITS) / 1000, UTC)


def _encode(number: int) -> str:
    digits = [_ALPHABET[(number >> (5 * place)) & 31] for place in range(_LENGTH)]
    return "".join(reversed(digits))
