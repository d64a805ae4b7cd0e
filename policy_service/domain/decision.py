"""The policy decision for one effect, with its reasons. The agent, the approver and the audit row share this value."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from countersign.contract import Verdict
from policy_service.domain.gates import DEFAULT_VALID_FOR, Gate


@dataclass(frozen=True, slots=True)
class Reason:
    """Why an effect was denied. `advice` says what would change the decision."""

    code: str
    text: str
    policy: str | None = None
    advice: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The reason as JSON, without unset members."""
        known = {"code": self.code, "text": self.text, "policy": self.policy, "advice": self.advice}
        return {name: value for name, value in known.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision. A release has no gates, a review has at least one gate, and a deny has at least one reason.

    `policies` are the determining policies: the permits of a release, the permits and gates of a review, the forbids
    of a deny. `alarms` are engine errors for the operator. They can quote argument values, so an agent never gets them.

    Raises:
        ValueError: the parts contradict the outcome.
    """

    outcome: Verdict
    bundle: str
    commit: str
    policies: tuple[str, ...] = ()
    gates: tuple[Gate, ...] = ()
    reasons: tuple[Reason, ...] = ()
    unseen: tuple[str, ...] = ()
    valid_for: timedelta = DEFAULT_VALID_FOR
    alarms: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.outcome is Verdict.REVIEW) is not bool(self.gates):
            raise ValueError(f"a {self.outcome} with the gates {[gate.policy_id for gate in self.gates]}")
        if (self.outcome is Verdict.DENY) is not bool(self.reasons):
            raise ValueError(f"a {self.outcome} with the reasons {[reason.code for reason in self.reasons]}")
        if self.alarms and self.outcome is not Verdict.DENY:
            raise ValueError(f"a {self.outcome} despite an engine error")

    @property
    def code(self) -> str | None:
        """The code of the first reason, or None if nothing was denied."""
        return self.reasons[0].code if self.reasons else None
