"""Strict reading of claims: every member is known, present and of its one type.

Whole numbers exclude booleans, text is bounded and digests are well formed. An unknown member refuses the whole,
because its writer intended a meaning that this reader would ignore.
"""

import re
from collections.abc import Mapping
from typing import Final

from .effect import Resource, is_digest
from .errors import ContractError

MAX_TEXT: Final = 1024
_TOKEN_ID: Final = re.compile(r"[A-Za-z0-9_-]{16,64}\Z")
_THUMBPRINT: Final = re.compile(r"[A-Za-z0-9_-]{43}\Z")

_RESOURCE: Final = frozenset({"type", "id"})
_HOLDER: Final = frozenset({"jkt"})

Claims = Mapping[str, object]


def require_members(
    value: object, what: str, *, required: frozenset[str], optional: frozenset[str] = frozenset()
) -> Claims:
    """The value as an object with exactly these members.

    Raises:
        ContractError: `bad_claim`, `missing_claim`, `unknown_claim`.
    """
    if type(value) is not dict and not isinstance(value, Mapping):
        raise ContractError("bad_claim", f"{what} must be an object")
    if value.keys() == required:
        return value
    missing = sorted(required - value.keys())
    if missing:
        raise ContractError("missing_claim", f"{what} lacks {missing}")
    unknown = sorted(value.keys() - required - optional)
    if unknown:
        raise ContractError("unknown_claim", f"{what} holds {unknown}, which this version does not know")
    return value


def require_text(claims: Claims, name: str) -> str:
    """A member that is text of a sane length."""
    value = claims[name]
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT:
        raise _claim_error(name, f"text of 1 to {MAX_TEXT} characters")
    return value


def require_long_text(claims: Claims, name: str) -> str:
    """A member that is text, perhaps empty, as long as the token allows: a raw query string."""
    value = claims[name]
    if not isinstance(value, str):
        raise _claim_error(name, "text")
    return value


def require_integer(claims: Claims, name: str, *, least: int = 0) -> int:
    """A member that is a whole number, not a boolean, and at least `least`."""
    value = claims[name]
    if type(value) is not int or value < least:
        raise _claim_error(name, f"a whole number from {least} on")
    return value


def require_digest_claim(claims: Claims, name: str) -> str:
    """A member that is SHA-256 in lower-case hex."""
    value = claims[name]
    if not is_digest(value):
        raise _claim_error(name, "64 lower-case hex digits")
    return value


def require_token_id(claims: Claims, name: str) -> str:
    """A member that is a random id of at least 96 bits, base64url."""
    value = claims[name]
    if not isinstance(value, str) or not _TOKEN_ID.match(value):
        raise _claim_error(name, "16 to 64 base64url characters")
    return value


def require_texts(claims: Claims, name: str, *, most: int) -> tuple[str, ...]:
    """A member that is a list of texts, at most `most` of them."""
    value = claims[name]
    if not isinstance(value, list) or len(value) > most:
        raise _claim_error(name, f"a list of at most {most} texts")
    for item in value:
        if not isinstance(item, str) or not 0 < len(item) <= MAX_TEXT:
            raise _claim_error(name, f"text of 1 to {MAX_TEXT} characters")
    return tuple(value)


def require_objects(claims: Claims, name: str, *, most: int) -> list[object]:
    """A member that is a list of 1 to `most` items, each still to be read."""
    value = claims[name]
    if not isinstance(value, list) or not 0 < len(value) <= most:
        raise _claim_error(name, f"a list of 1 to {most} objects")
    return value


def require_one_of(claims: Claims, name: str, allowed: frozenset[str]) -> str:
    """A member that is one of the `allowed` values."""
    value = claims[name]
    if not isinstance(value, str) or value not in allowed:
        raise _claim_error(name, f"one of {sorted(allowed)}")
    return value


def require_resource(claims: Claims, name: str) -> Resource:
    """A member that is {type, id}."""
    value = require_members(claims[name], name, required=_RESOURCE)
    return Resource(require_text(value, "type"), require_text(value, "id"))


def confirmation_key(claims: Claims, name: str = "cnf") -> str | None:
    """The confirmation claim (RFC 7800 section 3): the thumbprint in {"jkt": ...}, or None for `none`."""
    value = claims[name]
    if value == "none":
        return None
    jkt = require_members(value, name, required=_HOLDER)["jkt"]
    if not isinstance(jkt, str) or not _THUMBPRINT.match(jkt):
        raise _claim_error(name, '{"jkt": RFC 7638 thumbprint} or "none"')
    return jkt


def confirmation_claim(jkt: str | None) -> object:
    """The confirmation claim for a key's thumbprint, or `none`."""
    return "none" if jkt is None else {"jkt": jkt}


def _claim_error(name: str, expected: str) -> ContractError:
    return ContractError("bad_claim", f"{name} must be {expected}")
