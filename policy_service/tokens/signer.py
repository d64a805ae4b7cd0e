"""The signer of releases, receipts and seals.

It signs with the current key and gives out public keys only. `keys.py` makes, reads and rotates the keys.
"""

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
"""The JWT type of the seal of an exported review. It is not valid as a release or a receipt."""


class Signer:
    """Signs releases, receipts and seals with the current key; exposes public keys only."""

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
        """A seal and the public key to verify it.

        Raises:
            ValueError: the type is that of a release or a receipt.
        """
        # The claims of a seal come from callers; as a release they would permit an effect that no policy decided.
        if typ in {TYP_RELEASE, TYP_RECEIPT}:
            raise ValueError(f"a seal is no {typ}")
        return sign(claims, typ=typ, key=self._key), self._key.public
