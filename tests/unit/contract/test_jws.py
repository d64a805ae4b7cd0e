"""What the gate lets through is what was signed, and nothing large is signed or read."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersign import contract
from countersign.contract.receipt import MAX_EFFECTS
from tests.unit.contract.reading import code_of

KEY = contract.PrivateKey.from_seed(bytes(range(32)))


KEYS = contract.KeySet([KEY.public])


def refusal(token: str, typ: str = contract.TYP_RELEASE, key_for: Any = KEYS.get) -> tuple[int, str]:
    with pytest.raises(contract.VerificationError) as refused:
        contract.open_token(token, typ=typ, key_for=key_for)
    return refused.value.step, refused.value.code


VALUES = st.text(max_size=50) | st.integers(0, 2**40) | st.none()


@given(st.dictionaries(st.text(max_size=20), VALUES, max_size=8))
def test_what_was_signed_is_what_is_read(claims: dict[str, object]) -> None:
    try:
        token = contract.sign(claims, typ=contract.TYP_RELEASE, key=KEY)
    except contract.AdmissionError:
        return
    opened = contract.open_token(token, typ=contract.TYP_RELEASE, key_for=KEYS.get)
    assert (dict(opened.claims), opened.kid) == (claims, KEY.public.kid)
    assert dict(opened.header) == {"alg": "Ed25519", "typ": contract.TYP_RELEASE, "kid": KEY.public.kid}


def test_the_same_claims_give_the_same_token() -> None:
    ordered = ({"b": 1, "a": 2}, {"a": 2, "b": 1})
    assert len({contract.sign(claims, typ=contract.TYP_PROOF, key=KEY) for claims in ordered}) == 1


@given(st.data())
def test_no_character_of_a_token_can_be_changed(data: st.DataObject) -> None:
    token = contract.sign({"a": "b", "c": 1}, typ=contract.TYP_RELEASE, key=KEY)
    place = data.draw(st.integers(0, len(token) - 1))
    others = st.characters(max_codepoint=0x17F, exclude_characters=token[place], exclude_categories=["Cs"])
    assert refusal(token[:place] + data.draw(others) + token[place + 1 :])


def test_the_largest_token_is_signed_and_read_and_no_larger_one() -> None:
    token = contract.sign({"a": "x" * 5_990}, typ="t", key=KEY)
    assert len(token) == 8192
    contract.open_token(token, typ="t", key_for=KEYS.get)
    with pytest.raises(contract.ContractError, match="8193 bytes") as refused:
        contract.sign({"a": "x" * 5_991}, typ="t", key=KEY)
    assert refused.value.code == "token_too_large"


UNREADABLE = [
    *(((1,), "not_a_json_value"), (1.5, "float_refused"), ({"__entity": 1}, "reserved_key")),
    *(([[[[[[[[1]]]]]]]], "too_deep"), ("\ud800", "lone_surrogate"), (2**53, "integer_out_of_range")),
]


@pytest.mark.parametrize(("value", "code"), UNREADABLE)
def test_claims_that_no_verifier_accepts_are_not_signed(value: object, code: str) -> None:
    assert code_of(contract.sign, {"a": value}, typ=contract.TYP_RELEASE, key=KEY) == code


@pytest.mark.parametrize("value", [[[[[[[[1]]]]]]], 2**53 - 1, "__entity", ""])
def test_claims_at_the_limit_are_signed_and_read(value: object) -> None:
    token = contract.sign({"a": value}, typ=contract.TYP_RELEASE, key=KEY)
    assert contract.open_token(token, typ=contract.TYP_RELEASE, key_for=KEYS.get).claims["a"] == value


def test_the_largest_receipt_is_signed_and_read() -> None:
    """A spend of a hundred effects is committed before its receipt is signed: it must fit."""
    longest = "x" * 512
    effects = tuple(contract.ReceiptEffect("e" * 64, "d" * 64, f"{n:032d}") for n in range(MAX_EFFECTS))
    digests = {"txn": "a" * 64, "txn_digest": "b" * 64, "cnf_jkt": "k" * 43}
    claims = contract.ReceiptClaims(
        **dict.fromkeys(("iss", "aud", "sub", "attempt"), longest),
        **dict.fromkeys(("iat", "fire_by", "epoch"), 2**53 - 1),
        **digests,
        effects=effects,
    )
    token = contract.sign(claims.to_claims(), typ=contract.TYP_RECEIPT, key=KEY)
    assert len(token) > 8192
    opened = contract.open_token(token, typ=contract.TYP_RECEIPT, key_for=KEYS.get)
    assert contract.ReceiptClaims.from_claims(opened.claims) == claims
    assert refusal(token)[1] == "too_large"


@pytest.mark.parametrize("empty", [0, 1, 2])
def test_a_token_has_three_parts_none_of_them_empty(empty: int) -> None:
    parts = contract.sign({"a": 1}, typ="t", key=KEY).split(".")
    parts[empty] = ""
    for token in (".".join(parts), ".".join(part for part in parts if part), ".".join([*parts, "a"])):
        assert refusal(token, "t") == (2, "not_compact")


def test_a_header_seen_before_is_no_better_than_a_new_one() -> None:
    """What a header reads as is remembered; whether it is acceptable is asked each time."""
    good = contract.sign({"a": 1}, typ="t", key=KEY)
    contract.open_token(good, typ="t", key_for=KEYS.get)
    for _ in range(2):
        assert refusal(good, "other")[1] == "wrong_typ"
        assert refusal(good, "t", contract.KeySet([]).get)[1] == "unknown_kid"
    first, second = (contract.open_token(good, typ="t", key_for=KEYS.get).header for _ in range(2))
    assert first == second and first is not second
