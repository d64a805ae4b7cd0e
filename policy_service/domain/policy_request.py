"""What the policy is asked about one effect: who acts, with which args, and what the service itself knows.

Rules kept here: nothing in a question is the agent's word but `args` (the decoded canonical bytes) and
`claimed`, which looks so to policy too. Facts are read before, by the service, for one bundle; they carry
their age. A person is one string, `iss|sub`, never an email.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias

from countersign.contract import JSON

CallMethod: TypeAlias = Literal["key", "api_key"]
"""How the agent proved itself: a signature by its own key, or the weaker API key of a trial."""


class InvalidArgsError(ValueError):
    """The args do not fit the reviewed manifest; the text says where and what to send instead."""


@dataclass(frozen=True, slots=True)
class EncodedArgs:
    """Args as policy sees them: `context.input` in Cedar's JSON, and the names of the fields Cedar cannot
    weigh.
    """

    input: Mapping[str, Any]
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentPrincipal:
    """The agent that acts. `owner` is a person; policy sees when there is none."""

    name: str
    owner: str | None = None
    roles: frozenset[str] = frozenset()
    teams: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Claimed:
    """What the SDK or the agent asserts; nobody checked it."""

    purpose: str | None = None
    reasoning: str | None = None
    on_behalf_of: str | None = None


@dataclass(frozen=True, slots=True)
class FactAge:
    """Which source an answer came from, and since when it is known to be true."""

    source: str
    as_of: datetime


@dataclass(frozen=True, slots=True)
class DisplayedFact:
    """One fact for people: the attribute, its value in words, and where it came from."""

    label: str
    value: str
    source: str
    as_of: datetime


@dataclass(frozen=True, slots=True)
class Facts:
    """Attributes the service looked up for one effect under one bundle, already in Cedar's JSON.

    `failed` is a sentence when a source failed or was stale: then there is nothing to decide with. `alarm`
    says more, to the operator only.
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
    """One effect, as the policy of one bundle is asked about it.

    `redecided` says that the effect was decided before: a tool the bundle no longer holds has then changed,
    not stayed unknown. `asked_as_unknown` says that it was unknown from the beginning, and people were asked.
    `history` is what the meters of the tool show, by name; one that is left out reads 0.
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
