"""Signing: claims in, token out. What is signed was fixed and logged by a committed unit of work."""

from __future__ import annotations

from countersign.contract import TYP_RECEIPT, TYP_RELEASE, KeySet, ReceiptClaims, ReleaseClaims, sign
from policy_service.tokens.keys import KeyRing


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
