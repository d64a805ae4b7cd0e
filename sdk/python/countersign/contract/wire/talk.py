"""What people say while they decide, what the agent answers, and what else stands in the same transaction."""

from typing import Literal

from pydantic import Field

from countersign.contract.states import EffectState

from .base import Args, Digest, Instant, Name, Text, WireModel


class QuestionView(WireModel):
    """What a person asks the agent about one of its effects. `answer` is the agent's own word, a claim."""

    question_id: Name
    review_id: Name
    effect_id: Digest
    text: Text
    asked_by: str
    asked_at: Instant
    answer: Text | None = None
    answered_at: Instant | None = None


class CommentView(WireModel):
    """What somebody wrote about a review; a question is for the agent, whose `answer` is a claim."""

    comment_id: Name
    kind: Literal["comment", "question"]
    person: str = Field(description="Issuer and subject.")
    name: str
    for_requester: bool = Field(description="Written by the agent's own side.")
    text: Text
    at: Instant
    channel: str
    assurance: Literal["oidc", "dev"]
    answer: Text | None = None
    answered_at: Instant | None = None


class SiblingView(WireModel):
    """Another effect of the same transaction: they commit or fall together, and a vote binds them all."""

    effect_id: Digest
    seq: int = Field(ge=1)
    tool: Name
    effect_digest: Digest
    state: EffectState
    args: Args
    review_id: Name | None = None
