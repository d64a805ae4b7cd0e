"""The form of sealed values: a column with null at each sealed pointer, and the encrypted values after it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from countersign.contract.digests import canonicalize
from countersign.contract.keys import decode_base64url, encode_base64url
from countersign.contract.pointers import pointer_tokens
from countersign.journal.sealing_keys import SealingKey

SEAL_VERSION: Final = "countersign/sealed/v1"
MARK: Final = f"{SEAL_VERSION}\n".encode()
"""The prefix of a sealed column of bytes."""


_NONCE_BYTES: Final = 12
# bytes; values are padded to a multiple, so that the length does not distinguish a PIN from a token
_BLOCK: Final = 64


@dataclass(frozen=True, slots=True)
class SealContext:
    """The column that a seal is bound to."""

    txn: str
    effect_id: str
    column: str


def is_there(value: Any, pointer: str) -> bool:
    """Whether the pointer exists in the value."""
    for token in pointer_tokens(pointer):
        if isinstance(value, dict) and token in value:
            value = value[token]
        elif isinstance(value, list) and (at := _index(token)) is not None and at < len(value):
            value = value[at]
        else:
            return False
    return True


def _index(token: str) -> int | None:
    """An index in its canonical spelling, so that two pointers never name the same position."""
    return int(token) if token.isdecimal() and token.isascii() and token == str(int(token)) else None


def replace_value(value: Any, pointer: str, other: Any) -> tuple[Any, Any]:
    """Replace the value at that pointer in place; returns the whole and the old value.

    Raises:
        ValueError: the pointer does not exist.
    """
    tokens = pointer_tokens(pointer)
    if not tokens:
        return other, value
    if not is_there(value, pointer):
        raise ValueError("a seal names a pointer that does not exist")
    inner = value
    for token in tokens[:-1]:
        inner = inner[int(token) if isinstance(inner, list) else token]
    last = int(tokens[-1]) if isinstance(inner, list) else tokens[-1]
    taken, inner[last] = inner[last], other
    return value, taken


def leaves(value: Any) -> Iterator[str]:
    """Every value inside that is no container, as text."""
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from leaves(one)
    else:
        yield str(value)


def sealed_parts(stored: bytes) -> tuple[Any, list[tuple[str, str, str]]]:
    """The open part and the seals.

    Raises:
        ValueError: no version of this SDK wrote that.
    """
    document = orjson.loads(stored[len(MARK) :])
    try:
        return document["open"], [
            (str(at), str(key_id), str(text)) for at, key_id, text in document["sealed"]
        ]
    except (KeyError, TypeError) as error:
        raise ValueError("its seals cannot be read") from error


def _associated(about: SealContext, pointer: str) -> bytes:
    return canonicalize([SEAL_VERSION, about.txn, about.effect_id, about.column, pointer])


def encrypted(key: SealingKey, about: SealContext, pointer: str, value: Any) -> str:
    """The value at that pointer, encrypted and bound to its column."""
    plain = canonicalize(value)
    plain += b" " * (-len(plain) % _BLOCK)  # JSON ignores trailing spaces
    nonce = os.urandom(_NONCE_BYTES)
    return encode_base64url(nonce + AESGCM(key.raw).encrypt(nonce, plain, _associated(about, pointer)))


def decrypted(key: SealingKey, about: SealContext, pointer: str, text: str) -> Any:
    """The value that was encrypted.

    Raises:
        ValueError: it was changed or moved.
    """
    raw = decode_base64url(text)
    try:
        plain = AESGCM(key.raw).decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], _associated(about, pointer))
    except InvalidTag as error:
        raise ValueError("a sealed value was changed or moved") from error
    return orjson.loads(plain)
