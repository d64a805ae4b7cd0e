"""The policy's answer for one effect, with its reasons: the same value serves the agent, the approver and the
audit row.

Rules kept here: only a decision without gates releases, a review names at least one gate, a deny at least one
reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from countersign.contract import Verdict
from policy_service.domain.gates import DEFAULT_VALID_FOR, Gate


@dataclass(frozen=True, slots=True)
class Reason:
    """Why, in words the agent may act on; `advice` says what would change the answer."""

    code: str
    text: str
    policy: str | None = None
    advice: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The reason as it is stored and sent; what is not known is left out."""
        known = {"code": self.code, "text": self.text, "policy": self.policy, "advice": self.advice}
        return {name: value for name, value in known.items() if value is not None}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Reason:
        """The reason that `to_json` wrote."""
        return cls(stored["code"], stored["text"], stored.get("policy"), stored.get("advice"))


@dataclass(frozen=True, slots=True)
class Decision:
    """`policies` are the determining ones: permits of a release, permits and gates of a review, forbids of a
    deny.

    `alarms` are for the operator (engine errors, with values from the args in them) and never go to an agent.

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
            raise ValueError(f"a {self.outcome} although the engine complained")

    @property
    def code(self) -> str | None:
        """The first reason's code; None where nothing was denied."""
        return self.reasons[0].code if self.reasons else None

    def to_json(self) -> dict[str, Any]:
        """The decision as it is stored."""
        return {
            "outcome": self.outcome.value,
            "bundle": self.bundle,
            "commit": self.commit,
            "policies": list(self.policies),
            "gates": [gate.to_json() for gate in self.gates],
            "reasons": [reason.to_json() for reason in self.reasons],
            "unseen": list(self.unseen),
            "valid_for": int(self.valid_for.total_seconds()),
            "alarms": list(self.alarms),
        }

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Decision:
        """The decision that `to_json` wrote."""
        return cls(
            outcome=Verdict(stored["outcome"]),
            bundle=stored["bundle"],
            commit=stored["commit"],
            policies=tuple(stored["policies"]),
            gates=tuple(Gate.from_json(gate) for gate in stored["gates"]),
            reasons=tuple(Reason.from_json(reason) for reason in stored["reasons"]),
            unseen=tuple(stored["unseen"]),
            valid_for=timedelta(seconds=stored["valid_for"]),
            alarms=tuple(stored["alarms"]),
        )
