"""Every vector gets its answer, at its step; and no step can go without some fault getting through."""

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from countersign.contract import (
    PROOF_STEPS,
    RECEIPT_STEPS,
    STEPS,
    ContractError,
    EffectDetail,
    KeySet,
    ProofClaims,
    ReceiptClaims,
    ReleaseClaims,
    Step,
    VerificationError,
    VerifiedRelease,
    txn_digest,
    verify_release,
    verify_transaction,
)
from countersign.contract import proof as proof_module
from countersign.contract import receipt_verify as receipt_module
from countersign.contract import verify as verify_module
from countersign.contract.jws import GATE, Presented
from tests.unit.contract.reading import (
    Vector,
    check_proof,
    check_receipt,
    effect,
    expectation,
    params,
    proof_arguments,
    read,
    receipt_expectation,
    vectors,
)

Check = Callable[[Any], str | None]


def check_release(vector: Vector) -> VerifiedRelease:
    return verify_release(vector["token"], expectation(vector))


@pytest.mark.parametrize("vector", params("tokens/good"))
def test_a_good_release_is_verified_for_its_effect(vector: Vector) -> None:
    released = check_release(vector)
    assert released.token == vector["token"]
    assert released.claims.detail == EffectDetail.of(released.effect)


@pytest.mark.parametrize("vector", params("receipts/good"))
def test_a_good_receipt_is_verified(vector: Vector) -> None:
    claims = check_receipt(vector)
    assert isinstance(claims, ReceiptClaims)
    assert claims.attempt == vector["expectation"]["attempt"]


@pytest.mark.parametrize("vector", params("proofs/good"))
def test_a_good_proof_is_verified(vector: Vector) -> None:
    assert check_proof(vector).agent == "support-bot"


@pytest.mark.parametrize("vector", params("tokens/bad"))
def test_a_bad_release_is_refused_at_its_step(vector: Vector) -> None:
    assert _refusal(check_release, vector) == _expected(vector)


@pytest.mark.parametrize("vector", params("receipts/bad"))
def test_a_bad_receipt_is_refused_at_its_step(vector: Vector) -> None:
    assert _refusal(check_receipt, vector) == _expected(vector)


@pytest.mark.parametrize("vector", params("proofs/bad"))
def test_a_bad_proof_is_refused_at_its_step(vector: Vector) -> None:
    assert _refusal(check_proof, vector) == _expected(vector)


def _refusal(check: Callable[[Vector], object], vector: Vector) -> tuple[int, str, str]:
    with pytest.raises(VerificationError) as refused:
        check(vector)
    return refused.value.step, refused.value.code, str(refused.value)


def _expected(vector: Vector) -> tuple[int, str, str]:
    return vector["answer"]["step"], vector["answer"]["code"], VerificationError.TEXT


# --- every step is load-bearing
#
# Each step is replaced by the careless version of itself: nothing where it only checks, the most obliging
# parser where it also prepares what later steps read. Then at least one fault of that step must be accepted.


def _careless_form(state: Presented) -> None:
    head, payload, signature = state.unverified_token.replace("=", "").strip().split(".")[:3]
    state.segments = (head, payload, signature)


def _careless_encoding(state: Presented) -> None:
    head, payload, signature = (
        base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in state.segments
    )
    state.decoded = (head, payload, signature)


def _careless_json(state: Presented) -> None:
    state.header, state.payload = json.loads(state.decoded[0]), json.loads(state.decoded[1])


def _careless_key(state: Presented) -> None:
    state.key = _FIRST_KEY[0]


def _careless_release_shape(state: Any) -> None:
    known = {name: value for name, value in state.payload.items() if name not in {"scope"}}
    state.claims = ReleaseClaims.from_claims(known)


def _careless_receipt_shape(state: Any) -> None:
    known = {name: value for name, value in state.payload.items() if name not in {"exp"}}
    state.claims = ReceiptClaims.from_claims(known)


def _careless_proof_shape(state: Any) -> None:
    known = {name: value for name, value in state.payload.items() if name not in {"htu"}}
    state.claims = ProofClaims.from_claims(known, kid="unread")


_FIRST_KEY: list[Any] = [None]
CARELESS: dict[int, Check] = {2: _careless_form, 3: _careless_encoding, 4: _careless_json, 8: _careless_key}


def _without(steps: Sequence[Step[Any]], number: int, shape: Check) -> tuple[Step[Any], ...]:
    careless = {**CARELESS, 10: shape}.get(number, lambda state: None)
    return tuple(replace(step, check=careless) if step.number == number else step for step in steps)


def _accepted(run: Callable[[Vector], object], faults: dict[str, Vector], number: int) -> list[str]:
    """Names of the faults of this step that now get through."""
    through = []
    for name, vector in faults.items():
        if vector["answer"]["step"] != number:
            continue
        _FIRST_KEY[0] = next(iter(_signer_first(vector)))
        try:
            run(vector)
        except (ContractError, ValueError, LookupError, AttributeError, TypeError):
            continue
        through.append(name)
    return through


def _signer_first(vector: Vector) -> list[Any]:
    """Pinned keys, the one that really signed first: what a verifier that ignores `kid` would try."""
    keys = list(KeySet.from_jwks(vector["expectation"]["jwks"]))
    signing_input, _, signature = vector["token"].rpartition(".")
    raw = base64.urlsafe_b64decode(signature + "==") if len(signature) == 86 else b""
    return sorted(keys, key=lambda key: not key.verify(raw, signing_input.encode("utf-8", "replace")))


RELEASE_FAULTS, RECEIPT_FAULTS, PROOF_FAULTS = (
    vectors(f"{kind}/bad") for kind in ("tokens", "receipts", "proofs")
)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_no_step_of_a_release_can_be_left_out(step: Step[Any]) -> None:
    steps = _without(STEPS, step.number, _careless_release_shape)

    def run(vector: Vector) -> object:
        return verify_module._verify(vector["token"], expectation(vector), steps)

    assert _accepted(run, RELEASE_FAULTS, step.number)


@pytest.mark.parametrize("step", RECEIPT_STEPS, ids=lambda step: step.name)
def test_no_step_of_a_receipt_can_be_left_out(step: Step[Any]) -> None:
    steps = _without(RECEIPT_STEPS, step.number, _careless_receipt_shape)

    def run(vector: Vector) -> object:
        return receipt_module._verify(vector["token"], receipt_expectation(vector), steps)

    assert _accepted(run, RECEIPT_FAULTS, step.number)


@pytest.mark.parametrize("step", PROOF_STEPS, ids=lambda step: step.name)
def test_no_step_of_a_proof_can_be_left_out(step: Step[Any]) -> None:
    steps = _without(PROOF_STEPS, step.number, _careless_proof_shape)

    def run(vector: Vector) -> object:
        arguments = proof_arguments(vector)
        state = proof_module._Proof(unverified_token=vector["token"], typ="agent-proof+jwt", **arguments)
        return proof_module._verify(state, steps)

    assert _accepted(run, PROOF_FAULTS, step.number)


@pytest.mark.parametrize("steps", [STEPS, RECEIPT_STEPS, PROOF_STEPS], ids=["release", "receipt", "proof"])
def test_steps_are_numbered_in_order_and_say_why(steps: Sequence[Step[Any]]) -> None:
    assert [step.number for step in steps] == list(range(1, len(steps) + 1))
    assert all(step.name and step.why for step in steps)
    assert len({step.name for step in steps}) == len(steps)


# --- every kind for every other, and the edges of time

KINDS: dict[str, tuple[str, Check]] = {
    "release": ("tokens/good/reviewed.json", lambda vector: check_release(vector).token),
    "receipt": ("receipts/good/redeemed.json", lambda vector: str(check_receipt(vector))),
    "proof": ("proofs/good/post.json", lambda vector: str(check_proof(vector))),
}


@pytest.mark.parametrize("read_as", KINDS)
@pytest.mark.parametrize("made_as", KINDS)
def test_what_is_good_as_one_thing_is_nothing_else(made_as: str, read_as: str) -> None:
    """Each is signed by a key its reader trusts; what keeps them apart is what they say they are."""
    token, (path, check) = read(KINDS[made_as][0])["token"], KINDS[read_as]
    vector = read(path)
    signed_by = KeySet.from_jwks(read(KINDS[made_as][0])["expectation"]["jwks"]).to_jwks()["keys"]
    vector["expectation"]["jwks"] = {"keys": signed_by}
    presented = vector | {"token": token}
    if made_as == read_as:
        assert check(presented)
    else:
        assert _refusal(check, presented)[:2] == (7, "wrong_typ")


EDGES = [
    # what is off, by how much from the edge, with which leeway, and the answer
    *[("exp", second, leeway, second < 0) for second in (-1, 0, 1) for leeway in (0, 5, 30)],
    *[
        ("nbf", second, leeway, second >= -leeway)
        for leeway in (0, 5, 30)
        for second in (-leeway - 1, -leeway, 0)
    ],
]


@pytest.mark.parametrize(("edge", "second", "leeway", "good"), EDGES)
def test_time_ends_on_the_second_and_begins_within_the_leeway(
    edge: str, second: int, leeway: int, good: bool
) -> None:
    vector = read("tokens/good/reviewed.json")
    claims = json.loads(_decoded(vector["token"].split(".")[1]))
    at = replace(expectation(vector), now=claims[edge] + second, leeway=leeway)
    if good:
        verify_release(vector["token"], at)
    else:
        with pytest.raises(VerificationError) as refused:
            verify_release(vector["token"], at)
        assert refused.value.code == {"exp": "expired", "nbf": "issued_in_future"}[edge]


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


# --- what is not in a single token

REFUND, MAIL = read("tokens/good/reviewed.json"), read("tokens/good/second_effect_without_compensation.json")
EFFECTS = [effect(vector["expectation"]["effect"]) for vector in (REFUND, MAIL)]
KNOWN = {name: REFUND["expectation"][name] for name in ("iss", "aud", "epoch_at_least", "now", "my_key_jkt")}
KEYS = KeySet.from_jwks(REFUND["expectation"]["jwks"])


def test_a_transaction_is_verified_as_a_whole() -> None:
    released = verify_transaction([REFUND["token"], MAIL["token"]], EFFECTS, keys=KEYS, **KNOWN)
    assert [release.effect for release in released] == EFFECTS


@pytest.mark.parametrize(
    ("tokens", "effects", "code"),
    [
        pytest.param([REFUND, MAIL], EFFECTS[:1], "wrong_count", id="one effect too few"),
        pytest.param([REFUND], EFFECTS, "wrong_count", id="one token too few"),
        pytest.param([REFUND], EFFECTS[:1], "wrong_txn_digest", id="an effect dropped with its token"),
        pytest.param([MAIL, REFUND], EFFECTS[::-1], "wrong_txn_digest", id="both reordered"),
        pytest.param([MAIL, REFUND], EFFECTS, "wrong_effect_id", id="tokens reordered"),
        pytest.param([REFUND, REFUND], EFFECTS, "wrong_effect_id", id="one token twice"),
        pytest.param([], EFFECTS, "wrong_count", id="no token"),
    ],
)
def test_no_effect_is_dropped_added_or_reordered(tokens: list[Vector], effects: list[Any], code: str) -> None:
    with pytest.raises(VerificationError) as refused:
        verify_transaction([vector["token"] for vector in tokens], effects, keys=KEYS, **KNOWN)
    assert refused.value.code == code


def test_an_empty_transaction_has_nothing_to_verify() -> None:
    assert verify_transaction([], [], keys=KEYS, **KNOWN) == ()
    assert txn_digest(effect_digests=[]) != txn_digest(effect_digests=[EFFECTS[0].digest])


def test_nothing_but_the_verifier_makes_a_verified_release() -> None:
    released = check_release(REFUND)
    with pytest.raises(TypeError, match="verify_release only"):
        VerifiedRelease(released.claims, released.effect, released.token, object())
    with pytest.raises(TypeError):
        VerifiedRelease(released.claims, released.effect, released.token)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "changed", [{"leeway": 31}, {"leeway": -1}, {"kind": "compensate"}, {"compensates": "0" * 64}]
)
def test_an_expectation_that_makes_no_sense_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ContractError):
        replace(expectation(REFUND), **changed)


@pytest.mark.parametrize("leeway", [0, 30])
def test_the_leeway_may_be_none_or_half_a_minute(leeway: int) -> None:
    assert replace(expectation(REFUND), leeway=leeway).leeway == leeway


def test_a_table_without_the_step_that_reads_the_claims_verifies_nothing() -> None:
    receipt, proof = read("receipts/good/redeemed.json"), read("proofs/good/post.json")
    arguments = {**proof_arguments(proof), "unverified_token": proof["token"], "typ": "agent-proof+jwt"}
    arguments |= {"max_age": 60, "leeway": 5}
    for run in (
        lambda: verify_module._verify(REFUND["token"], expectation(REFUND), GATE),
        lambda: receipt_module._verify(receipt["token"], receipt_expectation(receipt), GATE),
        lambda: proof_module._verify(proof_module._Proof(**arguments), GATE),
    ):
        with pytest.raises(AttributeError, match="claims"):
            run()


def test_a_refusal_tells_outsiders_nothing_and_the_log_everything() -> None:
    with pytest.raises(VerificationError) as refused:
        check_release(RELEASE_FAULTS["missing_exp"])
    assert str(refused.value) == VerificationError.TEXT
    assert (refused.value.step, refused.value.code) == (10, "missing_claim")
    assert "exp" in refused.value.detail


@pytest.mark.parametrize("token", [None, 7, b"a.b.c", ["a"]])
def test_what_is_not_text_is_no_token(token: Any) -> None:
    with pytest.raises(VerificationError) as refused:
        verify_release(token, expectation(REFUND))
    assert (refused.value.step, refused.value.code) == (1, "not_text")
