"""Proposals of other arguments (design section 6), questions, comments and sibling effects."""

from __future__ import annotations

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


class ProposeRequest(WireModel):
    """`POST /v1/reviews/{review_id}/proposals`: other arguments for exactly this revision and these digests."""

    rev: int = Field(ge=1)
    effect_digest: Digest
    txn_digest: Digest
    args: Args = Field(description="All of them but the hidden ones, which stay as they are.")
    reason: Text | None = Field(default=None, description="Why. Required; the agent and its owner read it.")


class AcceptRequest(WireModel):
    """`POST /v1/proposals/{proposal_id}/accept`."""


class DeclineRequest(WireModel):
    """`POST /v1/proposals/{proposal_id}/decline`."""

    reason: Text | None = None


class ProposalView(WireModel):
    """Other arguments for one effect; nothing fires with them unless they are accepted and decided about anew."""

    proposal_id: Name
    effect_id: Digest
    rev: int = Field(ge=1, description="The revision it was made on.")
    state: Literal["open", "accepted", "declined", "lapsed"]
    args: Args
    args_digest: Digest
    reason: Text
    person: str = Field(description="Issuer and subject of the person who proposes.")
    name: str
    proposed_at: Instant
    decided_by: str | None = Field(
        default=None, description="`agent:NAME`, `person:ISSUER|SUBJECT` or `service`."
    )
    decided_at: Instant | None = None
    became_rev: int | None = Field(default=None, description="The revision it made, once accepted.")


class CommentRequest(WireModel):
    """`POST /v1/reviews/{id}/comments`: words for those who decide, or a question for the agent."""

    text: Text
    question: bool = Field(default=False, description="The agent is asked to answer it.")


class AnswerRequest(WireModel):
    """`POST /v1/reviews/{id}/answers`: what the agent says to a question. People see it as its claim."""

    question_id: Name
    text: Text
