"""What people are told of a review, as a program of theirs reads it."""

from typing import Literal

from pydantic import Field, JsonValue

from .answers import EffectView, Need
from .base import Digest, Instant, Many, Name, Text, WireModel
from .talk import CommentView, SiblingView


class VoteView(WireModel):
    """One person's answer; `counted` tells whether it still supports the review."""

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
