"""A case: one question to the rules, and what its author expects them to answer.

Rules kept here: nothing of it depends on the clock or on this machine, so that a case means the same everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from policy_service.domain.gates import DEFAULT_ANSWER_WITHIN
from policy_service.domain.question import AgentPrincipal, CallMethod, Claimed

DEFAULT_NOW: Final = datetime(2026, 1, 14, 12, 0, tzinfo=UTC)
"""When a case happens that does not say: a Wednesday, at noon."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What one merged gate must ask for, written out."""

    people: int
    step_up: str | None = None
    reason: bool = False
    shared: bool = False
    answer_within: timedelta = DEFAULT_ANSWER_WITHIN


@dataclass(frozen=True, slots=True)
class Expected:
    """What must come of it. What is None was not written and is not compared.

    `needs` is by group set (`finance`, `cfo|finance`): a number of people, or all that is asked for.
    """

    outcome: str
    gates: frozenset[str] | None = None
    needs: Mapping[str, int | Asked] | None = None
    policies: frozenset[str] = frozenset()
    reasons: frozenset[str] | None = None
    errors: frozenset[str] | None = None
    step_up: str | None = None
    valid_for: timedelta | None = None
    answer_within: timedelta | None = None


@dataclass(frozen=True, slots=True)
class GivenFacts:
    """Facts an author wrote: they lie over the bundle's own files, and no other source is asked."""

    resource: Mapping[str, Any] = field(default_factory=dict)
    agent: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Case:
    """One call by one agent. `args_bytes` are its canonical args."""

    file: str
    line: int
    it: str
    agent: AgentPrincipal
    tool: str
    args: Any
    args_bytes: bytes
    expected: Expected
    now: datetime = DEFAULT_NOW
    env: str = "production"
    txn_size: int = 1
    claimed: Claimed = field(default_factory=Claimed)
    on_behalf_of: str | None = None
    method: CallMethod = "key"
    history: Mapping[str, int] = field(default_factory=dict)
    facts: GivenFacts | None = None

    @property
    def place(self) -> str:
        """Where it is written: `file:line`."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class PeopleCase:
    """One person who wants to do something here: approve an effect, settle its task, stop its tool."""

    file: str
    line: int
    it: str
    action: str  # as `Action::"..."` names it
    person: str
    groups: frozenset[str]
    assurance: Literal["oidc", "dev"]
    agent: AgentPrincipal
    tool: str
    gates: frozenset[str]
    kind: str  # of a task
    what: str  # of a stop
    name: str
    now: datetime
    opened_at: datetime
    env: str
    allowed: bool
    policies: frozenset[str] = frozenset()

    @property
    def place(self) -> str:
        """Where it is written: `file:line`."""
        return f"{self.file}:{self.line}"


AnyCase = Case | PeopleCase
