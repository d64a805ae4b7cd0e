"""Bodies for people's programs: reviews and votes, tasks, and differences of a shadow bundle."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from countersign.contract.states import EffectState, TaskAnswer, TaskKind

from .base import Digest, Instant, Many, Name, Result, Text, WireModel
from .discussion import CommentView, SiblingView
from .responses import EffectView, Need, Settlement


class VoteView(WireModel):
    """One person's answer; `counted`: whether it still counts for the review."""

    vote_id: Name
    person: str
    verdict: Literal["approve", "deny", "break_glass"]
    at: Instant
    counted: bool
    assurance: Literal["oidc", "dev"]
    reason: Text | None = None
    step_up: str | None = None
    view_digest: Digest | None = Field(default=None, description="What the person was shown.")


class EarlierDenial(WireModel):
    """A person denied nearly the same a short while ago: this agent, tool and resource. It decides nothing."""

    review_id: Name
    txn: Digest
    at: Instant
    person: str
    reason: str | None = None
    differs: Many[str] = Field(
        default=(), description="Arguments that are others now; none: exactly the same were denied."
    )


class ReviewView(WireModel):
    """The open question one effect asks at one revision."""

    review_id: Name
    txn: Digest
    rev: int = Field(ge=1)
    txn_digest: Digest
    state: str
    agent: Name
    opened_at: Instant
    answer_by: Instant
    url: str
    title: str
    effect: EffectView
    needs: Many[Need]
    owner: str | None = None
    votes: Many[VoteView] = ()
    comments: Many[CommentView] = ()
    siblings: Many[SiblingView] = ()
    claimed: dict[str, JsonValue] = Field(default_factory=dict)
    earlier_denials: Many[EarlierDenial] = ()
    view_digest: Digest | None = Field(
        default=None,
        description="Of all this as a program reads it: send it with a vote. In lists there is none.",
    )


class ReviewPageView(WireModel):
    """`GET /v1/reviews`: one page, by key."""

    reviews: Many[ReviewView]
    next: str | None = Field(default=None, description="Give this as `cursor` for the next page.")


class TaskView(WireModel):
    """Something a person must settle."""

    task_id: Name
    kind: TaskKind
    text: str
    opened_at: Instant
    state: Literal["open", "settled"]
    url: str = Field(description="Where people settle it.")
    txn: Digest
    effect_id: Digest
    rev: int = Field(ge=1)
    agent: Name
    tool: Name
    settled_at: Instant | None = None
    settlement: Settlement | None = Field(
        default=None,
        description="What a person said; absent where it settled itself, by a late report or in time.",
    )


class TaskPage(WireModel):
    """`GET /v1/tasks`: one page, by key."""

    tasks: Many[TaskView]
    next: str | None = Field(default=None, description="Give this as `cursor` for the next page.")


class TaskChoice(WireModel):
    """One answer a task takes, and what it will cause."""

    answer: TaskAnswer
    text: str
    follows: str


class TaskDetail(WireModel):
    """`GET /v1/tasks/{task_id}`: one task with what is known, for the person who settles it."""

    task: TaskView
    effect: EffectView
    choices: Many[TaskChoice] = Field(default=(), description="Empty once it is settled.")
    attempt_id: Name | None = Field(default=None, description="The attempt it was redeemed under.")
    fire_by: Instant | None = None
    error: Text | None = Field(default=None, description="What the redeemer said last.")
    idempotent: bool | None = Field(
        default=None, description="By the reviewed manifest; absent where it is gone."
    )
    compensation_tool: Name | None = Field(default=None, description="What takes it back.")
    owner: str | None = None
    why_not: str | None = Field(default=None, description="Why you may not settle it.")


class ShadowAnswer(WireModel):
    """What one bundle says about an effect."""

    outcome: Literal["release", "review", "deny"]
    policies: Many[str]
    asks: str | None = Field(default=None, description="Of a review: how many people of which groups.")
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
    """`GET /v1/policies/shadow`: the candidate compared with the active bundle."""

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


class VoteRequest(WireModel):
    """`POST /v1/reviews/{id}/votes`: one person's answer on exactly this revision and these digests."""

    verdict: str = Field(pattern="^(approve|deny)$")
    rev: int = Field(ge=1)
    effect_digest: Digest
    txn_digest: Digest
    view_digest: Digest | None = Field(
        default=None, description="Of the review as it was read; another one is stale. Kept with the vote."
    )
    reason: Text | None = None


class SettleRequest(WireModel):
    """`POST /v1/tasks/{task_id}/settle`: a person settles what cannot be determined otherwise."""

    answer: TaskAnswer = Field(description="One of the task's `answers`.")
    effect_digest: Digest = Field(description="Of the effect that was read; another one is stale.")
    effect_state: EffectState = Field(description="Its state as it was read; another one is stale.")
    reason: Text | None = Field(default=None, description="How it is known. Required; the agent reads it.")
    result: Result = Field(
        default=None,
        description="With `fired`: what the tool answered, where its compensation takes an argument from that.",
    )
