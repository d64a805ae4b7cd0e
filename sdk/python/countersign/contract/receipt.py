"""The receipt: signed proof that an attempt redeemed these effects, and until when they may fire (`fire_by`).

A JWS of `typ: effect-receipt+jwt` (design section 6). A renewal is another receipt of the same attempt. This
module reads and writes the claims; `verify` decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self, cast

from . import shape
from .release import Kind

MAX_EFFECTS: Final = 100  # the most effects a transaction may hold
MAX_FIRE_WINDOW_SECONDS: Final = 300  # design: 30 s; a longer one is a standing permission

_KINDS: Final = frozenset({"effect", "compensate"})
_RECEIPT: Final = frozenset(
    {"iss", "aud", "sub", "iat", "fire_by", "epoch", "txn", "txn_digest", "attempt", "kind", "cnf", "effects"}
)


@dataclass(frozen=True, slots=True)
class ReceiptEffect:
    """One redeemed effect; `jti` names the token that was spent, absent where none was (a renewal)."""

    effect_id: str
    effect_digest: str
    jti: str | None = None

    def to_json(self) -> dict[str, str]:
        """The member of `effects`."""
        value = {"effect_id": self.effect_id, "effect_digest": self.effect_digest}
        return value if self.jti is None else {**value, "jti": self.jti}

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read it strictly. Raises ContractError as `shape`."""
        claims = shape.members(
            value, "effects", required=frozenset({"effect_id", "effect_digest"}), optional=frozenset({"jti"})
        )
        return cls(
            effect_id=shape.digest(claims, "effect_id"),
            effect_digest=shape.digest(claims, "effect_digest"),
            jti=shape.token_id(claims, "jti") if "jti" in claims else None,
        )


@dataclass(frozen=True, slots=True)
class ReceiptClaims:
    """Every claim of a receipt; `cnf_jkt` is the key that redeemed or renewed."""

    iss: str
    aud: str
    sub: str
    iat: int
    fire_by: int
    epoch: int
    txn: str
    txn_digest: str
    attempt: str
    cnf_jkt: str | None
    effects: tuple[ReceiptEffect, ...]
    kind: Kind = "effect"

    def to_claims(self) -> dict[str, object]:
        """The claims as they are signed."""
        return {
            "iss": self.iss,
            "aud": self.aud,
            "sub": self.sub,
            "iat": self.iat,
            "fire_by": self.fire_by,
            "epoch": self.epoch,
            "txn": self.txn,
            "txn_digest": self.txn_digest,
            "attempt": self.attempt,
            "kind": self.kind,
            "cnf": shape.holder_claim(self.cnf_jkt),
            "effects": [effect.to_json() for effect in self.effects],
        }

    @classmethod
    def from_claims(cls, value: Mapping[str, object]) -> Self:
        """Read claims strictly.

        Raises:
            ContractError: `bad_claim`, `missing_claim`, `unknown_claim`.
        """
        claims = shape.members(value, "the receipt", required=_RECEIPT)
        return cls(
            iss=shape.text(claims, "iss"),
            aud=shape.text(claims, "aud"),
            sub=shape.text(claims, "sub"),
            iat=shape.whole(claims, "iat"),
            fire_by=shape.whole(claims, "fire_by"),
            epoch=shape.whole(claims, "epoch"),
            txn=shape.digest(claims, "txn"),
            txn_digest=shape.digest(claims, "txn_digest"),
            attempt=shape.text(claims, "attempt"),
            kind=cast(Kind, shape.one_of(claims, "kind", _KINDS)),
            cnf_jkt=shape.holder(claims),
            effects=tuple(
                ReceiptEffect.from_json(item) for item in shape.objects(claims, "effects", most=MAX_EFFECTS)
            ),
        )
