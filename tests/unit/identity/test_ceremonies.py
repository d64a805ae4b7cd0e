"""What a passkey signs for a vote: exactly what the documents say, worked out here a second time; and who may sign."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from policy_service.identity.ceremonies import (
    SIGNED,
    Party,
    UnprovenError,
    ask_to_enrol,
    ask_to_sign,
    read_assertion,
    step_up_challenge,
    verify_assertion,
)
from tests.fakes.authenticator import Passkey

DIGESTS = {"txn_digest": "a" * 64, "effect_digest": "b" * 64, "view_digest": "c" * 64}
CAST = {"person": "https://login.example.com|maya", "verdict": "approve", "nonce": "n" * 43}
VOTE: dict[str, Any] = {"review": "rev_01", "rev": 2} | DIGESTS | CAST


PINNED = "cf29bd8c0f71bdd59cae7b359a202617f20e321d30f126e836688ae30f7382cd"


def test_the_challenge_is_the_digest_of_the_whole_vote() -> None:
    canonical = json.dumps(VOTE, sort_keys=True, separators=(",", ":")).encode()
    digest = hashlib.sha256(b"countersign/step-up/v1\n" + canonical)
    assert step_up_challenge(VOTE) == digest.digest()
    assert digest.hexdigest() == PINNED
    assert set(SIGNED) == set(VOTE)


def test_every_member_is_in_it_and_no_other() -> None:
    for member in VOTE:
        other = 3 if member == "rev" else VOTE[member] + "x"
        assert step_up_challenge(VOTE | {member: other}) != step_up_challenge(VOTE)
        with pytest.raises(ValueError, match="a step-up signs"):
            step_up_challenge({name: value for name, value in VOTE.items() if name != member})
    with pytest.raises(ValueError, match="a step-up signs"):
        step_up_challenge(VOTE | {"reason": "fits"})


HERE = Party("localhost", "http://localhost:8420")
CHALLENGE = bytes(range(32))


def test_both_questions_ask_for_the_person_and_not_only_for_the_device() -> None:
    made = json.loads(ask_to_enrol(HERE, CHALLENGE, handle=b"h", name="maya", known=(), timeout_s=300))
    assert made["authenticatorSelection"]["userVerification"] == "required"
    assert made["attestation"] == "none"
    assert json.loads(ask_to_sign(HERE, CHALLENGE, known=(), timeout_s=300))["userVerification"] == "required"


@pytest.mark.parametrize("kind", ["ES256", "EdDSA", "RS256"])
def test_a_key_of_ours_proves_the_challenge(kind: str) -> None:
    assert answered(Passkey(kind=kind)) == 1


def test_a_key_of_another_algorithm_proves_nothing_however_good_its_signature() -> None:
    """A stored key is read again each time: a database somebody wrote to names no algorithm of its own choice."""
    with pytest.raises(UnprovenError, match="not taken here"):
        answered(Passkey(kind="ES384"))


def answered(passkey: Passkey) -> int:
    """The counter a passkey's honest answer brings."""
    asked = ask_to_sign(HERE, CHALLENGE, known=[passkey.id], timeout_s=300)
    return verify_assertion(HERE, CHALLENGE, read_assertion(passkey.get(asked)), passkey.public_key)
