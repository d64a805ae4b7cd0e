"""A decision whose parts contradict each other cannot be made."""

from datetime import timedelta
from typing import Any

import pytest

from countersign.contract import Verdict
from policy_service.domain.decision import Decision, Reason
from policy_service.domain.gates import Gate

GATE = Gate("needs-finance", frozenset({"finance"}), valid_for=timedelta(minutes=30))
WHY = Reason("no_permit", "nothing permits it", advice="add a permit")

CONTRADICTIONS: dict[str, dict[str, Any]] = {
    "a release although a gate fired": {"outcome": Verdict.RELEASE, "gates": (GATE,)},
    "a review that asks nobody": {"outcome": Verdict.REVIEW},
    "a deny without a reason": {"outcome": Verdict.DENY},
    "a deny that asks people": {"outcome": Verdict.DENY, "reasons": (WHY,), "gates": (GATE,)},
    "a release with a reason against it": {"outcome": Verdict.RELEASE, "reasons": (WHY,)},
    "a release although the engine complained": {"outcome": Verdict.RELEASE, "alarms": ("overflow",)},
    "a review although the engine complained": {
        "outcome": Verdict.REVIEW,
        "gates": (GATE,),
        "alarms": ("o",),
    },
}


@pytest.mark.parametrize("parts", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_contradictions_are_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"a {parts['outcome']}"):
        Decision(bundle="b", commit="c", **parts)


def test_a_decision_survives_storage() -> None:
    asks = {"policies": ("p", "g"), "gates": (GATE,), "valid_for": timedelta(minutes=30)}
    denies = {"reasons": (WHY, Reason("x", "y", policy="z")), "alarms": ("overflow",)}
    for decision in (
        Decision(Verdict.RELEASE, "b", "c", policies=("p",), unseen=("items",)),
        Decision(Verdict.REVIEW, "b", "c", **asks),  # type: ignore[arg-type]
        Decision(Verdict.DENY, "b", "c", **denies),  # type: ignore[arg-type]
    ):
        assert Decision.from_json(decision.to_json()) == decision


def test_the_code_is_the_first_reasons() -> None:
    assert Decision(Verdict.DENY, "b", "c", reasons=(WHY, Reason("x", "y"))).code == "no_permit"
    assert Decision(Verdict.RELEASE, "b", "c").code is None
