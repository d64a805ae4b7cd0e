"""The service's keys: the only reader of private key files.

Releases and receipts are signed by the current release key; the next one is published before it is ever used, the one
before stays published until the next rotation, when all it signed has long expired. Secrets for other purposes are
other files: whoever learns one learns nothing about the rest.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path

from countersign.contract import BadKeyError, KeySet, PrivateKey
from policy_service.errors import StartError
from policy_service.tokens.files import (
    create_secret,
    make_secret_folder,
    read_secret,
    replace_secret,
    sync_folder,
)

CURRENT, NEXT, PREVIOUS = "release-current.pem", "release-next.pem", "release-previous.pem"
NONCE_SECRET = "nonces.secret"  # noqa: S105 - a file's name
_NONCE_BYTES = 32
PUBLISHED_FIRST_S = 600.0  # twice as long as our key set may be kept


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


def rotate_keys(folder: Path, *, now: float, compromised: bool = False) -> str:
    """Let the next key sign from the next start on, and make another next one; the new current key's id.

    Each step is one rename, in an order that leaves a usable ring wherever it stops; `make_keys` makes a missing next
    key. With ``compromised`` every secret here is made afresh, for whoever read one could read those beside it, and no
    key of before is published any more: what they signed is worth nothing at once, and what waits for a fresh release
    gets one. Verifiers ask for a key they do not know.

    Raises:
        StartError: a key is missing or damaged, or the next one was not published long enough for verifiers to know
            it (``compromised`` needs none and does not wait).
    """
    ring = read_keys(folder)
    if compromised:
        return _make_afresh(folder)
    following = _private(folder / NEXT) if (folder / NEXT).exists() else None
    if following is None:
        raise StartError(
            f"the key {folder / NEXT} is missing; run: policy-service init, and rotate "
            f"{PUBLISHED_FIRST_S / 60:.0f} minutes later"
        )
    young = PUBLISHED_FIRST_S - (now - (folder / NEXT).stat().st_mtime)
    if young > 0:
        raise StartError(
            f"the next key was made a moment ago, and verifiers keep key sets for a while; rotate in {young:.0f} s, "
            "or at once with --compromised if the current key is in wrong hands"
        )
    replace_secret(folder / PREVIOUS, ring.current.to_pem())
    (folder / NEXT).replace(folder / CURRENT)
    sync_folder(folder)
    create_secret(folder / NEXT, PrivateKey.generate().to_pem())
    return following.public.kid


def _make_afresh(folder: Path) -> str:
    """Every secret anew, the one that signs first; cut short, the same command begins again."""
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
        others.pop()  # a rotation stopped between its first two steps: the current key still signs
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
