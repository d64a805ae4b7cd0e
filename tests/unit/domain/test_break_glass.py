"""Opening in an emergency, as a table: which signatures are enough, and by how many people it then went."""

import pytest

from policy_service.domain.break_glass import Opening, Signature, opening
from policy_service.domain.gates import Gate, merge

PLAIN = merge([Gate("large", frozenset({"finance"}), quorum=2)])
KEYED = merge([Gate("large", frozenset({"finance"})), Gate("key", frozenset({"cfo"}), step_up="passkey")])
OWNER = "urn:test|owner"


def signed(vote: str, person: str = "ann", step_up: str | None = None, **kind: bool) -> Signature:
    return Signature(vote, f"urn:test|{person}", step_up, kind.get("may", True), kind.get("alone", False))


ONE, BO, ALONE = signed("v1"), signed("v2", "bo"), signed("v1", may=False, alone=True)
TABLE: dict[str, tuple[list[Signature], Opening | None]] = {
    "nobody": ([], None),
    "one of two": ([ONE], None),
    "two people": ([ONE, BO], Opening(("v1", "v2"), alone=False)),
    "one person twice": ([ONE, signed("v2")], None),
    "one who may alone": ([ALONE], Opening(("v1",), alone=True)),
    "one who may alone and one of two are two": ([ALONE, BO], Opening(("v1", "v2"), alone=False)),
    "one of two, and one whom policy no longer names": ([ONE, signed("v2", "bo", may=False)], None),
    "nobody whom policy names": ([signed("v1", may=False), signed("v2", "bo", may=False)], None),
    "the owner and one of two": ([signed("v1", "owner"), signed("v2")], None),
    "the owner, who may alone": ([signed("v1", "owner", alone=True)], None),
    "three people": ([ONE, BO, signed("v3", "cy")], Opening(("v1", "v2", "v3"), alone=False)),
}


@pytest.mark.parametrize(("signatures", "opened"), TABLE.values(), ids=TABLE)
def test_what_signatures_come_to(signatures: list[Signature], opened: Opening | None) -> None:
    assert opening(PLAIN, signatures, excluded=frozenset({OWNER})) == opened


KEYS = [
    ("passkey", "passkey", True),
    ("passkey", None, False),
    (None, None, False),
    ("passkey", "sms", False),
]


@pytest.mark.parametrize(("one", "other", "opens"), KEYS)
def test_every_signature_has_the_step_up_of_any_gate(one: str | None, other: str | None, opens: bool) -> None:
    assert (opening(KEYED, [signed("v1", "ann", one), signed("v2", "bo", other)]) is not None) is opens


def test_what_no_gate_holds_is_not_opened() -> None:
    assert opening((), [signed("v1"), signed("v2", "bo")]) is None
