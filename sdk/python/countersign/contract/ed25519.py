"""Ed25519 signature verification (RFC 8032 section 5.1.7), the primitive below every token verification.

OpenSSL verifies, through the `cryptography` package. Where PyNaCl is installed (the SDK extra `fast`), libsodium
verifies in half the time. Both must accept the same signatures, which is checked here and not assumed:

- A signature has 64 bytes. One whose R is a point of small order is refused before either library runs. OpenSSL accepts
it and libsodium does not. Only the key holder can make one, and it reveals the key.
- A libsodium that disagrees with OpenSSL about the probes below is not used. A build that multiplies by the cofactor
accepts signatures that RFC 8032's cofactorless equation refuses.
"""

from collections.abc import Callable
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

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
