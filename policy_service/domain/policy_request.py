"""The policy request for one effect: principal, arguments, context and facts.

Only `args` (the decoded canonical bytes) and `claimed` come from the agent; policies see claims as claims. The service
reads the facts beforehand, for one bundle, and records their age. A person is the string `iss|sub`, never an email.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias

from countersign.contract import JSON

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
