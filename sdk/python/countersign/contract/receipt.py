"""The receipt: signed proof that an attempt redeemed these effects, with the time until which they may fire.

A JWS of `typ: effect-receipt+jwt` (design section 6). A renewal is another receipt of the same attempt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self, cast

from . import jws
from .jws import JWS_STEPS, TYP_RECEIPT, Step, TokenState, run_steps
from .keys import KeySet
from .release import Kind
from .verify import LEEWAY_SECONDS

MAX_EFFECTS: Final = 100  # the most effects a transaction may contain
MAX_FIRE_WINDOW_SECONDS: Final = 300  # design: 30 s; a longer window would be a lasting permission

_KINDS: Final = frozenset({"effect", "compensate"})
_RECEIPT: Final = frozenset(
    {"iss", "aud", "sub", "iat", "fire_by", "epoch", "txn", "txn_digest", "attempt", "kind", "cnf", "effects"}
)


class ReceiptEffect(NamedTuple):
    """One redeemed effect; `jti` names the spent token and is absent in a renewal."""

    effect_id: str
    effect_digest: str
    jti: str | None = None

    def to_json(self) -> dict[str, str]:
        """The member of `effects`."""
        value = {"effect_id": self.effect_id, "effect_digest": self.effect_digest}
        return value if self.jti is None else {**value, "jti": self.jti}

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read it strictly. Raises ContractError as in jws.py."""
        claims = jws.require_members(
            value, "effects", required=frozenset({"effect_id", "effect_digest"}), optional=frozenset({"jti"})
        )
        return cls(
            effect_id=jws.require_digest_claim(claims, "effect_id"),
            effect_digest=jws.require_digest_claim(claims, "effect_digest"),
            jti=jws.require_token_id(claims, "jti") if "jti" in claims else None,
        )


class ReceiptClaims(NamedTuple):
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
            "cnf": jws.confirmation_claim(self.cnf_jkt),
            "effects": [effect.to_json() for effect in self.effects],
        }

    @classmethod
    def from_claims(cls, value: Mapping[str, object]) -> Self:
        """Read claims strictly.

        Raises:
            ContractError: `bad_claim`, `missing_claim`, `unknown_claim`.
        """
        claims = jws.require_members(value, "the receipt", required=_RECEIPT)
        return cls(
            iss=jws.require_text(claims, "iss"),
            aud=jws.require_text(claims, "aud"),
            sub=jws.require_text(claims, "sub"),
            iat=jws.require_integer(claims, "iat"),
            fire_by=jws.require_integer(claims, "fire_by"),
            epoch=jws.require_integer(claims, "epoch"),
            txn=jws.require_digest_claim(claims, "txn"),
            txn_digest=jws.require_digest_claim(claims, "txn_digest"),
            attempt=jws.require_text(claims, "attempt"),
            kind=cast(Kind, jws.require_one_of(claims, "kind", _KINDS)),
            cnf_jkt=jws.confirmation_key(claims),
            effects=tuple(
                ReceiptEffect.from_json(item)
                for item in jws.require_objects(claims, "effects", most=MAX_EFFECTS)
            ),
        )


@dataclass(slots=True, kw_only=True)
class ReceiptState(TokenState):
    """A receipt during verification, with what the verifier knows; `effects` as it requested them, in order."""

    iss: str
    aud: str
    agent: str
    txn: str
    txn_digest: str
    attempt: str
    effects: tuple[ReceiptEffect, ...]
    now: int
    epoch_at_least: int
    my_key_jkt: str | None
    kind: Kind
    leeway: int
    claims: ReceiptClaims = field(init=False)  # set by the shape step, before any step that reads it


def verify_receipt(
    token: str,
    *,
    iss: str,
    aud: str,
    agent: str,
    keys: KeySet,
    txn: str,
    txn_digest: str,
    attempt: str,
    effects: Sequence[ReceiptEffect],
    now: int,
    epoch_at_least: int,
    my_key_jkt: str | None,
    kind: Kind = "effect",
    leeway: int = LEEWAY_SECONDS,
) -> ReceiptClaims:
    """Verify a receipt before firing on it. An expected `jti` of None is not compared (a renewal).

    Raises:
        VerificationError: at the step of `RECEIPT_STEPS`; `fire_by_passed` when it is too late to fire.
    """
    state = ReceiptState(
        unverified_token=token, typ=TYP_RECEIPT, key_for=keys.get, iss=iss, aud=aud, agent=agent, txn=txn,
        txn_digest=txn_digest, attempt=attempt, effects=tuple(effects), now=now, epoch_at_least=epoch_at_least,
        my_key_jkt=my_key_jkt, kind=kind, leeway=leeway,
    )  # fmt: skip
    return _verify(state, RECEIPT_STEPS)


def _verify(state: ReceiptState, steps: Sequence[Step[ReceiptState]]) -> ReceiptClaims:
    """Run these steps. Only the test suite that removes a step passes another table than `RECEIPT_STEPS`."""
    run_steps(steps, state)
    return state.claims


def _shape(state: ReceiptState) -> None:
    state.claims = ReceiptClaims.from_claims(state.payload)


def _issuer(state: ReceiptState) -> str | None:
    return None if state.claims.iss == state.iss else "wrong_iss"


def _audience(state: ReceiptState) -> str | None:
    return None if state.claims.aud == state.aud else "wrong_aud"


def _issued(state: ReceiptState) -> str | None:
    return "issued_in_future" if state.claims.iat > state.now + state.leeway else None


def _fire_by(state: ReceiptState) -> str | None:
    return None if state.now < state.claims.fire_by else "fire_by_passed"


def _window(state: ReceiptState) -> str | None:
    claims = state.claims
    return None if 0 < claims.fire_by - claims.iat <= MAX_FIRE_WINDOW_SECONDS else "window_too_long"


def _kind(state: ReceiptState) -> str | None:
    return None if state.claims.kind == state.kind else "wrong_kind"


def _agent(state: ReceiptState) -> str | None:
    return None if state.claims.sub == state.agent else "wrong_sub"


def _txn(state: ReceiptState) -> str | None:
    return None if state.claims.txn == state.txn else "wrong_txn"


def _txn_digest(state: ReceiptState) -> str | None:
    return None if state.claims.txn_digest == state.txn_digest else "wrong_txn_digest"


def _attempt(state: ReceiptState) -> str | None:
    return None if state.claims.attempt == state.attempt else "wrong_attempt"


def _epoch(state: ReceiptState) -> str | None:
    return None if state.claims.epoch >= state.epoch_at_least else "old_epoch"


def _effects(state: ReceiptState) -> str | None:
    redeemed = [(effect.effect_id, effect.effect_digest) for effect in state.claims.effects]
    requested = [(effect.effect_id, effect.effect_digest) for effect in state.effects]
    return None if redeemed == requested else "wrong_effects"


def _tokens(state: ReceiptState) -> str | None:
    same = (
        requested.jti is None or requested.jti == redeemed.jti
        for requested, redeemed in zip(state.effects, state.claims.effects, strict=False)
    )
    return None if all(same) else "wrong_jti"


def _holder(state: ReceiptState) -> str | None:
    return None if state.claims.cnf_jkt == state.my_key_jkt else "wrong_cnf"


RECEIPT_STEPS: Final[tuple[Step[ReceiptState], ...]] = (
    *JWS_STEPS,
    Step(10, "shape", "every claim known, present and of its type", _shape),
    Step(11, "iss", "from the deployment I trust", _issuer),
    Step(12, "aud", "for me, one exact string", _audience),
    Step(13, "issued", "iat is not in the future beyond the leeway", _issued),
    Step(14, "fire_by", "now < fire_by, without leeway: later it fires nothing", _fire_by),
    Step(15, "window", "no standing permission", _window),
    Step(16, "kind", "a receipt for an undo fires no do, nor the reverse", _kind),
    Step(17, "agent", "sub is the agent of these effects", _agent),
    Step(18, "txn", "of this transaction", _txn),
    Step(19, "txn_digest", "of exactly this list of effects in this order", _txn_digest),
    Step(20, "attempt", "of this attempt: another process's receipt fires nothing here", _attempt),
    Step(21, "epoch", "not from before a restore", _epoch),
    Step(22, "effects", "for exactly the effects asked for, in order", _effects),
    Step(23, "jti", "spent the tokens I presented", _tokens),
    Step(24, "cnf", "given to the key I hold (RFC 7800)", _holder),
)
"""The numbered steps of `verify_receipt`."""
