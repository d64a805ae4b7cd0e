"""Signing keys and webhook secrets. Only this package reads private keys.

Releases and receipts are signed with the current key. The next key is published before its first use. The previous key
stays published until the next rotation, when everything it signed has expired. Each purpose has its own secret file,
so a leaked secret exposes one purpose only.

Webhooks are signed as in Standard Webhooks, with shared secrets (HMAC-SHA256, ``v1``) and own keys (Ed25519, ``v1a``).
A file holds one line, ``whsec_`` or ``whsk_`` and base64; the signed text is ``ID.TIMESTAMP.BODY``. Nothing here
prints a secret.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from countersign.contract import BadKeyError, KeySet, PrivateKey
from policy_service.errors import StartError
from policy_service.tokens.secret_files import (
    create_secret,
    make_secret_folder,
    read_secret,
    replace_secret,
    sync_folder,
)

CURRENT, NEXT, PREVIOUS = "release-current.pem", "release-next.pem", "release-previous.pem"
NONCE_SECRET = "nonces.secret"  # noqa: S105 - a file's name
_NONCE_BYTES = 32
MIN_PUBLISHED_S = 600.0  # twice the cache lifetime of our key set


@dataclass(frozen=True)
class KeyRing:
    """The keys of one deployment, read at start."""

    current: PrivateKey
    published: KeySet
    nonce_secret: bytes = field(repr=False)


def make_keys(folder: Path) -> list[str]:
    """Create the missing keys; returns the names of the new files. No file is replaced."""
    make_secret_folder(folder)
    wanted = {
        CURRENT: lambda: PrivateKey.generate().to_pem(),
        NEXT: lambda: PrivateKey.generate().to_pem(),
        NONCE_SECRET: lambda: secrets.token_bytes(_NONCE_BYTES),
    }
    missing = [name for name in wanted if not (folder / name).exists()]
    for name in missing:
        create_secret(folder / name, wanted[name]())
    return missing


def rotate_keys(folder: Path, *, now: float, compromised: bool = False) -> str:
    """Make the next key the current one at the next start, and create a new next key. Returns the id of the new
    current key.

    Each step is one rename, in an order that leaves a usable ring at every point; `make_keys` creates a missing next
    key. With ``compromised`` every secret is replaced, because a reader of one file could read the others. No earlier
    key stays published: tokens signed with them become invalid at once, and waiting effects get new releases.
    Verifiers fetch an unknown key id.

    Raises:
        StartError: a key is missing or damaged, or the next one was not published long enough for verifiers to know it
            (``compromised`` does not require that).
    """
    ring = read_keys(folder)
    if compromised:
        return _replace_all_keys(folder)
    following = _private(folder / NEXT) if (folder / NEXT).exists() else None
    if following is None:
        raise StartError(
            f"the key {folder / NEXT} is missing; run: policy-service init, and rotate "
            f"{MIN_PUBLISHED_S / 60:.0f} minutes later"
        )
    young = MIN_PUBLISHED_S - (now - (folder / NEXT).stat().st_mtime)
    if young > 0:
        raise StartError(
            f"the next key was made a moment ago, and verifiers keep key sets for a while; rotate in {young:.0f} s, "
            "or at once with --compromised if the current key is in wrong hands"
        )
    # The old key is published as previous before it is replaced: at no point is a key in use that is not published.
    replace_secret(folder / PREVIOUS, ring.current.to_pem())
    (folder / NEXT).replace(folder / CURRENT)
    sync_folder(folder)
    create_secret(folder / NEXT, PrivateKey.generate().to_pem())
    return following.public.kid


def _replace_all_keys(folder: Path) -> str:
    """Replace every secret, the signing key first. If interrupted, run the same command again."""
    # The signing key goes first: it is the one an attacker can use to release effects.
    current = PrivateKey.generate()
    (folder / PREVIOUS).unlink(missing_ok=True)
    replace_secret(folder / CURRENT, current.to_pem())
    replace_secret(folder / NEXT, PrivateKey.generate().to_pem())
    replace_secret(folder / NONCE_SECRET, secrets.token_bytes(_NONCE_BYTES))
    return current.public.kid


def read_keys(folder: Path) -> KeyRing:
    """Read the keys.

    Raises:
        StartError: one is missing, damaged, or readable by others.
    """
    current = _private(folder / CURRENT)
    others = [_private(folder / name) for name in (NEXT, PREVIOUS) if (folder / name).exists()]
    if (folder / PREVIOUS).exists() and others[-1].public.kid == current.public.kid:
        others.pop()  # an interrupted rotation: the current key still signs
    secret = read_secret(folder / NONCE_SECRET)
    if len(secret) < _NONCE_BYTES:
        raise StartError(
            f"the secret {folder / NONCE_SECRET} is too short; remove it and run: policy-service init"
        )
    try:
        published = KeySet([current.public, *(key.public for key in others)])
    except BadKeyError as error:
        raise StartError(
            f"two of {CURRENT}, {NEXT} and {PREVIOUS} in {folder} are the same key; remove the copy and "
            "run: policy-service init"
        ) from error
    return KeyRing(current, published, secret)


def _private(path: Path) -> PrivateKey:
    try:
        return PrivateKey.from_pem(read_secret(path))
    except BadKeyError as error:
        raise StartError(f"the key {path} is damaged: {error}") from error


_SHARED, _OWN, _PUBLIC = "whsec_", "whsk_", "whpk_"
_SHARED_BYTES: Final = range(24, 65)  # the range of Standard Webhooks
_SEED_BYTES: Final = 32


class WebhookKey:
    """A webhook secret or key; its repr shows neither."""

    __slots__ = ("_own", "_shared")

    def __init__(self, text: str) -> None:
        """Parse the line of its file.

        Raises:
            ValueError: the line is malformed. The message does not quote it.
        """
        kind = next((prefix for prefix in (_SHARED, _OWN) if text.startswith(prefix)), None)
        if kind is None:
            raise ValueError(f"it begins with neither {_SHARED} nor {_OWN}")
        try:
            raw = base64.b64decode(text.removeprefix(kind), validate=True)
        except (binascii.Error, ValueError):
            # `from None`: the cause would quote the secret in a traceback.
            raise ValueError(f"what follows {kind} is no base64") from None
        if kind == _OWN and len(raw) != _SEED_BYTES:
            raise ValueError(f"a {_OWN} key has {_SEED_BYTES} bytes, this has {len(raw)}")
        if kind == _SHARED and len(raw) not in _SHARED_BYTES:
            raise ValueError(f"a {_SHARED} secret has 24 to 64 bytes, this has {len(raw)}")
        self._own = PrivateKey.from_seed(raw) if kind == _OWN else None
        self._shared = raw if kind == _SHARED else b""

    @property
    def public(self) -> str | None:
        """The public key for receivers; None for a shared secret."""
        return None if self._own is None else _PUBLIC + _base64(self._own.public.raw)

    def sign(self, signed: bytes) -> str:
        """One signature in the format of the header."""
        if self._own is not None:
            return f"v1a,{_base64(self._own.sign(signed))}"
        return f"v1,{_base64(hmac.digest(self._shared, signed, hashlib.sha256))}"

    def __repr__(self) -> str:
        return f"WebhookKey({'its own' if self._own is not None else 'shared'})"

    def __reduce__(self) -> str:
        raise TypeError("a webhook's secret is not pickled")


def sign_webhook(keys: Sequence[WebhookKey], webhook_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The three headers of one request, signed with every active key."""
    signed = b".".join((webhook_id.encode(), str(timestamp).encode(), body))
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(key.sign(signed) for key in keys),
    }


def read_webhook_keys(name: str, files: Sequence[Path]) -> tuple[WebhookKey, ...]:
    """The keys of one receiver.

    Raises:
        StartError: a file is missing, readable by others, or holds no webhook secret.
    """
    return tuple(_read(name, file) for file in files)


def make_webhook_key(file: Path, *, own: bool) -> WebhookKey:
    """A new secret, or with ``own`` a new key pair, in a new file of mode 0600.

    Raises:
        FileExistsError: the file exists; a secret is never overwritten.
    """
    line = (_OWN if own else _SHARED) + _base64(secrets.token_bytes(_SEED_BYTES))
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


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
