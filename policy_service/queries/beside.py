"""What stands beside the facts on the review page, as read models; by the same rules as ``reviews.py``.

None of it is on the sheet and none of it is signed: it is what the service itself remembers, for people to weigh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from policy_service.queries.pieces import ArgRow, Piece


@dataclass(frozen=True, slots=True)
class PastEffect:
    """An earlier effect and what became of it. `by` and `reason` are of the person who settled it with a no."""

    sentence: tuple[Piece, ...]
    agent: str
    asked_at: datetime
    state: str
    review_id: str | None = None  # None: nobody was asked
    by: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Past:
    """The effects of the same tool on the same resource, or to the same recipients, in the days before."""

    days: int
    resource_type: str
    to_recipients: bool  # the arguments name recipients
    counts: Mapping[str, int]  # by state
    capped: bool  # there are more than were counted
    rows: tuple[PastEffect, ...]  # the newest of them, newest first


@dataclass(frozen=True, slots=True)
class LastApproved:
    """The agent's last effect by the same tool that fired, or that people approved, with its arguments."""

    effect: PastEffect
    args: tuple[ArgRow, ...]
    approved_by: tuple[str, ...]
    same_version: bool  # of the tool: its description has not changed since
    opened_by: tuple[str, ...] = ()  # in an emergency, without the people its gates asked


@dataclass(frozen=True, slots=True)
class Limit:
    """The total above which a rule forbids, or asks people, whatever else the effect is like."""

    total: int
    policy_id: str
    title: str
    asks: bool  # people are asked above it; else it is forbidden


@dataclass(frozen=True, slots=True)
class MeterLine:
    """A meter as it stood when the effect took its part of it."""

    name: str
    doc: str
    per: str
    window: str
    until: datetime | None  # None: the window rolls
    before: int
    this: int | None  # None: it would tell a secret
    currency: str | None
    limit: Limit | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """How the effect was spent."""

    redeemer: str
    attempt_id: str
    redeemed_at: datetime
    jti: str | None
    fire_by: datetime | None


@dataclass(frozen=True, slots=True)
class Beside:
    """All of it. `last` and `past` are None where there is nothing before it."""

    last: LastApproved | None = None
    past: Past | None = None
    meters: tuple[MeterLine, ...] = ()
    proof: Proof | None = None
