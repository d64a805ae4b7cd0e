"""Verification of receipts: numbered steps before an effect may fire on one (design section 6).

Rules: a receipt fires nothing after `fire_by`; it speaks of exactly the expected attempt and effects, in
order; it was given to the key that shows it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from .jws import GATE, TYP_RECEIPT, Presented
from .keys import KeySet
from .receipt import MAX_FIRE_WINDOW_SECONDS, ReceiptClaims, ReceiptEffect
from .release import Kind
from .steps import Step, run_steps
from .verify import LEEWAY_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptExpectation:
    """What the verifier knows without the receipt; `effects` as it asked for them, in order."""

    iss: str
    aud: str
    agent: str
    keys: KeySet
    txn: str
    txn_digest: str
    attempt: str
    effects: tuple[ReceiptEffect, ...]
    now: int
    epoch_at_least: int
    my_key_jkt: str | None
    kind: Kind = "effect"
    leeway: int = LEEWAY_SECONDS


@dataclass(slots=True, kw_only=True)
class ReceiptState(Presented):
    """A receipt on its way through the steps."""

    expectation: ReceiptExpectation
    claims: ReceiptClaims = field(init=False)  # set by the shape step, before any that reads it


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
    expectation = ReceiptExpectation(
        iss=iss,
        aud=aud,
        agent=agent,
        keys=keys,
        txn=txn,
        txn_digest=txn_digest,
        attempt=attempt,
        effects=tuple(effects),
        now=now,
        epoch_at_least=epoch_at_least,
        my_key_jkt=my_key_jkt,
        kind=kind,
        leeway=leeway,
    )
    return _verify(token, expectation, RECEIPT_STEPS)


def _verify(
    token: str, expectation: ReceiptExpectation, steps: Sequence[Step[ReceiptState]]
) -> ReceiptClaims:
    """Run these steps. Other tables than `RECEIPT_STEPS` exist only in the suite that takes one out."""
    state = ReceiptState(
        unverified_token=token, typ=TYP_RECEIPT, key_for=expectation.keys.get, expectation=expectation
    )
    run_steps(steps, state)
    return state.claims


def _shape(state: ReceiptState) -> None:
    state.claims = ReceiptClaims.from_claims(state.payload)


def _issuer(state: ReceiptState) -> str | None:
    claims, expected = state.claims, state.expectation
    return None if claims.iss == expected.iss else "wrong_iss"


def _audience(state: ReceiptState) -> str | None:
    claims, expected = state.claims, state.expectation
    return None if claims.aud == expected.aud else "wrong_aud"


def _issued(state: ReceiptState) -> str | None:
    claims, expected = state.claims, state.expectation
    return "issued_in_future" if claims.iat > expected.now + expected.leeway else None


def _fire_by(state: ReceiptState) -> str | None:
    claims, expected = state.claims, state.expectation
    return None if expected.now < claims.fire_by else "fire_by_passed"


def _window(state: ReceiptState) -> str | None:
    claims = state.claims
    return None if 0 < claims.fire_by - claims.iat <= MAX_FIRE_WINDOW_SECONDS else "window_too_long"


def _kind(state: ReceiptState) -> str | None:
    claims, expected = state.claims, state.expectation
    return None if claims.kind == expected.kind else "wrong_kind"


def _agent(state: ReceiptState) -> str | None:
    claims, expected = state.claims, state.expectation
    return None if claims.sub == expected.agent else "wrong_sub"


def _txn(state: ReceiptState) -> str | None:
    claims, expected = state.claims, state.expectation
    return None if claims.txn == expected.txn else "wrong_txn"


def _txn_digest(state: ReceiptState) -> str | None:
    claims, expected = state.claims, state.expectation
    return None if claims.txn_digest == expected.txn_digest else "wrong_txn_digest"


def _attempt(state: ReceiptState) -> str | None:
    claims, expected = state.claims, state.expectation
    return None if claims.attempt == expected.attempt else "wrong_attempt"


def _epoch(state: ReceiptState) -> str | None:
    claims, expected = state.claims, state.expectation
    return None if claims.epoch >= expected.epoch_at_least else "old_epoch"


def _effects(state: ReceiptState) -> str | None:
    claims, expected = state.claims, state.expectation
    redeemed = [(effect.effect_id, effect.effect_digest) for effect in claims.effects]
    asked = [(effect.effect_id, effect.effect_digest) for effect in expected.effects]
    return None if redeemed == asked else "wrong_effects"


def _tokens(state: ReceiptState) -> str | None:
    claims, expected = state.claims, state.expectation
    same = (
        asked.jti is None or asked.jti == redeemed.jti
        for asked, redeemed in zip(expected.effects, claims.effects, strict=False)
    )
    return None if all(same) else "wrong_jti"


def _holder(state: ReceiptState) -> str | None:
    claims, expected = state.claims, state.expectation
    return None if claims.cnf_jkt == expected.my_key_jkt else "wrong_cnf"


RECEIPT_STEPS: Final[tuple[Step[ReceiptState], ...]] = (
    *GATE,
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
