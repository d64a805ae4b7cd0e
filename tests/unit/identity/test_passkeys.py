"""Passkeys: what one signs for a vote, single-use challenges, and nonces of proofs."""

import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from policy_service.errors import ForbiddenError
from policy_service.identity import webauthn
from policy_service.identity.passkeys import SpentChallenge, record_use, require_matching_challenge
from policy_service.identity.proofs import Nonces
from policy_service.storage.core import find_one, insert_row
from policy_service.storage.database import Database, Tx
from policy_service.storage.system_tables import PasskeyRow
from tests.fakes.authenticator import Passkey

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
SPENT = SpentChallenge("vote", "https://idp.example|maya", "session", "about", NOW + timedelta(seconds=1))
HERS: dict[str, Any] = {"purpose": "vote", "person": SPENT.person, "session": SPENT.session, "now": NOW}


def test_a_challenge_is_bound_to_person_session_and_purpose_and_used_once() -> None:
    assert require_matching_challenge(SPENT, **HERS) is SPENT
    others = {"person": "https://idp.example|tomas", "session": "another", "purpose": "enrol"}
    others |= {"now": SPENT.expires_at}
    for member, other in others.items():
        with pytest.raises(ForbiddenError):
            require_matching_challenge(SPENT, **HERS | {member: other})
    with pytest.raises(ForbiddenError):
        require_matching_challenge(None, **HERS)


@pytest.mark.parametrize("engine", ["sqlite"])
def test_of_two_answers_read_at_the_same_counter_one_counts(store: Database) -> None:
    row = PasskeyRow(
        passkey_id="pk_1", credential_id="c", key_digest="d", public_key=b"k", iss="https://idp.example",
        sub="maya", name="blue", sign_count=4, vouched_by=None, created_by="s", created_at=NOW, counts_from=NOW,
    )  # fmt: skip

    def twice(tx: Tx) -> None:
        insert_row(tx.conn, row)
        stale = find_one(tx.conn, PasskeyRow, passkey_id="pk_1")
        assert stale is not None
        record_use(tx, stale, 5)
        with pytest.raises(ForbiddenError):
            record_use(tx, stale, 6)
        kept = find_one(tx.conn, PasskeyRow, passkey_id="pk_1")
        assert kept is not None
        assert kept.sign_count == 5

    store.write_sync(twice)


DIGESTS = {"txn_digest": "a" * 64, "effect_digest": "b" * 64, "view_digest": "c" * 64}
CAST = {"person": "https://login.example.com|maya", "verdict": "approve", "nonce": "n" * 43}
VOTE: dict[str, Any] = {"review": "rev_01", "rev": 2} | DIGESTS | CAST


PINNED = "cf29bd8c0f71bdd59cae7b359a202617f20e321d30f126e836688ae30f7382cd"


def test_the_challenge_is_the_digest_of_the_whole_vote() -> None:
    canonical = json.dumps(VOTE, sort_keys=True, separators=(",", ":")).encode()
    digest = hashlib.sha256(b"countersign/step-up/v1\n" + canonical)
    assert webauthn.step_up_challenge(VOTE) == digest.digest()
    assert digest.hexdigest() == PINNED
    assert set(webauthn.STEP_UP_MEMBERS) == set(VOTE)


def test_every_member_is_in_it_and_no_other() -> None:
    for member in VOTE:
        other = 3 if member == "rev" else VOTE[member] + "x"
        assert webauthn.step_up_challenge(VOTE | {member: other}) != webauthn.step_up_challenge(VOTE)
        with pytest.raises(ValueError, match="a step-up signs"):
            webauthn.step_up_challenge({name: value for name, value in VOTE.items() if name != member})
    with pytest.raises(ValueError, match="a step-up signs"):
        webauthn.step_up_challenge(VOTE | {"reason": "fits"})


HERE = webauthn.RelyingParty("localhost", "http://localhost:8420")
CHALLENGE = bytes(range(32))


def test_both_questions_ask_for_the_person_and_not_only_for_the_device() -> None:
    options = webauthn.registration_options(HERE, CHALLENGE, handle=b"h", name="m", known=(), timeout_s=300)
    made = json.loads(options)
    assert made["authenticatorSelection"]["userVerification"] == "required"
    assert made["attestation"] == "none"
    asked = json.loads(webauthn.authentication_options(HERE, CHALLENGE, known=(), timeout_s=300))
    assert asked["userVerification"] == "required"


@pytest.mark.parametrize("kind", ["ES256", "EdDSA", "RS256"])
def test_a_key_of_ours_proves_the_challenge(kind: str) -> None:
    assert answered(Passkey(kind=kind)) == 1


def test_a_key_of_another_algorithm_is_refused() -> None:
    """A stored key is read again each time: a database somebody wrote to names no algorithm of its own choice."""
    with pytest.raises(webauthn.WebAuthnVerificationError, match="not accepted"):
        answered(Passkey(kind="ES384"))


def answered(passkey: Passkey) -> int:
    """The counter a passkey's honest answer brings."""
    asked = webauthn.authentication_options(HERE, CHALLENGE, known=[passkey.id], timeout_s=300)
    answer = webauthn.read_assertion(passkey.get(asked))
    return webauthn.verify_assertion(HERE, CHALLENGE, answer, passkey.public_key)


PERIOD = 60
MINUTE = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)  # a whole number of periods since 1970
NONCES = Nonces(b"s" * 32, PERIOD)


TIMES = {
    "at once": (0, 0, True),
    "at the end of its minute": (0, 59.999, True),
    "in the next minute": (0, 60, True),
    "at the very end of the next minute": (0, 119.999, True),
    "two minutes on": (0, 120, False),
    "made late, shown in the minute after the next": (59.9, 120, False),
    "from the future": (60, 59, False),
}


@pytest.mark.parametrize(("made_at_s", "shown_at_s", "accepted"), TIMES.values(), ids=TIMES.keys())
def test_two_minutes_are_valid(made_at_s: float, shown_at_s: float, accepted: bool) -> None:
    nonce = NONCES.current(MINUTE + timedelta(seconds=made_at_s))
    assert NONCES.accepts(nonce, MINUTE + timedelta(seconds=shown_at_s)) is accepted


def test_the_same_minute_has_one_nonce_and_the_next_another() -> None:
    same, other = (NONCES.current(MINUTE + timedelta(seconds=seconds)) for seconds in (59, 60))
    assert same == NONCES.current(MINUTE) != other


def test_replicas_with_the_same_secret_alone_take_each_others_nonces() -> None:
    for secret, taken in ((b"s" * 32, True), (b"t" * 32, False)):
        assert Nonces(secret, PERIOD).accepts(NONCES.current(MINUTE), MINUTE) is taken


GOOD = NONCES.current(MINUTE)


@pytest.mark.parametrize("nonce", ["", "x", "ä" * 24, "\udc80", GOOD[:-1], GOOD + "="])
def test_anything_else_is_refused(nonce: str) -> None:
    assert not NONCES.accepts(nonce, MINUTE)
