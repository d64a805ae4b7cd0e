"""Reads `tests/vectors` into the contract's own types."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from countersign import contract
from countersign.contract.jws import TYP_RECEIPT
from countersign.contract.receipt import ReceiptState
from countersign.contract.verify import LEEWAY_SECONDS

VECTORS = Path(__file__).parents[2] / "vectors"
Vector = dict[str, Any]


def read(name: str) -> Vector:
    """One vector file."""
    value: Vector = json.loads((VECTORS / name).read_text(encoding="ascii"))
    return value


def vectors(folder: str) -> dict[str, Vector]:
    """Every vector of a folder by its name."""
    found = {path.stem: read(f"{folder}/{path.name}") for path in sorted((VECTORS / folder).glob("*.json"))}
    assert found, f"no vectors in {folder}"
    return found


def params(folder: str) -> list[Any]:
    """Every vector of a folder as a parameter, its name as the id."""
    return [pytest.param(vector, id=name) for name, vector in vectors(folder).items()]


def raw(case: Vector) -> bytes:
    """The bytes of a case given in pieces."""
    return b"".join(bytes.fromhex(piece) * count for piece, count in case["pieces"])


def effect(value: Vector) -> contract.Effect:
    """The effect a vector describes."""
    undo = value.get("compensation")
    names = ("agent", "txn", "effect_id", "seq", "tool", "tool_digest", "call_key")
    return contract.Effect(
        **{name: value[name] for name in names},
        resource=contract.Resource(**value["resource"]),
        args_bytes=contract.canonicalize(value["args"]),
        compensation=contract.Compensation(**undo) if undo else None,
    )


def expectation(vector: Vector) -> contract.Expectation:
    """What the verifier of a release vector knows."""
    known = dict(vector["expectation"])
    jwks = known.pop("jwks")
    known |= {"keys": contract.KeySet.from_jwks(jwks), "effect": effect(known["effect"])}
    return contract.Expectation(**known)


def receipt_state(vector: Vector) -> ReceiptState:
    """The initial state of verifying a receipt vector."""
    known = {"kind": "effect", "leeway": LEEWAY_SECONDS} | _known_of_receipt(vector)
    keys = known.pop("keys")
    return ReceiptState(unverified_token=vector["token"], typ=TYP_RECEIPT, key_for=keys.get, **known)


def check_receipt(vector: Vector) -> object:
    """Verify a receipt vector by the public function."""
    return contract.verify_receipt(vector["token"], **_known_of_receipt(vector))


def _known_of_receipt(vector: Vector) -> Vector:
    known = dict(vector["expectation"])
    keys = contract.KeySet.from_jwks(known.pop("jwks"))
    effects = tuple(contract.ReceiptEffect(**item) for item in known["effects"])
    return known | {"keys": keys, "effects": effects}


def code_of(call: Callable[..., object], *args: Any, **kwargs: Any) -> str:
    """The code a call is refused with."""
    with pytest.raises(contract.ContractError) as refused:
        call(*args, **kwargs)
    return refused.value.code


def proof_arguments(vector: Vector) -> Vector:
    """The arguments of `verify_proof` for a proof vector."""
    known = dict(vector["expectation"])
    keys, nonces = contract.KeySet.from_jwks(known.pop("jwks")), known.pop("accepted_nonces")
    return {**known, "key_for": keys.get, "body": known["body"].encode(), "accept_nonce": nonces.__contains__}


def check_proof(vector: Vector) -> contract.ProofClaims:
    """Verify a proof vector by the public function."""
    return contract.verify_proof(vector["token"], **proof_arguments(vector))


def cases(name: str) -> list[Any]:
    """The named cases of a file as parameters."""
    found = enumerate(read(name)["cases"])
    return [pytest.param(case, id=case.get("name") or case.get("about") or str(n)) for n, case in found]
