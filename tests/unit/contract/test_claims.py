"""Claims are written as they are read, and a proof made here is one accepted there."""

from typing import Any

import pytest

from countersign import contract
from tests.unit.contract.reading import expectation, read

KEY = contract.PrivateKey.from_seed(bytes(32))
REQUEST: dict[str, Any] = {"method": "POST", "url_path": "/v1/redemptions", "query": "a=b", "body": b"{}"}


def test_a_detail_describes_the_effect_it_was_made_of() -> None:
    effect = expectation(read("tokens/good/reviewed.json")).effect
    detail = contract.EffectDetail.of(effect)
    assert (detail.args_digest, detail.effect_digest) == (effect.args_digest, effect.digest)
    assert contract.EffectDetail.from_json(detail.to_json()) == detail


DECISION = contract.DecisionClaims("d", contract.Mode.REVIEW, "c", "b", ("p",), (), 1, "oidc")


@pytest.mark.parametrize(("votes", "named"), [(0, 0), (1, 1), (20, 20), (21, 20), (50, 20)])
def test_twenty_votes_are_named_and_the_rest_counted(votes: int, named: int) -> None:
    decision = DECISION._replace(votes=tuple(f"v{n}" for n in range(votes)))
    written = contract.DecisionClaims.from_json(decision.to_json())
    assert (len(written.votes), written.more) == (named, votes - named)
    assert contract.DecisionClaims.from_json(written.to_json()) == written


@pytest.mark.parametrize(("length", "fits"), [(0, False), (1, True), (1024, True), (1025, False)])
def test_text_in_a_token_has_a_sane_length(length: int, fits: bool) -> None:
    written = DECISION._replace(commit="c" * length).to_json()
    if fits:
        assert contract.DecisionClaims.from_json(written).commit == "c" * length
    else:
        with pytest.raises(contract.ContractError, match="commit must be text of 1 to 1024 characters"):
            contract.DecisionClaims.from_json(written)


def proof(**changed: Any) -> str:
    return contract.make_proof(KEY, agent="bot", nonce="n", now=1000, **REQUEST | changed)


@pytest.mark.parametrize("body", [b"", b"{}", bytes(range(256))])
def test_a_proof_made_for_a_request_is_accepted_with_it(body: bytes) -> None:
    keys = {KEY.public.kid: KEY.public}
    known = REQUEST | {"body": body, "key_for": keys.get, "accept_nonce": "n".__eq__, "now": 1030}
    claims = contract.verify_proof(proof(body=body), **known)
    assert (claims.agent, claims.kid, claims.iat, claims.nonce) == ("bot", KEY.public.kid, 1000, "n")


def test_two_proofs_never_share_an_id() -> None:
    assert len({proof() for _ in range(10)}) == 10
