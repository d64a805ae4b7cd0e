"""What a passkey signs for a vote: exactly what the documents say, worked out here a second time."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from policy_service.identity.ceremonies import SIGNED, step_up_challenge

VOTE: dict[str, Any] = {
    "review": "rev_01",
    "rev": 2,
    "txn_digest": "a" * 64,
    "effect_digest": "b" * 64,
    "view_digest": "c" * 64,
    "person": "https://login.example.com|maya",
    "verdict": "approve",
    "nonce": "n" * 43,
}
PINNED = "cf29bd8c0f71bdd59cae7b359a202617f20e321d30f126e836688ae30f7382cd"


def test_the_challenge_is_the_digest_of_the_whole_vote() -> None:
    canonical = json.dumps(VOTE, sort_keys=True, separators=(",", ":")).encode()
    digest = hashlib.sha256(b"countersign/step-up/v1\n" + canonical)
    assert step_up_challenge(VOTE) == digest.digest()
    assert digest.hexdigest() == PINNED
    assert set(SIGNED) == set(VOTE)


@pytest.mark.parametrize("member", VOTE)
def test_every_member_is_in_it(member: str) -> None:
    other = 3 if member == "rev" else VOTE[member] + "x"
    assert step_up_challenge(VOTE | {member: other}) != step_up_challenge(VOTE)


@pytest.mark.parametrize("member", VOTE)
def test_none_may_be_missing(member: str) -> None:
    with pytest.raises(ValueError, match="a step-up signs"):
        step_up_challenge({name: value for name, value in VOTE.items() if name != member})


def test_no_other_member_may_be_in_it() -> None:
    with pytest.raises(ValueError, match="a step-up signs"):
        step_up_challenge(VOTE | {"reason": "fits"})
