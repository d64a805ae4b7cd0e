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

from collections.abc import Collection, Iterator
from typing import Any, Final

import orjson

from countersign.clock import Clock
from countersign.contract.digests import canonicalize
from countersign.errors import JournalSealed
from countersign.journal.chain import OWN, record_changes
from countersign.journal.database import Unit
from countersign.journal.sealed_values import (
    MARK,
    SEAL_VERSION,
    SealContext,
    decrypted,
    encrypted,
    is_there,
    leaves,
    replace_value,
    sealed_parts,
)
from countersign.journal.sealing_keys import SealingKey, SealingKeys

_TEXT_MARK: Final = f"{SEAL_VERSION} "
_UNDER: Final = "sealed_under:"  # in `meta`: the keys that have sealed in this journal


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
            value, taken = replace_value(value, pointer, None)
            sealed.append([pointer, key.id, encrypted(key, about, pointer, taken)])
        return MARK + canonicalize({"open": value, "sealed": sealed})

    def open(self, about: SealContext, stored: bytes) -> bytes:
        """The canonical bytes that were sealed.

        Raises:
            JournalSealed: a sealing key is not available.
            ValueError: a seal was changed or moved.
        """
        if not is_sealed(stored):
            return stored
        value, sealed = sealed_parts(stored)
        for pointer, key_id, text in sealed:
            hidden = decrypted(self._keys.find(key_id), about, pointer, text)
            value, _ = replace_value(value, pointer, hidden)
        return canonicalize(value)

    def seal_text(self, unit: Unit, about: SealContext, text: str, *, secret: bool) -> str:
        """Seal a text if it is secret, or if it could be mistaken for a seal."""
        if not secret and not text.startswith(_TEXT_MARK):
            return text
        key = self._sealing_key(unit)
        return f"{_TEXT_MARK}{key.id} {encrypted(key, about, '', text)}"

    def open_text(self, about: SealContext, stored: str | None) -> str | None:
        """The text that was sealed.

        Raises:
            JournalSealed, ValueError: as `open`.
        """
        if stored is None or not stored.startswith(_TEXT_MARK):
            return stored
        key_id, _, text = stored.removeprefix(_TEXT_MARK).partition(" ")
        return str(decrypted(self._keys.find(key_id), about, "", text))

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
    return tuple(pointer for pointer, _, _ in sealed_parts(stored)[1]) if stored and is_sealed(stored) else ()


def is_secret_value(raw: bytes, pointers: Collection[str], text: str) -> bool:
    """Whether a text equals one of the values at these pointers: a resource may be named by a secret."""
    value = orjson.loads(raw)
    return any(
        text in leaves(replace_value(value, pointer, None)[1])
        for pointer in _existing_pointers(value, pointers)
    )


def _existing_pointers(value: Any, pointers: Collection[str]) -> Iterator[str]:
    """The pointers that exist in the value, without those inside another one."""
    outermost: list[str] = []
    for pointer in sorted(set(pointers), key=len):
        if not any(f"{pointer}/".startswith(f"{one}/") for one in outermost) and is_there(value, pointer):
            outermost.append(pointer)
            yield pointer
