"""Strict I-JSON admission: the only way bytes or Python values become effects, tokens or requests.

Admission refuses what common parsers accept and later readers interpret differently: duplicate keys, lone surrogates,
NaN, numbers that lose digits, a byte order mark, nesting that ends in a RecursionError, and the keys that Cedar would
turn into entities. Standards: RFC 8259, RFC 7493 (I-JSON), design section 6.

Admission returns the canonical value: `1.0` is the integer 1 and `-0.0` is 0, so loading canonical bytes gives exactly
the value they were made from. Noncharacters (RFC 7493 section 2.1) are accepted on purpose: they are unambiguous bytes
and JSONTestSuite requires them. Unicode is never normalised.

A number has one value, however it is spelled. A whole number beyond 2^53-1 is refused also as `1e21`, and so is a
number that the nearest double would change (RFC 7493 section 2.2), although RFC 8785 can write such doubles.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, NoReturn, TypeAlias, cast

import orjson

from .digests import (
    MAX_SAFE_INTEGER,
    canonicalize,
    integer_range_error,
    is_simple,
    key_not_text_error,
    not_json_error,
)
from .errors import AdmissionError

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"
"""A plain JSON value as Python holds it."""

RESERVED_KEYS: Final = frozenset({"__entity", "__extn", "__expr"})
"""Keys that Cedar's JSON reader turns into typed values (`__entity` matched a real user: reference/cedar.md)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the size of a value. `nodes` are values (object keys are not counted); the outermost container has
    depth 1.
    """

    max_bytes: int = 262_144  # 256 KiB: a page of text is 4 KiB; people cannot review more
    max_depth: int = 64  # half of what the weakest parser in the chain survives
    max_nodes: int = 10_000  # keeps the worst admission under a few milliseconds
    floats: bool = True  # tokens hold no floats: 1.7e9 is not a time


ARGS_LIMITS: Final = Limits()
"""The limits of args and request bodies."""

# Outside strings, only these characters decide depth and node count. The pattern is possessive, and an unterminated
# string runs to the end of the text, so that no input makes the scan quadratic.
_STRUCTURE = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{},]', re.DOTALL)
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_OTHER: Final = object()
# No float: it may be another spelling of an integer.
_SCALARS: Final = frozenset({str, int, bool, type(None)})
_SORTED: Final = orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER
_SAFE_DIGITS: Final = 17  # "-9007199254740991"
_QUOTED: Final = 40  # characters of a refused value that an error quotes
# A double keeps every number of 15 digits and a point (DBL_DIG in C), if it has no exponent.
_SURELY_EXACT: Final = 16


def load(raw: bytes, limits: Limits = ARGS_LIMITS) -> JSON:
    """Parse bytes as strict I-JSON.

    Raises:
        AdmissionError: `too_large`, `bom`, `not_utf8`, `too_deep`, `too_many_nodes`, `not_json`,
        `duplicate_key`,
            `reserved_key`, `lone_surrogate`, `integer_out_of_range`, `number_not_exact`, `not_finite`,
            `float_refused`.
    """
    simple = _load_simple(raw, limits)
    if simple is not _OTHER:
        return cast(JSON, simple)
    text = _decode(raw, limits)
    _scan(text, limits)
    try:
        value: JSON = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_float if limits.floats else _no_float,
            parse_constant=_constant,
        )
    except AdmissionError:
        raise
    except ValueError as error:
        raise AdmissionError("not_json", f"this is not JSON: {error}") from error
    _require_whole(text, value, limits)
    return value


def load_canonical(raw: bytes, limits: Limits = ARGS_LIMITS) -> JSON:
    """Parse bytes as `load` does, and refuse those that are not their own RFC 8785 form.

    Raises:
        AdmissionError: as `load`; `not_canonical`.
    """
    simple = _load_simple(raw, limits)
    if simple is not _OTHER and raw.isascii():  # ASCII keys, which orjson sorts as RFC 8785 does
        return cast(JSON, simple)
    value = load(raw, limits)
    if canonicalize(value) != raw:
        raise AdmissionError(
            "not_canonical", "the bytes are not the RFC 8785 form of their value; canonicalize first"
        )
    return value


def canonical_bytes(raw: bytes, limits: Limits = ARGS_LIMITS) -> bytes:
    """The RFC 8785 form of JSON text.

    Raises:
        AdmissionError: as `load`.
    """
    if raw.isascii() and _load_simple(raw, limits) is not _OTHER:
        return raw
    return canonicalize(load(raw, limits))


def admit(value: object, limits: Limits = ARGS_LIMITS) -> JSON:
    """Apply the same rules to a Python value and return a fresh, normalised copy.

    Raises:
        AdmissionError: as `load`; also `not_a_json_value` for tuples, sets, bytes, Decimal, dates, Enum members and
            every subclass of a JSON type.
    """
    if (simple := _admit_simple(value, limits)) is not None:
        return simple[0]
    admitted = _admit(value, 1, limits, [limits.max_nodes])
    _require_size(canonicalize(admitted), limits)
    return admitted


def admitted_bytes(value: object, limits: Limits = ARGS_LIMITS) -> bytes:
    """The RFC 8785 form of a Python value, admitted by the same rules.

    Raises:
        AdmissionError: as `admit`.
    """
    if (simple := _admit_simple(value, limits)) is not None:
        return simple[1]
    return _require_size(canonicalize(_admit(value, 1, limits, [limits.max_nodes])), limits)


def _admit_simple(value: object, limits: Limits) -> tuple[JSON, bytes] | None:
    """Admit a value on the fast path: a copy read back from its canonical bytes, and those bytes.

    orjson writes tuples and Enum members too, so the types are checked before.
    """
    if not is_simple(value, limits.max_depth):
        return None
    try:
        raw = orjson.dumps(value, option=_SORTED)
    except orjson.JSONEncodeError:
        return None
    admitted = _load_simple(raw, limits)
    return None if admitted is _OTHER else (cast(JSON, admitted), raw)


def _load_simple(raw: bytes, limits: Limits) -> object:
    """Load bytes on the fast path: the value if orjson writes back exactly these bytes, else `_OTHER`.

    Unchanged bytes contain no repeated key, no second spelling, no invalid text and no rounded integer.
    """
    if raw[:2] != b'{"' or len(raw) > limits.max_bytes or _may_be_too_many(raw, limits):
        return _OTHER
    try:
        value: JSON = orjson.loads(raw)
        unchanged = orjson.dumps(value, option=_SORTED) == raw
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return _OTHER
    return value if unchanged and _is_admitted(value, limits.max_depth) else _OTHER


def _may_be_too_many(raw: bytes, limits: Limits) -> bool:
    """An upper bound: every value but the first follows an opening bracket or a comma and takes at least two bytes."""
    return (
        len(raw) >= 2 * limits.max_nodes
        and raw.count(b",") + raw.count(b"[") + raw.count(b"{") >= limits.max_nodes
    )


def _is_admitted(value: JSON, depth: int) -> bool:
    """Whether a value read back from canonical bytes contains nothing that the slow path would refuse or change."""
    if type(value) is dict:
        if not depth or not RESERVED_KEYS.isdisjoint(value):
            return False
        for item in value.values():  # noqa: SIM110
            if type(item) not in _SCALARS and not _is_admitted(item, depth - 1):
                return False
        return True
    if type(value) is list:
        if not depth:
            return False
        for item in value:  # noqa: SIM110
            if type(item) not in _SCALARS and not _is_admitted(item, depth - 1):
                return False
        return True
    return type(value) in _SCALARS


def _require_size(raw: bytes, limits: Limits) -> bytes:
    if len(raw) > limits.max_bytes:
        raise AdmissionError(
            "too_large", f"more than {limits.max_bytes} bytes; send a reference to a large document"
        )
    return raw


def _decode(raw: bytes, limits: Limits) -> str:
    _require_size(raw, limits)
    if raw.startswith(b"\xef\xbb\xbf"):
        raise AdmissionError("bom", "the text starts with a byte order mark; send plain UTF-8")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise AdmissionError(
            "not_utf8", f"byte {error.start} is not UTF-8; send UTF-8 without a mark"
        ) from error


def _scan(text: str, limits: Limits) -> None:
    """Refuse depth and width before parsing: json.loads recurses and would end in a RecursionError."""
    openers = text.count("[") + text.count("{")
    if openers <= limits.max_depth and openers + text.count(",") < limits.max_nodes:
        return  # cannot be too deep or have too many nodes, regardless of its strings
    depth = nested = separated = 0
    for match in _STRUCTURE.finditer(text):
        mark = match.group()
        if mark in "[{":
            depth += 1
            nested += 1
        elif mark == ",":
            separated += 1
        elif mark in "]}":
            depth -= 1
        if depth > limits.max_depth:
            raise too_deep(limits)
        # these characters alone imply that many values
        if nested > limits.max_nodes or separated >= limits.max_nodes:
            raise too_many_nodes(limits)


def _object(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise AdmissionError(
            "duplicate_key", f"key {repeated[:_QUOTED]!r} appears twice in one object; keep one"
        )
    if not RESERVED_KEYS.isdisjoint(members):
        raise _reserved(members)
    return members


def _integer(digits: str) -> int:
    # Check the length first: int() of a long text costs quadratic time and raises past 4,300 digits.
    if len(digits) > _SAFE_DIGITS:
        raise integer_range_error()
    return _safe_integer(int(digits))


def _safe_integer(value: int) -> int:
    if not -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
        raise integer_range_error()
    return value


def _float(digits: str) -> int | float:
    value = float(digits)
    number = _number(value)
    if not is_exact(digits, value):
        raise AdmissionError(
            "number_not_exact", "a number has more digits than a double keeps; round it, or send it as text"
        )
    return number


def is_exact(digits: str, value: float) -> bool:
    """Whether the shortest form of a double, which RFC 8785 writes, equals the number in the source text.

    The exponent is never applied where the double is zero or infinite, so no number grows larger than its text.
    """
    if len(digits) <= _SURELY_EXACT and "e" not in digits and "E" not in digits:
        return True
    if not value:
        return not digits.lower().partition("e")[0].strip("+-0.")
    shortest = repr(value)
    return shortest == digits or (math.isfinite(value) and Decimal(digits) == Decimal(shortest))


def _number(value: float) -> int | float:
    if not math.isfinite(value):
        raise AdmissionError("not_finite", "a number is not finite; leave it out or send text")
    return _safe_integer(int(value)) if value.is_integer() else value


def _no_float(digits: str) -> NoReturn:
    raise AdmissionError(
        "float_refused", f"{digits[:_QUOTED]!r} is not a plain integer; no fractions or exponents here"
    )


def _constant(name: str) -> NoReturn:
    raise AdmissionError("not_finite", f"{name} is not JSON; leave it out or send text")


def _require_whole(text: str, value: JSON, limits: Limits) -> None:
    """Check what needs the parsed value; each check runs only if the text shows that it could fail."""
    if _ESCAPED_SURROGATE.search(text):
        _require_no_surrogate(value)
    if text.count("[") + text.count("{") + text.count(",") >= limits.max_nodes:
        count = sum(1 for _ in _nodes(value))
        if count > limits.max_nodes:
            raise too_many_nodes(limits)


def _require_no_surrogate(value: JSON) -> None:
    for node in _nodes(value):
        if isinstance(node, str):
            _require_text(node)
        elif isinstance(node, dict):
            for key in node:
                _require_text(key)


def _nodes(value: JSON) -> Iterator[JSON]:
    yield value
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in children:
        yield from _nodes(child)


def _require_text(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        message = f"character {error.start} of a string is half of a surrogate pair; repair the text"
        raise AdmissionError("lone_surrogate", message) from error
    return text


def _admit(value: object, depth: int, limits: Limits, budget: list[int]) -> JSON:
    budget[0] -= 1
    if budget[0] < 0:
        raise too_many_nodes(limits)
    if value is None or isinstance(value, bool):
        return value
    kind = type(value)
    if kind is str:
        return _require_text(value)  # type: ignore[arg-type]
    if kind is int:
        return _safe_integer(value)  # type: ignore[arg-type]
    if kind is float:
        return _number(value) if limits.floats else _no_float(repr(value))  # type: ignore[arg-type]
    if depth > limits.max_depth:
        raise too_deep(limits)
    if kind is list:
        return [_admit(item, depth + 1, limits, budget) for item in value]  # type: ignore[attr-defined]
    if kind is dict:
        return _admit_object(value, depth, limits, budget)  # type: ignore[arg-type]
    raise not_json_error(value)


def _admit_object(
    members: dict[object, object], depth: int, limits: Limits, budget: list[int]
) -> dict[str, JSON]:
    admitted: dict[str, JSON] = {}
    for key, item in members.items():
        if type(key) is not str:
            raise key_not_text_error(key)
        admitted[_require_text(key)] = _admit(item, depth + 1, limits, budget)
    if not RESERVED_KEYS.isdisjoint(admitted):
        raise _reserved(admitted)
    return admitted


def too_deep(limits: Limits) -> AdmissionError:
    """The error for a value that nests too deep."""
    return AdmissionError("too_deep", f"nested deeper than {limits.max_depth} levels; flatten the value")


def too_many_nodes(limits: Limits) -> AdmissionError:
    """The error for too many values."""
    return AdmissionError("too_many_nodes", f"more than {limits.max_nodes} values; split the call")


def _reserved(members: dict[str, JSON]) -> AdmissionError:
    key = sorted(RESERVED_KEYS.intersection(members))[0]
    return AdmissionError("reserved_key", f"key {key!r} is reserved by the policy engine; rename it")
