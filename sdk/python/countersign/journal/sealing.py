"""Sealing: values that a manifest declares secret are encrypted in the journal (AES-256-GCM). The key is elsewhere.

Rules: only the values are sealed, so that names, states and all other arguments can be read without the key. A sealed
value is bound to its transaction, effect, column and pointer, and opens nowhere else. Its length is rounded up to 64
bytes. Unsealing returns the same canonical bytes or fails: a missing key and a broken seal are errors, never an empty
value. The chain binds the sealed bytes, so a journal is verified without the key.

A sealed column begins with a mark that no JSON begins with, then {"open": the value with null at each sealed pointer,
"sealed": [[pointer, key id, nonce and ciphertext], ...]}. Anything else was written before seals existed, or holds no
secret.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from countersign.clock import Clock
from countersign.contract.admission import JSON
from countersign.contract.canonical import canonicalize
from countersign.contract.keys import decode_base64url, encode_base64url
from countersign.contract.pointers import pointer_to, pointer_tokens
from countersign.errors import JournalSealed
from countersign.journal.chain import OWN, record_changes
from countersign.journal.database import Unit
from countersign.journal.sealing_keys import SealingKey, SealingKeys

HIDDEN: Final = "(secret)"
"""Shown in place of a hidden value."""

_VERSION: Final = "countersign/sealed/v1"
MARK: Final = f"{_VERSION}\n".encode()
"""The prefix of a sealed column of bytes."""
_TEXT_MARK: Final = f"{_VERSION} "
_UNDER: Final = "sealed_under:"  # in `meta`: the keys that have sealed in this journal
_NONCE_BYTES: Final = 12
# bytes; values are padded to a multiple, so that the length does not distinguish a PIN from a token
_BLOCK: Final = 64


@dataclass(frozen=True, slots=True)
class SealContext:
    """The column that a seal is bound to."""

    txn: str
    effect_id: str
    column: str


class Seals:
    """Seals and unseals the columns of one journal."""

    def __init__(self, clock: Clock, keys: SealingKeys) -> None:
        self._clock = clock
        self._keys = keys

    def seal(self, unit: Unit, about: SealContext, raw: bytes, pointers: Collection[str]) -> bytes:
        """Canonical bytes with the values at these pointers sealed; unchanged if none of them exists.

        Raises:
            JournalSealed: there is no sealing key.
        """
        if not pointers:
            return raw
        value = orjson.loads(raw)
        places = list(_existing_pointers(value, pointers))
        if not places:
            return raw
        key = self._sealing_key(unit)
        sealed: list[list[str]] = []
        for pointer in places:
            value, taken = _replace_value(value, pointer, None)
            sealed.append([pointer, key.id, _encrypted(key, about, pointer, taken)])
        return MARK + canonicalize({"open": value, "sealed": sealed})

    def open(self, about: SealContext, stored: bytes) -> bytes:
        """The canonical bytes that were sealed.

        Raises:
            JournalSealed: a sealing key is not available.
            ValueError: a seal was changed or moved.
        """
        if not is_sealed(stored):
            return stored
        value, sealed = _parts(stored)
        for pointer, key_id, text in sealed:
            hidden = _decrypted(self._keys.find(key_id), about, pointer, text)
            value, _ = _replace_value(value, pointer, hidden)
        return canonicalize(value)

    def seal_text(self, unit: Unit, about: SealContext, text: str, *, secret: bool) -> str:
        """Seal a text if it is secret, or if it could be mistaken for a seal."""
        if not secret and not text.startswith(_TEXT_MARK):
            return text
        key = self._sealing_key(unit)
        return f"{_TEXT_MARK}{key.id} {_encrypted(key, about, '', text)}"

    def open_text(self, about: SealContext, stored: str | None) -> str | None:
        """The text that was sealed.

        Raises:
            JournalSealed, ValueError: as `open`.
        """
        if stored is None or not stored.startswith(_TEXT_MARK):
            return stored
        key_id, _, text = stored.removeprefix(_TEXT_MARK).partition(" ")
        return str(_decrypted(self._keys.find(key_id), about, "", text))

    def require_key(self, unit: Unit) -> None:
        """Require a sealing key before work begins whose result would have to be sealed.

        Raises:
            JournalSealed: there is none.
        """
        self._sealing_key(unit)

    def _sealing_key(self, unit: Unit) -> SealingKey:
        """The newest key. The journal records each key before it seals with it.

        Raises:
            JournalSealed: there is no key, or none of the keys has ever sealed in this journal.
        """
        key = self._keys.newest()
        if (
            key is not None
            and unit.execute("SELECT 1 FROM meta WHERE name = ?", (_UNDER + key.id,)).fetchone()
        ):
            return key
        found = unit.execute(
            "SELECT name FROM meta WHERE substr(name, 1, ?) = ? ORDER BY value", (len(_UNDER), _UNDER)
        ).fetchall()
        known = [str(row["name"]).removeprefix(_UNDER) for row in found]
        if known and not set(known).intersection(self._keys.ids()):
            raise JournalSealed(
                f"this journal is sealed under the key {known[-1]}, which is not here", known[-1]
            )
        key = key or self._keys.make()
        now = self._clock.wall()
        with record_changes(unit, OWN, "sealed_under", now) as change:
            change.insert("meta", or_ignore=True, name=_UNDER + key.id, value=f"{now:020.3f}")
        return key


def is_sealed(stored: bytes | None) -> bool:
    """Whether something in this column is sealed."""
    return stored is not None and stored.startswith(MARK)


def sealed_pointers(stored: bytes | None) -> tuple[str, ...]:
    """The sealed pointers of a column; empty if it has no seal."""
    return tuple(pointer for pointer, _, _ in _parts(stored)[1]) if stored and is_sealed(stored) else ()


def redacted(stored: bytes) -> JSON:
    """A column for people, without any key: sealed values are hidden."""
    if not is_sealed(stored):
        return cast(JSON, orjson.loads(stored))
    value, sealed = _parts(stored)
    for pointer, _, _ in sealed:
        value, _ = _replace_value(value, pointer, HIDDEN)
    return cast(JSON, value)


def inherited_pointers(mapping: Mapping[str, str], sealed: Collection[str]) -> tuple[str, ...]:
    """The arguments of a compensation that repeat sealed ones of the forward call, or come from its result: a tool
    with secret arguments may have returned them.
    """
    if not sealed:
        return ()
    return tuple(pointer_to(name) for name, source in mapping.items() if _repeats(source, sealed))


def is_secret_value(raw: bytes, pointers: Collection[str], text: str) -> bool:
    """Whether a text equals one of the values at these pointers: a resource may be named by a secret."""
    value = orjson.loads(raw)
    return any(
        text in _leaves(_replace_value(value, pointer, None)[1])
        for pointer in _existing_pointers(value, pointers)
    )


def _repeats(source: str, sealed: Collection[str]) -> bool:
    kind, _, pointer = source.partition(":")
    return kind == "result" or (kind == "args" and any(_overlap(pointer, one) for one in sealed))


def _overlap(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _existing_pointers(value: Any, pointers: Collection[str]) -> Iterator[str]:
    """The pointers that exist in the value, without those inside another one."""
    outermost: list[str] = []
    for pointer in sorted(set(pointers), key=len):
        if not any(f"{pointer}/".startswith(f"{one}/") for one in outermost) and _is_there(value, pointer):
            outermost.append(pointer)
            yield pointer


def _is_there(value: Any, pointer: str) -> bool:
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


def _replace_value(value: Any, pointer: str, other: Any) -> tuple[Any, Any]:
    """Replace the value at that pointer in place; returns the whole and the old value.

    Raises:
        ValueError: the pointer does not exist.
    """
    tokens = pointer_tokens(pointer)
    if not tokens:
        return other, value
    if not _is_there(value, pointer):
        raise ValueError("a seal names a pointer that does not exist")
    inner = value
    for token in tokens[:-1]:
        inner = inner[int(token) if isinstance(inner, list) else token]
    last = int(tokens[-1]) if isinstance(inner, list) else tokens[-1]
    taken, inner[last] = inner[last], other
    return value, taken


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _leaves(one)
    else:
        yield str(value)


def _parts(stored: bytes) -> tuple[Any, list[tuple[str, str, str]]]:
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
    return canonicalize([_VERSION, about.txn, about.effect_id, about.column, pointer])


def _encrypted(key: SealingKey, about: SealContext, pointer: str, value: Any) -> str:
    plain = canonicalize(value)
    plain += b" " * (-len(plain) % _BLOCK)  # JSON ignores trailing spaces
    nonce = os.urandom(_NONCE_BYTES)
    return encode_base64url(nonce + AESGCM(key.raw).encrypt(nonce, plain, _associated(about, pointer)))


def _decrypted(key: SealingKey, about: SealContext, pointer: str, text: str) -> Any:
    raw = decode_base64url(text)
    try:
        plain = AESGCM(key.raw).decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], _associated(about, pointer))
    except InvalidTag as error:
        raise ValueError("a sealed value was changed or moved") from error
    return orjson.loads(plain)
