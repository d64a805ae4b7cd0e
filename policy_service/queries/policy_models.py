"""The policies page as read models: what is in force, what it has decided, what stands in shadow, what happened."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from policy_service.queries.review_models import FactLine

EventKind: TypeAlias = Literal["activated", "refused", "allowed"]
PolicyKind: TypeAlias = Literal[
    "permit", "forbid", "gate", "approving", "settling", "stopping", "starting", "break-glass"
]


@dataclass(frozen=True, slots=True)
class InForce:
    """The bundle that decides, and what keeps a newer one from doing so."""

    digest: str
    commit: str
    origin: str
    author: str | None
    subject: str | None  # the first line of its message
    written_at: datetime | None
    since: datetime | None
    tools: int
    policies: int
    gates: int
    head: str | None  # digest of the newest bytes, where they are not these
    why: str | None  # the newest is not in force: invalid, force_push, ...
    problems: tuple[str, ...]
    failed_at: datetime | None
    warnings: tuple[str, ...]
    cases: int
    cases_say: str  # whether they hold, in a few words


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One policy of the bundle in force. ``decided``: how often it determined an answer lately. ``cases``: of how many
    of the bundle's own.
    """

    policy_id: str
    title: str
    kind: PolicyKind
    asks: str
    file: str
    line: int
    text: str
    doc: str
    decided: int
    cases: int


@dataclass(frozen=True, slots=True)
class ToolRow:
    """One tool of the bundle, and what of its arguments no policy can weigh."""

    tool: str
    title: str
    risk: str
    digest: str
    unseen: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShadowRow:
    """An effect about which the candidate differs."""

    tool: str
    agent: str
    at: datetime
    way: Literal["looser", "stricter", "other"]
    now: str
    then: str
    because: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InShadow:
    """The candidate, its numbers, and the newest differences."""

    origin: str
    commit: str | None
    since: datetime | None
    compared: int
    looser: int
    stricter: int
    other: int
    failed: int
    problems: tuple[str, ...]
    rows: tuple[ShadowRow, ...]

    @property
    def same(self) -> int:
        """About how many both bundles say the same."""
        return self.compared - self.looser - self.stricter - self.other


@dataclass(frozen=True, slots=True)
class BundleEvent:
    """A commit came into force, was refused, or was allowed by an operator; and what it says of itself, where the
    source can still read it."""

    at: datetime
    kind: EventKind
    commit: str
    text: str
    author: str | None = None
    subject: str | None = None  # the first line of its message


@dataclass(frozen=True, slots=True)
class PoliciesPage:
    """Everything the policies page shows. ``counted`` decisions were looked at, the newest of the last week."""

    in_force: InForce
    policies: tuple[PolicyRow, ...]
    tools: tuple[ToolRow, ...]
    counted: int
    counted_all: bool
    shadow: InShadow | None
    events: tuple[BundleEvent, ...]
    chosen: PolicyRow | None


@dataclass(frozen=True, slots=True)
class TriedEffect:
    """What would be decided about a call, without anything being recorded."""

    outcome: Literal["release", "review", "deny"]
    policies: tuple[PolicyRow, ...]
    asks: tuple[str, ...]
    reasons: tuple[str, ...]
    advice: tuple[str, ...]
    unseen: tuple[str, ...]
    facts: tuple[FactLine, ...]
