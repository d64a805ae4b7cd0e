"""Ed25519 keys (RFC 8032, RFC 8037) named by their RFC 7638 thumbprint.

A `kid` is always the thumbprint of its key, so a key id can never be claimed for another key. A key set contains
signing keys only and is refused as a whole if anything in it is ambiguous. Public keys of small order, which accept
signatures that no one made, and non-canonical encodings are refused. No message or repr contains a private key.

OpenSSL verifies signatures, through the `cryptography` package. Where PyNaCl is installed (the SDK extra `fast`),
libsodium does, in half the time. Both must accept the same signatures, which is checked here and not assumed:

- A signature has 64 bytes. One whose R is a point of small order is refused before either library runs. OpenSSL accepts
it and libsodium does not. Only the key holder can make one, and it reveals the key.
- A libsodium that disagrees with OpenSSL about the probes below is not used. A build that multiplies by the cofactor
accepts signatures that RFC 8032's cofactorless equation refuses.
"""

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from .digests import canonicalize
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


Verify = Callable[[bytes, bytes], bool]
"""(signature, data) -> whether this key signed exactly these bytes."""
Primitive = Callable[[bytes], Verify]
"""32 valid bytes of a public key -> its `Verify`."""

P: Final = 2**255 - 19
SIGN_BIT: Final = 1 << 255
SMALL_ORDER_Y: Final = frozenset(
    {
        0,
        1,
        P - 1,
        2707385501144840649318225287225658788936804267575313519463743609750303402022,
        P - 2707385501144840649318225287225658788936804267575313519463743609750303402022,
    }
)
"""y of the eight points whose order divides 8 (RFC 8032 section 5.1): 1, -1, 0, and two of order 8."""

_SIGNATURE_BYTES: Final = 64
_SMALL_ORDER: Final = frozenset(
    (y + sign).to_bytes(32, "little") for y in SMALL_ORDER_Y for sign in (0, SIGN_BIT)
)


def openssl(raw: bytes) -> Verify:
    """The primitive of the `cryptography` package."""
    check = Ed25519PublicKey.from_public_bytes(raw).verify

    def verify(signature: bytes, data: bytes) -> bool:
        if len(signature) != _SIGNATURE_BYTES or signature[:32] in _SMALL_ORDER:
            return False
        try:
            check(signature, data)
        except InvalidSignature:
            return False
        return True

    return verify


def libsodium() -> Primitive | None:
    """The primitive of PyNaCl, or None if it is not installed or does not agree with OpenSSL."""
    try:
        from nacl.bindings import crypto_sign_open
        from nacl.exceptions import BadSignatureError
    except ImportError:
        return None

    def primitive(raw: bytes) -> Verify:
        def verify(signature: bytes, data: bytes) -> bool:
            # Check the length first: this call takes signature and data as one string and would split it elsewhere.
            if len(signature) != _SIGNATURE_BYTES or signature[:32] in _SMALL_ORDER:
                return False
            try:
                crypto_sign_open(signature + data, raw)
            except BadSignatureError:
                return False
            return True

        return verify

    return primitive if agrees_with_openssl(primitive) else None


# A key and three signatures over one text: an honest one, one whose R has a part of order 8, and one with S + L for S.
_KEY: Final = bytes.fromhex("03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8")
_TEXT: Final = b"hello"
_HONEST: Final = bytes.fromhex(
    "ef4f62f8479733ad879cfaced3c89a9c39dd4fc795ef2efa1c3eafe4d729a081"
    "59b60d51608b3f3f967b3a3289c4f740abb32edecf60f32e9133054edc384a01"
)
_MIXED: Final = bytes.fromhex(
    "40a4cf5c611d737a2f1c6fcca84d9cabfed80987f186a5a6c57e629bff1af27f"
    "90e4a39084ee1836c142a4e88b32766d369eaf4d72c38f3c56b64ed2b334580c"
)
_UNREDUCED: Final = bytes.fromhex(
    "ef4f62f8479733ad879cfaced3c89a9c39dd4fc795ef2efa1c3eafe4d729a081"
    "468a03ae7aee51976c1832d567bed655abb32edecf60f32e9133054edc384a11"
)


def agrees_with_openssl(primitive: Primitive) -> bool:
    """Whether this primitive accepts the honest probe and refuses the two that implementations disagree about."""
    verify = primitive(_KEY)
    return verify(_HONEST, _TEXT) and not verify(_MIXED, _TEXT) and not verify(_UNREDUCED, _TEXT)


FASTEST: Final[Primitive] = libsodium() or openssl
"""The primitive that keys use by default."""


class PublicKey:
    """One validated Ed25519 public key.

    Raises:
        BadKeyError: `bad_key` for a wrong length, a non-canonical encoding or a point of small order; `kid_mismatch`
            when `kid` is given and is not the thumbprint.
    """

    __slots__ = ("_verify", "kid", "raw")

    def __init__(self, kid: str | None, raw: bytes, *, primitive: Primitive = FASTEST) -> None:
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
    y = int.from_bytes(raw, "little") & (SIGN_BIT - 1)
    if y >= P or y in SMALL_ORDER_Y:
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
