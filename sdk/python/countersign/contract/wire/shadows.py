"""A bundle in shadow as people's programs read it: what it would have decided otherwise."""

from typing import Literal

from pydantic import Field

from .base import Digest, Instant, Many, Name, Text, WireModel


class ShadowAnswer(WireModel):
    """What one bundle says about an effect."""

    outcome: Literal["release", "review", "deny"]
    policies: Many[str]
    asks: str | None = Field(default=None, description="Of a review: how many of whom.")
    reasons: Many[str] = ()


class ShadowDifference(WireModel):
    """An effect about which the candidate and the bundle in force differ."""

    effect_id: Digest
    rev: int = Field(ge=1)
    tool: Name
    agent: Name
    at: Instant
    way: Literal["looser", "stricter", "other"]
    in_force: ShadowAnswer
    candidate: ShadowAnswer


class ShadowView(WireModel):
    """`GET /v1/policies/shadow`: the candidate beside the bundle in force."""

    origin: str | None = Field(
        default=None, description="Where it comes from; absent when nothing is in shadow."
    )
    digest: Digest | None = Field(default=None, description="Absent while it does not load.")
    commit: Name | None = None
    problems: Many[Text] = Field(default=(), description="What keeps it from loading, with file and line.")
    since: Instant | None = Field(default=None, description="What was submitted before was not compared.")
    compared: int = 0
    looser: int = 0
    stricter: int = 0
    other: int = Field(default=0, description="Laxer in one thing and stricter in another.")
    failed: int = Field(default=0, description="Could not be asked about; the service's log says why.")
    differences: Many[ShadowDifference] = Field(default=(), description="The newest in front.")
