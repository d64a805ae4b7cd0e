"""RFC 8785 canonical JSON: one value, one sequence of bytes.

Every digest of the system is taken over these bytes. The fast way (orjson, keys sorted) is used only where it
is provably byte-equal to RFC 8785: no float, no integer beyond 2^53-1, only ASCII keys. Everything else goes
through the `rfc8785` package. Values that are not plain JSON (tuples, sets, bytes, Decimal, Enum members, any
subclass) are refused on both ways, so that no serialiser's private convenience ever decides what was signed.

This module does not admit: reserved keys and size limits are `admission`'s.
"""

import math
from typing import Final

import orjson
import rfc8785

from .errors import AdmissionError

MAX_SAFE_INTEGER: Final = 2**53 - 1
"""The largest integer every JSON reader keeps exactly (RFC 7493 section 2.2)."""

MAX_DEPTH: Final = 128
"""Twice the depth admission allows for args, because names and log rows wrap args in objects of their own."""


def canonicalize(value: object) -> bytes:
    """Return the RFC 8785 form of a plain JSON value.

    `-0.0` becomes `0` and `1.0` becomes `1`: they are the same effect. No Unicode normalisation takes place.

    Raises:
        AdmissionError: `not_a_json_value`, `not_finite`, `integer_out_of_range`, `lone_surrogate`,
        `too_deep`.
    """
    fast = _require_plain(value, 0)
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS) if fast else rfc8785.dumps(value)  # type: ignore[arg-type]
    except (orjson.JSONEncodeError, UnicodeEncodeError, rfc8785.CanonicalizationError) as error:
        # Everything else was refused by the walk above; only lone surrogates reach the serialisers.
        raise AdmissionError(
            "lone_surrogate", "a string holds half of a surrogate pair; repair the text"
        ) from error


def _require_plain(value: object, depth: int) -> bool:
    """Refuse what is not plain JSON; answer whether the fast way gives the same bytes."""
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return True
    if kind is int:
        return _require_safe_integer(value)  # type: ignore[arg-type]
    if kind is float:
        return _require_finite(value)  # type: ignore[arg-type]
    if depth >= MAX_DEPTH:
        raise AdmissionError("too_deep", f"the value is nested deeper than {MAX_DEPTH} levels; flatten it")
    if kind is list:
        return _plain_list(value, depth + 1)  # type: ignore[arg-type]
    if kind is dict:
        return _plain_dict(value, depth + 1)  # type: ignore[arg-type]
    raise not_json(value)


def _plain_list(items: list[object], depth: int) -> bool:
    fast = True
    for item in items:
        if not _require_plain(item, depth):
            fast = False
    return fast


def _plain_dict(members: dict[object, object], depth: int) -> bool:
    fast = True
    for key, item in members.items():
        if type(key) is not str:
            raise AdmissionError("not_a_json_value", f"object key {key!r} is not a string; use text keys")
        # orjson sorts by code point, RFC 8785 by UTF-16 unit: they differ outside the BMP, so ASCII only.
        if not key.isascii():
            fast = False
        if not _require_plain(item, depth):
            fast = False
    return fast


def _require_safe_integer(value: int) -> bool:
    if not -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
        raise integer_out_of_range()
    return True


def _require_finite(value: float) -> bool:
    if not math.isfinite(value):
        raise AdmissionError("not_finite", f"{value!r} is not a JSON number; leave it out or send text")
    return False


def integer_out_of_range() -> AdmissionError:
    """The refusal of an integer that some JSON readers would round (never quoted: it may have thousands of
    digits)."""
    return AdmissionError(
        "integer_out_of_range", "an integer lies outside +-(2^53-1), where readers round; send it as text"
    )


def not_json(value: object) -> AdmissionError:
    """The refusal of a Python value that has no place in JSON."""
    return AdmissionError(
        "not_a_json_value",
        f"a {type(value).__name__} is not a JSON value; use None, bool, int, float, str, list or dict",
    )
