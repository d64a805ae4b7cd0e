"""The policy request for one effect, with its facts as Cedar values, and the decision that answers it.

Only `args` (the decoded canonical bytes) and `claimed` come from the agent; policies see claims as claims. The service
reads the facts beforehand, for one bundle, and records their age. A person is the string `iss|sub`, never an email.

The agent, the approver and the audit row share the decision with its reasons. Only this module writes Cedar's `__extn`,
so no argument can forge a typed value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Literal, TypeAlias

from countersign.contract import JSON, Verdict
from policy_service.domain.gates import DEFAULT_VALID_FOR, Gate

CallMethod: TypeAlias = Literal["key", "api_key"]
"""How the agent authenticated: a signature by its own key, or an API key, which is weaker."""


class InvalidArgsError(ValueError):
    """The args do not match the reviewed manifest. The text says where, and what to send instead."""


@dataclass(frozen=True, slots=True)
class EncodedArgs:
    """Args as policies see them: `context.input` as Cedar JSON, and the names of the fields Cedar cannot evaluate."""

    input: Mapping[str, Any]
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentPrincipal:
    """The agent that acts. `owner` is a person, or None."""

    name: str
    owner: str | None = None
    roles: frozenset[str] = frozenset()
    teams: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Claimed:
    """What the SDK or the agent asserts, unverified."""

    purpose: str | None = None
    reasoning: str | None = None
    on_behalf_of: str | None = None


@dataclass(frozen=True, slots=True)
class FactAge:
    """The source of a fact, and when the source read it."""

    source: str
    as_of: datetime


@dataclass(frozen=True, slots=True)
class DisplayedFact:
    """One fact for display: the attribute, its value as text, and its source."""

    label: str
    value: str
    source: str
    as_of: datetime


@dataclass(frozen=True, slots=True)
class Facts:
    """The attributes the service looked up for one effect under one bundle, as Cedar JSON.

    `failed` is a sentence if a source failed or was stale; the effect is then denied. `alarm` is the detail for the
    operator.
    """

    bundle: str
    resource: Mapping[str, Any] = field(default_factory=dict)
    agent: Mapping[str, Any] = field(default_factory=dict)
    ages: tuple[FactAge, ...] = ()
    shown: tuple[DisplayedFact, ...] = ()
    failed: str | None = None
    alarm: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyRequest:
    """One effect, as the policies of one bundle evaluate it.

    `reevaluated`: the effect was decided before, so a tool missing from the bundle has changed rather than being
    unknown. `reviewed_as_unknown`: the tool was unknown from the start, and people reviewed the effect as such.
    `history` is the reading of each meter of the tool, by name; a missing meter reads 0.
    """

    agent: AgentPrincipal
    tool: str
    tool_digest: str
    args: JSON
    facts: Facts
    now: datetime
    env: str = "production"
    txn_size: int = 1
    claimed: Claimed = field(default_factory=Claimed)
    on_behalf_of: str | None = None
    method: CallMethod = "key"
    reevaluated: bool = False
    reviewed_as_unknown: bool = False
    history: Mapping[str, int] = field(default_factory=dict)


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


MAX_DECIMAL_PLACES: Final = 4
"""Cedar's decimal is a 64-bit count of ten-thousandths."""


MAX_DECIMAL: Final = Decimal(2**63 - 1).scaleb(-MAX_DECIMAL_PLACES)


def decimal_value(number: Decimal) -> dict[str, Any]:
    """A number as a Cedar decimal.

    Raises:
        ValueError: it has more than four places or is too large. Rounding would show policies another number than the
            tool gets.
    """
    if decimal_places(number) > MAX_DECIMAL_PLACES:
        raise ValueError(
            f"{number} has more than {MAX_DECIMAL_PLACES} decimal places; round it before sending"
        )
    if abs(number) > MAX_DECIMAL:
        raise ValueError(f"{number} is outside +-{MAX_DECIMAL}")
    text = f"{number.normalize():f}"
    return {"__extn": {"fn": "decimal", "arg": text if "." in text else text + ".0"}}


def decimal_places(number: Decimal) -> int:
    """The number of decimal places; for NaN and infinity, more than a Cedar decimal may have."""
    exponent = number.normalize().as_tuple().exponent
    return -exponent if isinstance(exponent, int) else MAX_DECIMAL_PLACES + 1


def datetime_value(moment: datetime) -> dict[str, Any]:
    """A time as a Cedar datetime, to the millisecond.

    Raises:
        ValueError: the time has no time zone.
    """
    if moment.tzinfo is None:
        raise ValueError(f"{moment.isoformat()} has no time zone; write it with Z")
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"__extn": {"fn": "datetime", "arg": text}}
