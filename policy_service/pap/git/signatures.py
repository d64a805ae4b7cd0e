"""Verify SSH signatures of commits (OpenSSH's PROTOCOL.sshsig) against an ``allowed_signers`` file.

The signature covers the commit without its signature headers, in the namespace ``git``, by a key in the file. SHA-1
signatures, security keys and certificates are refused by name. The file lies outside the repository. A file with an
unreadable line trusts no key, so that a mistake is noticed at once. An entry is valid for git unless its namespaces
exclude it. Its validity is checked against this host's time, because the author controls the time in a commit.
Certificate authorities are not supported.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

NAMESPACE: Final = "git"
_MAGIC: Final = b"SSHSIG"
_BEGIN, _END = b"-----BEGIN SSH SIGNATURE-----", b"-----END SSH SIGNATURE-----"
_HASHES: Final = {"sha256": hashlib.sha256, "sha512": hashlib.sha512}
_RSA: Final = {"rsa-sha2-256": hashes.SHA256(), "rsa-sha2-512": hashes.SHA512()}
_ECDSA: Final = {256: hashes.SHA256(), 384: hashes.SHA384(), 521: hashes.SHA512()}
_MIN_RSA_BITS: Final = 2_048


class SignatureError(Exception):
    """A commit without a valid signature; one sentence."""


@dataclass(frozen=True, slots=True)
class SignedCommit:
    """The signed bytes and the signature; ``key`` is the public key in OpenSSH's encoding."""

    payload: bytes
    key: bytes
    namespace: str
    hash_name: str
    kind: str
    signature: bytes

    @property
    def fingerprint(self) -> str:
        """The key's fingerprint as ``ssh-keygen -l`` prints it."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.key).digest()).rstrip(b"=").decode()


def parse_signature(commit: bytes) -> SignedCommit:
    """Parse the signature in a commit's bytes, without verifying it.

    Raises:
        SignatureError: there is no readable signature.
    """
    payload, armoured = _apart(commit)
    if armoured is None:
        raise SignatureError("it carries no signature; sign it with `git commit -S` and gpg.format=ssh")
    if not armoured.startswith(_BEGIN):
        raise SignatureError("its signature is not an SSH one; sign with gpg.format=ssh")
    try:
        body = armoured.partition(_BEGIN)[2].partition(_END)[0]
        blob = base64.b64decode(b"".join(body.split()), validate=True)
        return _parsed(payload, blob)
    except (binascii.Error, ValueError, UnicodeDecodeError) as error:
        raise SignatureError("its signature is damaged") from error


def verify_signature(signed: SignedCommit) -> None:
    """Verify that the named key signed this commit for git. Whether the key is trusted is checked elsewhere.

    Raises:
        SignatureError: it did not.
    """
    if signed.namespace != NAMESPACE:
        raise SignatureError(
            f"its signature is for the namespace {signed.namespace!r} and not for {NAMESPACE!r}"
        )
    if signed.hash_name not in _HASHES:
        raise SignatureError(f"its signature hashes with {signed.hash_name!r}, which is not supported")
    digest = _HASHES[signed.hash_name](signed.payload).digest()
    parts = (signed.namespace.encode(), b"", signed.hash_name.encode(), digest)
    message = _MAGIC + b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    try:
        _verify(signed, message)
    except InvalidSignature:
        raise SignatureError("its signature does not match these bytes and that key") from None
    except (ValueError, UnsupportedAlgorithm) as error:
        raise SignatureError("its signature or the key in it is damaged") from error


def _verify(signed: SignedCommit, message: bytes) -> None:
    kind = _Reader(signed.key).text()
    if kind.startswith("sk-") or "cert" in kind:
        raise SignatureError(
            f"signatures by {kind} are not supported; sign with an ed25519, ecdsa or rsa key"
        )
    key = load_ssh_public_key(kind.encode() + b" " + base64.b64encode(signed.key))
    if isinstance(key, ed25519.Ed25519PublicKey) and signed.kind == kind:
        key.verify(signed.signature, message)
    elif isinstance(key, ec.EllipticCurvePublicKey) and signed.kind == kind:
        reader = _Reader(signed.signature)
        r, s = (int.from_bytes(reader.string(), "big") for _ in range(2))
        reader.require_end()
        key.verify(encode_dss_signature(r, s), message, ec.ECDSA(_ECDSA[key.curve.key_size]))
    elif isinstance(key, rsa.RSAPublicKey) and signed.kind in _RSA and key.key_size >= _MIN_RSA_BITS:
        key.verify(signed.signature, message, padding.PKCS1v15(), _RSA[signed.kind])
    else:
        raise SignatureError(f"a signature of kind {signed.kind} by a key of kind {kind} is not supported")


def _apart(commit: bytes) -> tuple[bytes, bytes | None]:
    """The signed bytes, without any signature header as in git, and the armored signature."""
    head, blank, message = commit.partition(b"\n\n")
    wanted = b"gpgsig" if len(head.partition(b"\n")[0]) == len(b"tree ") + 40 else b"gpgsig-sha256"
    kept, found, into = [], [], None
    for line in head.split(b"\n"):
        if line.startswith(b" ") and into is not None:
            into.append(line[1:])
            continue
        key = line.partition(b" ")[0]
        if key in {b"gpgsig", b"gpgsig-sha256"}:
            into = [line.partition(b" ")[2]]
            if key == wanted:
                found.append(into)
        else:
            into = None
            kept.append(line)
    if len(found) > 1:
        raise SignatureError("it carries two signatures; git itself writes no such commit")
    return b"\n".join(kept) + blank + message, b"\n".join(found[0]) if found else None


def _parsed(payload: bytes, blob: bytes) -> SignedCommit:
    if blob[:6] != _MAGIC or int.from_bytes(blob[6:10], "big") != 1:
        raise SignatureError("its signature is of a format that is not known")
    outer = _Reader(blob[10:])
    key, namespace, _, hash_name, signature = (outer.string() for _ in range(5))
    outer.require_end()
    inner = _Reader(signature)
    kind, raw = inner.text(), inner.string()
    inner.require_end()
    return SignedCommit(payload, key, namespace.decode(), hash_name.decode(), kind, raw)


class _Reader:
    """Reads SSH strings: four bytes of length, then the bytes."""

    def __init__(self, raw: bytes) -> None:
        self._raw, self._at = raw, 0

    def string(self) -> bytes:
        begins = self._at + 4
        length = int.from_bytes(self._raw[self._at : begins], "big")
        if begins > len(self._raw) or begins + length > len(self._raw):
            raise ValueError("it ends too early")
        self._at = begins + length
        return self._raw[begins : self._at]

    def text(self) -> str:
        return self.string().decode("ascii")

    def require_end(self) -> None:
        if self._at != len(self._raw):
            raise ValueError("it goes on where it should end")


_OPTION: Final = re.compile(r'([a-zA-Z-]+)(?:="([^"]*)")?(,|\s+)')
_TIMES: Final = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
_KINDS: Final = re.compile(r"(?:sk-)?(?:ssh-|ecdsa-|rsa-)")
_MAX_BYTES: Final = 1_048_576


class AllowedSignersError(Exception):
    """The allowed_signers file cannot be used; one sentence with its line."""


@dataclass(frozen=True, slots=True)
class AllowedSigner:
    """One line of the file: principals, key, namespaces and validity."""

    principals: str
    key: bytes
    namespaces: tuple[str, ...] = ()
    valid_after: datetime | None = None
    valid_before: datetime | None = None

    def may_sign(self, key: bytes, now: datetime) -> bool:
        """Whether this line trusts the key for commits now."""
        for_git = not self.namespaces or any(fnmatchcase(NAMESPACE, pattern) for pattern in self.namespaces)
        begun = self.valid_after is None or now >= self.valid_after
        return (
            key == self.key and for_git and begun and (self.valid_before is None or now < self.valid_before)
        )


def read_allowed_signers(file: Path) -> tuple[AllowedSigner, ...]:
    """All signers of the file.

    Raises:
        AllowedSignersError: the file or one of its lines cannot be read.
    """
    try:
        with file.open("rb") as opened:
            lines = opened.read(_MAX_BYTES).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AllowedSignersError(
            f"policies_allowed_signers {str(file)!r} cannot be read: {error}"
        ) from error
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                found.append(_signer(line.strip()))
            except ValueError as error:
                raise AllowedSignersError(f"policies_allowed_signers {file}:{number}: {error}") from error
    return tuple(found)


def require_signed(commit: bytes, signers: tuple[AllowedSigner, ...], now: datetime) -> str:
    """Verify that an allowed signer signed a commit, and return the signer's principals.

    Raises:
        SignatureError: no allowed signer did.
    """
    signed = parse_signature(commit)
    verify_signature(signed)
    for signer in signers:
        if signer.may_sign(signed.key, now):
            return signer.principals
    raise SignatureError(
        f"its key {signed.fingerprint} is not among policies_allowed_signers, or not valid now, or not valid for git"
    )


def _signer(line: str) -> AllowedSigner:
    principals, rest = _principals(line)
    options: dict[str, str | None] = {}
    if not _KINDS.match(rest):
        options, rest = _options(rest)
    parts = rest.split(None, 2)
    if len(parts) < 2:
        raise ValueError("write PRINCIPALS [OPTIONS] KEYTYPE KEY, as ssh-keygen(1) has it")
    try:
        key = base64.b64decode(parts[1], validate=True)
    except binascii.Error:
        raise ValueError("the key is not base64") from None
    kind = parts[0].encode()
    if key[4 : 4 + len(kind)] != kind:
        raise ValueError(f"the key is not of the stated kind {parts[0]!r}")
    return AllowedSigner(
        principals,
        key,
        tuple(filter(None, (options.get("namespaces") or "").split(","))),
        _time(options.get("valid-after")),
        _time(options.get("valid-before")),
    )


def _principals(line: str) -> tuple[str, str]:
    if line.startswith('"'):
        found, _, rest = line[1:].partition('"')
    else:
        found, _, rest = line.partition(" ")
    return found, rest.strip()


def _options(text: str) -> tuple[dict[str, str | None], str]:
    found: dict[str, str | None] = {}
    at = 0
    while match := _OPTION.match(text, at):
        name = match[1].lower()
        if name not in {"namespaces", "valid-after", "valid-before"}:
            raise ValueError(f"the option {match[1]!r} is not supported; give each key a line of its own")
        found[name] = match[2]
        at = match.end()
        if match[3] != ",":
            return found, text[at:]
    raise ValueError(
        "its options cannot be read; write PRINCIPALS [OPTIONS] KEYTYPE KEY, as ssh-keygen(1) has it"
    )


def _time(text: str | None) -> datetime | None:
    """A time as ssh-keygen parses it, except that a time without Z is UTC here, not local time."""
    if text is None:
        return None
    bare = text.removesuffix("Z")
    if len(bare) not in _TIMES:
        raise ValueError(f"{text!r} is not a time; write YYYYMMDD or YYYYMMDDHHMM[SS], with a Z")
    return datetime.strptime(bare, _TIMES[len(bare)]).replace(tzinfo=UTC)
