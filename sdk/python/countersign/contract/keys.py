"""Ed25519 keys (RFC 8032, RFC 8037) named by their RFC 7638 thumbprint.

A `kid` is always the thumbprint of its key, so a key id can never be claimed for another key. A key set contains
signing keys only and is refused as a whole if anything in it is ambiguous. Public keys of small order, which accept
signatures that no one made, and non-canonical encodings are refused. No message or repr contains a private key.
"""

import base64
import binascii
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from . import ed25519
from .canonical import canonicalize
from .errors import BadKeyError

MAX_KEYS: Final = 64  # previous, current and next of a few uses; we publish no longer list
_KEY_BYTES: Final = 32
# Map to the alphabet binascii reads. Its own characters that are not base64url become one that it refuses.
_TO_BASE64: Final = bytes.maketrans(b"-_+/=", b"+/...")
_JWK_MEMBERS: Final = frozenset({"kty", "crv", "x", "kid", "use", "alg", "key_ops"})


def encode_base64url(raw: bytes) -> str:
    """base64url without padding (RFC 7515 section 2)."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def decode_base64url(text: str | bytes) -> bytes:
    """The exact inverse: no padding, no other characters, no spare bits set.

    Raises:
        ValueError: the text is not what `encode_base64url` would have written.
    """
    try:
        data = text.encode("ascii") if isinstance(text, str) else text
        padded = data.translate(_TO_BASE64) + b"=" * (-len(data) % 4)
        raw = binascii.a2b_base64(padded, strict_mode=True)
    except ValueError as error:
        raise ValueError("not base64url") from error
    # only the last group can have spare bits
    if binascii.b2a_base64(raw[-(len(raw) % 3 or 3) :], newline=False) != padded[-4:]:
        raise ValueError("not canonical base64url")
    return raw


def thumbprint(jwk: Mapping[str, object]) -> str:
    """RFC 7638 thumbprint of an Ed25519 JWK, base64url.

    Raises:
        BadKeyError: `bad_key` when it is not an OKP Ed25519 key.
    """
    if jwk.get("kty") != "OKP" or jwk.get("crv") != "Ed25519" or not isinstance(jwk.get("x"), str):
        raise BadKeyError("bad_key", "the key is not kty OKP, crv Ed25519 with x; generate an Ed25519 key")
    required = {"crv": "Ed25519", "kty": "OKP", "x": jwk["x"]}
    return encode_base64url(hashlib.sha256(canonicalize(required)).digest())


class PublicKey:
    """One validated Ed25519 public key.

    Raises:
        BadKeyError: `bad_key` for a wrong length, a non-canonical encoding or a point of small order; `kid_mismatch`
            when `kid` is given and is not the thumbprint.
    """

    __slots__ = ("_verify", "kid", "raw")

    def __init__(
        self, kid: str | None, raw: bytes, *, primitive: ed25519.Primitive = ed25519.FASTEST
    ) -> None:
        _require_sound(raw)
        self.raw: Final = bytes(raw)
        self.kid: Final = thumbprint(self.jwk())
        if kid is not None and kid != self.kid:
            raise BadKeyError("kid_mismatch", f"kid {kid[:64]!r} is not this key's thumbprint {self.kid!r}")
        self._verify: Final = primitive(self.raw)

    @classmethod
    def from_raw(cls, raw: bytes) -> "PublicKey":
        """The key of 32 raw bytes. Raises BadKeyError as the class."""
        return cls(None, raw)

    @classmethod
    def from_jwk(cls, jwk: Mapping[str, object]) -> "PublicKey":
        """The key of a public signing JWK (RFC 8037 section 2).

        Raises:
            BadKeyError: `bad_key` for another type, use, algorithm, an unknown member or a private part;
                `kid_mismatch`.
        """
        _require_signing_jwk(jwk)
        try:
            raw = decode_base64url(str(jwk["x"]))
        except ValueError as error:
            raise BadKeyError("bad_key", "x of the key is not base64url of 32 bytes") from error
        return cls(str(jwk["kid"]) if "kid" in jwk else None, raw)

    def verify(self, signature: bytes, data: bytes) -> bool:
        """Whether this key signed exactly these bytes (RFC 8032 section 5.1.7)."""
        return self._verify(signature, data)

    def jwk(self) -> dict[str, str]:
        """The key's required JWK members, without `kid`."""
        return {"kty": "OKP", "crv": "Ed25519", "x": encode_base64url(self.raw)}

    def signing_jwk(self) -> dict[str, str]:
        """The key as a JWKS entry: with `kid`, `use` and `alg` (RFC 9864 section 2.2)."""
        return {**self.jwk(), "kid": self.kid, "use": "sig", "alg": "Ed25519"}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PublicKey) and other.raw == self.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"PublicKey(kid={self.kid!r})"


class PrivateKey:
    """An Ed25519 signing key. Its repr shows only the public `kid`; it refuses to be pickled."""

    __slots__ = ("_key", "public")

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key: Final = key
        self.public: Final = PublicKey.from_raw(key.public_key().public_bytes_raw())

    @classmethod
    def generate(cls) -> "PrivateKey":
        """A new key from the operating system's randomness."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: bytes) -> "PrivateKey":
        """The key of a 32-byte seed (RFC 8032 section 5.1.5); for test vectors and key files of other tools.

        Raises:
            BadKeyError: `bad_key` for another length.
        """
        if len(seed) != _KEY_BYTES:
            raise BadKeyError("bad_key", f"a seed has {_KEY_BYTES} bytes, this has {len(seed)}")
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def from_pem(cls, pem: bytes) -> "PrivateKey":
        """The key of an unencrypted PKCS #8 PEM file (RFC 8410).

        Raises:
            BadKeyError: `bad_key`.
        """
        try:
            key = serialization.load_pem_private_key(pem, password=None)
        except (ValueError, TypeError) as error:
            raise BadKeyError(
                "bad_key", "not an unencrypted PKCS #8 PEM key; generate one with the CLI"
            ) from error
        if not isinstance(key, Ed25519PrivateKey):
            raise BadKeyError("bad_key", "the PEM file holds another kind of key; generate an Ed25519 key")
        return cls(key)

    def to_pem(self) -> bytes:
        """The key as an unencrypted PKCS #8 PEM file; the caller keeps it at mode 0600."""
        return self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def sign(self, data: bytes) -> bytes:
        """The 64-byte signature over data (deterministic, RFC 8032 section 5.1.6)."""
        return self._key.sign(data)

    def __repr__(self) -> str:
        return f"PrivateKey(kid={self.public.kid!r})"

    def __reduce__(self) -> str:
        raise TypeError("a private key is not pickled; give the other process its own key")


class KeySet:
    """Pinned signing keys by `kid`.

    Raises:
        BadKeyError: `duplicate_kid`, `too_many_keys`.
    """

    __slots__ = ("_keys",)

    def __init__(self, keys: Iterable[PublicKey]) -> None:
        listed = list(keys)
        if len(listed) > MAX_KEYS:
            raise BadKeyError("too_many_keys", f"{len(listed)} keys in one set; at most {MAX_KEYS}")
        self._keys: Final = {key.kid: key for key in listed}
        if len(self._keys) != len(listed):
            raise BadKeyError(
                "duplicate_kid", "two entries of the key set have the same kid; the set is refused"
            )

    @classmethod
    def from_jwks(cls, jwks: object) -> "KeySet":
        """The keys of a JWKS (RFC 7517 section 5), as loaded by `admission.load`.

        One entry that is not a signing Ed25519 key with its thumbprint as `kid` refuses the whole set.

        Raises:
            BadKeyError: `bad_key`, `kid_mismatch`, `duplicate_kid`, `too_many_keys`.
        """
        keys = jwks.get("keys") if isinstance(jwks, Mapping) else None
        if not isinstance(keys, list) or not all(isinstance(jwk, Mapping) and "kid" in jwk for jwk in keys):
            raise BadKeyError("bad_key", 'a key set is {"keys": [...]} whose entries all have a kid')
        return cls(PublicKey.from_jwk(jwk) for jwk in keys)

    def get(self, kid: str) -> PublicKey | None:
        """The key of this id, or None."""
        return self._keys.get(kid)

    def to_jwks(self) -> dict[str, list[dict[str, str]]]:
        """The set as JWKS."""
        return {"keys": [key.signing_jwk() for key in self]}

    def __iter__(self) -> Iterator[PublicKey]:
        return iter(self._keys.values())

    def __len__(self) -> int:
        return len(self._keys)


def _require_sound(raw: bytes) -> None:
    if len(raw) != _KEY_BYTES:
        raise BadKeyError("bad_key", f"an Ed25519 public key has {_KEY_BYTES} bytes, this has {len(raw)}")
    y = int.from_bytes(raw, "little") & (ed25519.SIGN_BIT - 1)
    if y >= ed25519.P or y in ed25519.SMALL_ORDER_Y:
        raise BadKeyError("bad_key", "the public key is not a sound point of Ed25519; generate a new key")


def _require_signing_jwk(jwk: Mapping[str, object]) -> None:
    unknown = sorted(set(jwk) - _JWK_MEMBERS)
    if unknown:
        raise BadKeyError(
            "bad_key", f"key members {unknown} are not expected in a public Ed25519 signing key"
        )
    thumbprint(jwk)
    if jwk.get("use", "sig") != "sig" or jwk.get("alg", "Ed25519") != "Ed25519":
        raise BadKeyError("bad_key", "the key is not for signing with alg Ed25519; publish use 'sig'")
    if jwk.get("key_ops", ["verify"]) != ["verify"]:
        raise BadKeyError("bad_key", "key_ops of a public signing key is ['verify']")
