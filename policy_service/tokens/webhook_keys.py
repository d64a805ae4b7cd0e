"""What webhooks are signed with: shared secrets (HMAC-SHA256, ``v1``) and our own keys (Ed25519, ``v1a``).

As Standard Webhooks has it: a file holds one line, ``whsec_`` or ``whsk_`` and base64; signed is ``ID.TIMESTAMP.BODY``.
Nothing here prints a secret, and no two purposes share one: who learns it can imitate our webhooks and nothing else.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from countersign.contract import PrivateKey
from policy_service.errors import StartError
from policy_service.tokens.files import create_secret, read_secret

_SHARED, _OWN, _PUBLIC = "whsec_", "whsk_", "whpk_"
_SHARED_BYTES: Final = range(24, 65)  # as the standard has it
_SEED_BYTES: Final = 32


class WebhookKey:
    """One secret or key; its repr shows neither."""

    __slots__ = ("_own", "_shared")

    def __init__(self, text: str) -> None:
        """Of the line of its file.

        Raises:
            ValueError: it is no such line. The sentence does not quote it.
        """
        kind = next((prefix for prefix in (_SHARED, _OWN) if text.startswith(prefix)), None)
        if kind is None:
            raise ValueError(f"it begins with neither {_SHARED} nor {_OWN}")
        try:
            raw = base64.b64decode(text.removeprefix(kind), validate=True)
        except (binascii.Error, ValueError):
            raise ValueError(f"what follows {kind} is no base64") from None
        if kind == _OWN and len(raw) != _SEED_BYTES:
            raise ValueError(f"a {_OWN} key has {_SEED_BYTES} bytes, this has {len(raw)}")
        if kind == _SHARED and len(raw) not in _SHARED_BYTES:
            raise ValueError(f"a {_SHARED} secret has 24 to 64 bytes, this has {len(raw)}")
        self._own = PrivateKey.from_seed(raw) if kind == _OWN else None
        self._shared = raw if kind == _SHARED else b""

    @property
    def public(self) -> str | None:
        """What a receiver verifies with, where that is no secret."""
        return None if self._own is None else _PUBLIC + _encoded(self._own.public.raw)

    def sign(self, signed: bytes) -> str:
        """One signature as the header has it."""
        if self._own is not None:
            return f"v1a,{_encoded(self._own.sign(signed))}"
        return f"v1,{_encoded(hmac.digest(self._shared, signed, hashlib.sha256))}"

    def __repr__(self) -> str:
        return f"WebhookKey({'its own' if self._own is not None else 'shared'})"

    def __reduce__(self) -> str:
        raise TypeError("a webhook's secret is not pickled")


def sign_webhook(keys: Sequence[WebhookKey], webhook_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The three headers of one request, signed with every key in force."""
    signed = b".".join((webhook_id.encode(), str(timestamp).encode(), body))
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(key.sign(signed) for key in keys),
    }


def read_webhook_keys(name: str, files: Sequence[Path]) -> tuple[WebhookKey, ...]:
    """The keys of one receiver.

    Raises:
        StartError: a file is missing, can be read by others, or holds no secret of a webhook.
    """
    return tuple(_read(name, file) for file in files)


def make_webhook_key(file: Path, *, own: bool) -> WebhookKey:
    """A fresh secret, or with ``own`` a fresh key, in a new file that nobody else can read.

    Raises:
        FileExistsError: the file is there; a secret is never overwritten.
    """
    line = (_OWN if own else _SHARED) + _encoded(secrets.token_bytes(_SEED_BYTES))
    create_secret(file, f"{line}\n".encode())
    return WebhookKey(line)


def _read(name: str, file: Path) -> WebhookKey:
    if not file.exists():
        made_by = f"policy-service webhooks secret {file}"
        raise StartError(f"webhook {name!r}: the file {str(file)!r} is missing; {made_by} makes one")
    try:
        return WebhookKey(read_secret(file).decode("ascii", errors="replace").strip())
    except ValueError as error:
        raise StartError(f"webhook {name!r}: {str(file)!r} holds no secret of a webhook: {error}") from None


def _encoded(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
