"""Every vector gets its answer, at its step; and no step can go without some fault getting through."""

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pytest

from countersign import contract
from countersign.contract import proof_verification as proof_module
from countersign.contract import receipt as receipt_module
from countersign.contract import verify as verify_module
from countersign.contract.jws import JWS_STEPS
from tests.unit.contract.reading import (
    Vector,
    check_proof,
    check_receipt,
    effect,
    expectation,
    params,
    proof_arguments,
    read,
    receipt_state,
    vectors,
)

Check = Callable[[Any], object]
Steps = Sequence[contract.Step[Any]]


def check_release(vector: Vector) -> contract.VerifiedRelease:
    return contract.verify_release(vector["token"], expectation(vector))


def _verify_proof(vector: Vector, steps: Steps) -> object:
    arguments = proof_arguments(vector) | {"unverified_token": vector["token"], "typ": "agent-proof+jwt"}
    return proof_module._verify(proof_module._Proof(**{"max_age": 60, "leeway": 5} | arguments), steps)


def _verify_release(vector: Vector, steps: Steps) -> object:
    return verify_module._verify(vector["token"], expectation(vector), steps)


def _verify_receipt(vector: Vector, steps: Steps) -> object:
    return receipt_module._verify(receipt_state(vector), steps)


@dataclass
class Kind:
    """One kind of token: where its vectors are, who verifies it, and how carelessly its claims could be read."""

    folder: str
    good: str
    check: Check
    verify: Callable[[Vector, Steps], object]
    claims: Any
    ignored: str

    @property
    def steps(self) -> Steps:
        of = {"tokens": contract.STEPS, "receipts": contract.RECEIPT_STEPS, "proofs": contract.PROOF_STEPS}
        return of[self.folder]

    @cached_property
    def faults(self) -> dict[str, Vector]:
        return vectors(f"{self.folder}/bad")


KINDS = {
    "release": Kind("tokens", "reviewed", check_release, _verify_release, contract.ReleaseClaims, "scope"),
    "receipt": Kind("receipts", "redeemed", check_receipt, _verify_receipt, contract.ReceiptClaims, "exp"),
    "proof": Kind("proofs", "post", check_proof, _verify_proof, contract.ProofClaims, "htu"),
}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


@pytest.mark.parametrize("vector", params("tokens/good"))
def test_a_good_release_is_verified_for_its_effect(vector: Vector) -> None:
    released = check_release(vector)
    assert released.token == vector["token"]
    assert released.claims.detail == contract.EffectDetail.of(released.effect)
    assert contract.ReleaseClaims.from_claims(released.claims.to_claims()) == released.claims


@pytest.mark.parametrize("vector", params("receipts/good"))
def test_a_good_receipt_is_verified(vector: Vector) -> None:
    claims = check_receipt(vector)
    assert isinstance(claims, contract.ReceiptClaims)
    assert claims.attempt == vector["expectation"]["attempt"]
    assert contract.ReceiptClaims.from_claims(claims.to_claims()) == claims


@pytest.mark.parametrize("vector", params("proofs/good"))
def test_a_good_proof_is_verified(vector: Vector) -> None:
    assert check_proof(vector).agent == "support-bot"


FAULTS = [(kind, vector) for kind in KINDS.values() for vector in kind.faults.values()]
NAMES = [f"{kind.folder}-{name}" for kind in KINDS.values() for name in kind.faults]


@pytest.mark.parametrize(("kind", "vector"), FAULTS, ids=NAMES)
def test_a_bad_token_is_refused_at_its_step(kind: Kind, vector: Vector) -> None:
    answer = vector["answer"]
    assert _refusal(kind.check, vector) == (answer["step"], answer["code"], contract.VerificationError.TEXT)


def _refusal(check: Check, presented: Any) -> tuple[int, str, str]:
    with pytest.raises(contract.VerificationError) as refused:
        check(presented)
    return refused.value.step, refused.value.code, str(refused.value)


# --- every step is load-bearing
#
# Each step is replaced by the careless version of itself: nothing where it only checks, the most obliging
# parser where it also prepares what later steps read. Then at least one fault of that step must be accepted.


def _careless(kind: Kind, number: int, key: Any) -> Check:
    def check(state: Any) -> None:
        if number == 2:
            token = state.unverified_token.replace("=", "").strip().encode()
            state.segments = tuple(token.split(b".")[:3])
            state.signing_input = b".".join(state.segments[:2])
        elif number == 3:
            state.decoded = tuple(_decoded(part.decode()) for part in state.segments)
        elif number == 4:
            state.header, state.payload = json.loads(state.decoded[0]), json.loads(state.decoded[1])
        elif number == 8:
            state.key = key
        elif number == 10:
            known = {name: value for name, value in state.payload.items() if name != kind.ignored}
            more = {"kid": "unread"} if kind.folder == "proofs" else {}
            state.claims = kind.claims.from_claims(known, **more)

    return check


def _signer(vector: Vector) -> Any:
    """The pinned key that really signed, or the first: what a verifier that ignores `kid` would try."""
    keys = list(contract.KeySet.from_jwks(vector["expectation"]["jwks"]))
    signing_input, _, signature = vector["token"].rpartition(".")
    raw = _decoded(signature) if len(signature) == 86 else b""
    return min(keys, key=lambda key: not key.verify(raw, signing_input.encode("utf-8", "replace")))


def _accepted(kind: Kind, vector: Vector, number: int) -> bool:
    """Whether this fault of the step gets through where the step is careless."""
    careless = _careless(kind, number, _signer(vector))
    steps = [replace(step, check=careless) if step.number == number else step for step in kind.steps]
    try:
        kind.verify(vector, steps)
    except (contract.ContractError, ValueError, LookupError, AttributeError, TypeError):
        return False
    return True


ALL_STEPS = [(kind, step) for kind in KINDS.values() for step in kind.steps]


@pytest.mark.parametrize(("kind", "step"), ALL_STEPS, ids=lambda one: getattr(one, "name", "") or one.folder)
def test_no_step_can_be_left_out(kind: Kind, step: contract.Step[Any]) -> None:
    faults = [vector for vector in kind.faults.values() if vector["answer"]["step"] == step.number]
    assert any(_accepted(kind, vector, step.number) for vector in faults)


@EVERY_KIND
def test_steps_are_numbered_in_order_and_have_faults_of_their_own(kind: Kind) -> None:
    numbers = [step.number for step in kind.steps]
    assert numbers == list(range(1, len(kind.steps) + 1))
    assert {vector["answer"]["step"] for vector in kind.faults.values()} == set(numbers)


# --- every kind for every other, and the edges of time


@pytest.mark.parametrize("read_as", KINDS)
@pytest.mark.parametrize("made_as", KINDS)
def test_a_valid_token_of_one_type_is_invalid_as_another(made_as: str, read_as: str) -> None:
    """Each is signed by a key its reader trusts; what keeps them apart is what they say they are."""
    made, vector = (read(f"{KINDS[one].folder}/good/{KINDS[one].good}.json") for one in (made_as, read_as))
    vector["expectation"]["jwks"] = made["expectation"]["jwks"]
    presented = vector | {"token": made["token"]}
    if made_as == read_as:
        assert KINDS[read_as].check(presented)
    else:
        assert _refusal(KINDS[read_as].check, presented)[:2] == (7, "wrong_typ")


# What is off, by how much from the edge, with which leeway, and the answer.
EDGES = [("exp", second, leeway, second < 0) for second in (-1, 0, 1) for leeway in (0, 5, 30)]
EDGES += [("nbf", off - leeway, leeway, off >= 0) for leeway in (0, 5, 30) for off in (-1, 0, leeway)]


@pytest.mark.parametrize(("edge", "second", "leeway", "good"), EDGES)
def test_time_is_exact_within_the_leeway(edge: str, second: int, leeway: int, good: bool) -> None:
    vector = read("tokens/good/reviewed.json")
    claims = json.loads(_decoded(vector["token"].split(".")[1]))
    at = replace(expectation(vector), now=claims[edge] + second, leeway=leeway)
    if good:
        contract.verify_release(vector["token"], at)
    else:
        code = {"exp": "expired", "nbf": "issued_in_future"}[edge]
        assert _refusal(lambda token: contract.verify_release(token, at), vector["token"])[1] == code


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


# --- what is not in a single token

REFUND, MAIL = read("tokens/good/reviewed.json"), read("tokens/good/second_effect_without_compensation.json")
EFFECTS = [effect(vector["expectation"]["effect"]) for vector in (REFUND, MAIL)]
KNOWN = {name: REFUND["expectation"][name] for name in ("iss", "aud", "epoch_at_least", "now", "my_key_jkt")}
KEYS = contract.KeySet.from_jwks(REFUND["expectation"]["jwks"])


def test_a_transaction_is_verified_as_a_whole() -> None:
    released = contract.verify_transaction([REFUND["token"], MAIL["token"]], EFFECTS, keys=KEYS, **KNOWN)
    assert [release.effect for release in released] == EFFECTS


OTHER_TRANSACTIONS: dict[str, Any] = {
    "one effect too few": ([REFUND, MAIL], EFFECTS[:1], "wrong_count"),
    "one token too few": ([REFUND], EFFECTS, "wrong_count"),
    "an effect dropped with its token": ([REFUND], EFFECTS[:1], "wrong_txn_digest"),
    "both reordered": ([MAIL, REFUND], EFFECTS[::-1], "wrong_txn_digest"),
    "tokens reordered": ([MAIL, REFUND], EFFECTS, "wrong_effect_id"),
    "one token twice": ([REFUND, REFUND], EFFECTS, "wrong_effect_id"),
    "no token": ([], EFFECTS, "wrong_count"),
}


@pytest.mark.parametrize(("tokens", "effects", "code"), OTHER_TRANSACTIONS.values(), ids=OTHER_TRANSACTIONS)
def test_no_effect_is_dropped_added_or_reordered(tokens: list[Vector], effects: list[Any], code: str) -> None:
    presented = [vector["token"] for vector in tokens]
    known = {"effects": effects, "keys": KEYS, **KNOWN}
    assert _refusal(lambda given: contract.verify_transaction(given, **known), presented)[1] == code


def test_an_empty_transaction_has_nothing_to_verify() -> None:
    assert contract.verify_transaction([], [], keys=KEYS, **KNOWN) == ()
    assert contract.txn_digest(effect_digests=[]) != contract.txn_digest(effect_digests=[EFFECTS[0].digest])


def test_a_refusal_names_the_missing_claim_to_the_log() -> None:
    with pytest.raises(contract.VerificationError) as refused:
        check_release(KINDS["release"].faults["missing_exp"])
    assert "exp" in refused.value.detail


def test_nothing_but_the_verifier_makes_a_verified_release() -> None:
    released = check_release(REFUND)
    with pytest.raises(TypeError, match="verify_release only"):
        contract.VerifiedRelease(released.claims, released.effect, released.token, object())
    with pytest.raises(TypeError):
        contract.VerifiedRelease(released.claims, released.effect, released.token)  # type: ignore[call-arg]


NO_SENSE = [{"leeway": 31}, {"leeway": -1}, {"kind": "compensate"}, {"compensates": "0" * 64}]


@pytest.mark.parametrize("changed", NO_SENSE)
def test_an_expectation_that_makes_no_sense_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(contract.ContractError):
        replace(expectation(REFUND), **changed)


@EVERY_KIND
def test_a_table_without_the_step_that_reads_the_claims_verifies_nothing(kind: Kind) -> None:
    with pytest.raises(AttributeError, match="claims"):
        kind.verify(read(f"{kind.folder}/good/{kind.good}.json"), JWS_STEPS)


@pytest.mark.parametrize("token", [None, 7, b"a.b.c", ["a"]])
def test_what_is_not_text_is_no_token(token: Any) -> None:
    refusal = _refusal(lambda given: contract.verify_release(given, expectation(REFUND)), token)
    assert refusal[:2] == (1, "not_text")
