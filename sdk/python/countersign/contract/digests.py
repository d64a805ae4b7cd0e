"""Canonical JSON (RFC 8785), and digests and ids: SHA-256 over labelled canonical bytes, lower-case hex.

One value has one sequence of bytes. The fast path (orjson with sorted keys) is used only where it is provably
byte-equal to RFC 8785: no float, no integer beyond 2^53-1, only ASCII keys. Everything else goes through the `rfc8785`
package, after a walk that names what is wrong. Both paths refuse values that are not plain JSON (tuples, sets, bytes,
Decimal, Enum members, any subclass), so that no serialiser's own convention decides what is signed. Reserved keys and
size limits are checked by `admission`, not here.

Each label ends in a version and a newline, so that digests of different kinds never collide and a second version can
coexist with the first. Both sides compute every digest themselves and only compare what they receive.
"""

import base64
import hashlib
import math
from collections.abc import Sequence
from typing import Final

import orjson
import rfc8785

from .errors import AdmissionError

ARGS_LABEL: Final = b"countersign/args/v1\n"
CALL_LABEL: Final = b"countersign/call/v1\n"
TXN_ID_LABEL: Final = b"countersign/txn-id/v1\n"
EFFECT_ID_LABEL: Final = b"countersign/effect-id/v1\n"
EFFECT_LABEL: Final = b"countersign/effect/v1\n"
TXN_LABEL: Final = b"countersign/txn/v1\n"
COMPENSATE_LABEL: Final = b"countersign/compensate/v1\n"
TOOL_LABEL: Final = b"countersign/tool/v1\n"


def labelled_digest(label: bytes, canonical: bytes) -> str:
    """SHA-256 over a label and canonical bytes, as lower-case hex."""
    return hashlib.sha256(label + canonical).hexdigest()


def args_digest(*, args: object) -> str:
    """Digest of the args of a call.

    Raises:
        AdmissionError: the value has no canonical form.
    """
    return labelled_digest(ARGS_LABEL, canonicalize(args))


def call_key(*, agent: str, run_key: str, tool: str, args: object, n: int = 0) -> str:
    """The id of the logical call, which is the idempotency key the tool gets.

    `n` counts intended repeats of the same call within one run, from 0. It is computed from the args as the agent
    staged them. An accepted edit keeps it, so verifiers do not recompute it.

    Raises:
        AdmissionError: a value has no canonical form.
    """
    return labelled_digest(
        CALL_LABEL, canonicalize({"agent": agent, "run_key": run_key, "tool": tool, "args": args, "n": n})
    )


def txn_id(*, agent: str, run_key: str) -> str:
    """The transaction id: the same run key of the same agent gives the same transaction in any process."""
    return labelled_digest(TXN_ID_LABEL, canonicalize({"agent": agent, "run_key": run_key}))


def independent_txn_id(*, agent: str, run_key: str, call_key: str) -> str:
    """The transaction id of one effect of `transaction(independent=True)` (design section 7)."""
    return labelled_digest(
        TXN_ID_LABEL, canonicalize({"agent": agent, "run_key": run_key, "call_key": call_key})
    )


def effect_id(*, txn: str, call_key: str) -> str:
    """The effect id: one call within one transaction, at any revision."""
    return labelled_digest(EFFECT_ID_LABEL, canonicalize({"txn": txn, "call_key": call_key}))


def txn_digest(*, effect_digests: Sequence[str]) -> str:
    """Digest of exactly this list of effects in this order: none can be dropped, added or reordered."""
    return labelled_digest(TXN_LABEL, canonicalize(list(effect_digests)))


def compensation_call_key(*, effect_id: str, tool: str) -> str:
    """The call key of a compensation: one for each forward effect, the same in any process."""
    return labelled_digest(COMPENSATE_LABEL, canonicalize({"effect_id": effect_id, "tool": tool}))


def tool_digest(manifest: object) -> str:
    """Digest of a tool manifest, given as its canonical JSON value (`ToolManifest.digest` does this for you)."""
    return labelled_digest(TOOL_LABEL, canonicalize(manifest))


def body_digest(body: bytes) -> str:
    """SHA-256 of a raw request body, base64url without padding, as the `bd` claim of a proof carries it."""
    return base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode("ascii")


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
