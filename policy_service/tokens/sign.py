"""Signing: claims in, token out. What is signed was fixed and logged by a committed unit of work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from countersign.contract import (
    TYP_RECEIPT,
    TYP_RELEASE,
    KeySet,
    PublicKey,
    ReceiptClaims,
    ReleaseClaims,
    sign,
)
from policy_service.tokens.keys import KeyRing

TYP_EXPORT: Final = "review-export+jwt"
"""A seal under an exported review. It is another kind than a release or a receipt, and passes for neither."""


class Signer:
    """The service's pen. It holds the current key and hands out public ones only."""

    def __init__(self, ring: KeyRing) -> None:
        self._key = ring.current
        self.keys: KeySet = ring.published

    def sign_release(self, claims: ReleaseClaims) -> str:
        """A release token."""
        return sign(claims.to_claims(), typ=TYP_RELEASE, key=self._key)

    def sign_receipt(self, claims: ReceiptClaims) -> str:
        """A receipt."""
        return sign(claims.to_claims(), typ=TYP_RECEIPT, key=self._key)

    def seal(self, claims: Mapping[str, Any], *, typ: str) -> tuple[str, PublicKey]:
        """A seal, and the public key it is checked with. Never a release or a receipt.

        Raises:
            ValueError: it would be one.
        """
        if typ in {TYP_RELEASE, TYP_RECEIPT}:
            raise ValueError(f"a seal is no {typ}")
        return sign(claims, typ=typ, key=self._key), self._key.public
