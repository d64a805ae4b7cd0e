"""A decision whose parts contradict each other is refused."""

from datetime import timedelta
from typing import Any

import pytest

from countersign.contract import Verdict
from policy_service.domain.gates import Gate
from policy_service.domain.policy_request import Decision, Reason

GATE = Gate("needs-finance", frozenset({"finance"}), valid_for=timedelta(minutes=30))
WHY = Reason("no_permit", "nothing permits it", advice="add a permit")

CONTRADICTIONS: dict[str, dict[str, Any]] = {
    "a release despite a fired gate": {"outcome": Verdict.RELEASE, "gates": (GATE,)},
    "a review without gates": {"outcome": Verdict.REVIEW},
    "a deny without a reason": {"outcome": Verdict.DENY},
    "a deny with gates": {"outcome": Verdict.DENY, "reasons": (WHY,), "gates": (GATE,)},
    "a release with a reason against it": {"outcome": Verdict.RELEASE, "reasons": (WHY,)},
    "a release despite an engine error": {"outcome": Verdict.RELEASE, "alarms": ("overflow",)},
    "a review despite an engine error": {"outcome": Verdict.REVIEW, "gates": (GATE,), "alarms": ("o",)},
}


@pytest.mark.parametrize("parts", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_contradictions_are_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"a {parts['outcome']}"):
        Decision(bundle="b", commit="c", **parts)


def test_the_code_is_that_of_the_first_reason() -> None:
    assert Decision(Verdict.DENY, "b", "c", reasons=(WHY, Reason("x", "y"))).code == "no_permit"
    assert Decision(Verdict.RELEASE, "b", "c").code is None
