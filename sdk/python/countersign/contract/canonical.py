"""RFC 8785 canonical JSON: one value, one sequence of bytes.

Every digest is computed over these bytes. The fast path (orjson with sorted keys) is used only where it is provably
byte-equal to RFC 8785: no float, no integer beyond 2^53-1, only ASCII keys. Everything else goes through the `rfc8785`
package, after a walk that names what is wrong. Both paths refuse values that are not plain JSON (tuples, sets, bytes,
Decimal, Enum members, any subclass), so that no serialiser's own convention decides what is signed.

Reserved keys and size limits are checked by `admission`, not here.
"""

import math
from typing import Final

import orjson
import rfc8785

from .errors import AdmissionError

MAX_SAFE_INTEGER: Final = 2**53 - 1
"""The largest integer every JSON reader keeps exactly (RFC 7493 section 2.2)."""

MAX_DEPTH: Final = 128
"""Twice the depth that admission allows for args, because digests and log rows wrap args in further objects."""

_SCALARS: Final = frozenset({str, int, bool, type(None)})
_SORTED: Final = orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER


def canonicalize(value: object) -> bytes:
    """Return the RFC 8785 form of a plain JSON value.

    `-0.0` becomes `0` and `1.0` becomes `1`: they are the same effect. No Unicode normalisation takes place.

    Raises:
        AdmissionError: `not_a_json_value`, `not_finite`, `integer_out_of_range`, `lone_surrogate`,
        `too_deep`.
    """
    if is_simple(value, MAX_DEPTH):
        try:
            return orjson.dumps(value, option=_SORTED)
        except orjson.JSONEncodeError:
            pass  # a lone surrogate or an integer out of range: the slow path names it
    _require_plain(value, 0)
    try:
        return rfc8785.dumps(value)  # type: ignore[arg-type]
    except (UnicodeEncodeError, rfc8785.CanonicalizationError) as error:
        # The walk above refused everything else; only lone surrogates reach the serialiser.
        raise AdmissionError(
            "lone_surrogate", "a string holds half of a surrogate pair; repair the text"
        ) from error


def is_simple(value: object, depth: int) -> bool:
    """Whether orjson gives the same bytes, apart from integers, whose range orjson checks itself.

    orjson sorts by code point and RFC 8785 by UTF-16 unit. They differ outside the BMP, so keys must be ASCII. Plain
    loops take a third less time than a generator.
    """
    kind = type(value)
    if kind is dict:
        if not depth:
            return False
        for key, item in value.items():  # type: ignore[attr-defined]
            if type(key) is not str or not key.isascii():
                return False
            if type(item) not in _SCALARS and not is_simple(item, depth - 1):
                return False
        return True
    if kind is list:
        if not depth:
            return False
        for item in value:  # type: ignore[attr-defined]  # noqa: SIM110
            if type(item) not in _SCALARS and not is_simple(item, depth - 1):
                return False
        return True
    return kind in _SCALARS


def _require_plain(value: object, depth: int) -> None:
    """Refuse what is not plain JSON."""
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return
    if kind is int:
        if not -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:  # type: ignore[operator]
            raise integer_range_error()
    elif kind is float:
        if not math.isfinite(value):  # type: ignore[arg-type]
            raise AdmissionError("not_finite", f"{value!r} is not a JSON number; leave it out or send text")
    elif kind is list or kind is dict:
        if depth >= MAX_DEPTH:
            raise AdmissionError(
                "too_deep", f"the value is nested deeper than {MAX_DEPTH} levels; flatten it"
            )
        _require_children(value, depth + 1)
    else:
        raise not_json_error(value)


def _require_children(value: object, depth: int) -> None:
    if isinstance(value, dict):
        for key in value:
            if type(key) is not str:
                raise key_not_text_error(key)
        value = value.values()
    for item in value:  # type: ignore[attr-defined]
        _require_plain(item, depth)


def integer_range_error() -> AdmissionError:
    """The error for an integer that some JSON readers would round (not quoted: it may have thousands of digits)."""
    return AdmissionError(
        "integer_out_of_range", "an integer lies outside +-(2^53-1), where readers round; send it as text"
    )


def key_not_text_error(key: object) -> AdmissionError:
    """The error for an object key that is not text (not quoted: it may be a secret or have no text at all)."""
    return AdmissionError(
        "not_a_json_value", f"an object has a {type(key).__name__} for a key; use text keys"
    )


def not_json_error(value: object) -> AdmissionError:
    """The error for a Python value that JSON cannot represent."""
    return AdmissionError(
        "not_a_json_value",
        f"a {type(value).__name__} is not a JSON value; use None, bool, int, float, str, list or dict",
    )
