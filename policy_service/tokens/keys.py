"""The service's keys: the only reader of private key files.

Releases and receipts are signed by the current release key; the next one is published before it is ever used, the one
before stays published until what it signed has expired. Secrets for other purposes are other files: whoever learns one
learns nothing about the rest.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path

from countersign.contract import BadKeyError, KeySet, PrivateKey
from policy_service.errors import StartError
from policy_service.tokens.files import create_secret, make_secret_folder, read_secret

CURRENT, NEXT, PREVIOUS = "release-current.pem", "release-next.pem", "release-previous.pem"
NONCE_SECRET = "nonces.secret"  # noqa: S105 - a file's name
_NONCE_BYTES = 32


@dataclass(frozen=True)
class KeyRing:
    """The keys of one deployment, read once at start."""

    current: PrivateKey
    published: KeySet
    nonce_secret: bytes = field(repr=False)


def make_keys(folder: Path) -> list[str]:
    """Create every key that is missing; the names of those made. None is ever replaced."""
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


def read_keys(folder: Path) -> KeyRing:
    """Read the keys.

    Raises:
        StartError: one is missing, damaged, or readable by others.
    """
    current = _private(folder / CURRENT)
    others = [_private(folder / name) for name in (NEXT, PREVIOUS) if (folder / name).exists()]
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
