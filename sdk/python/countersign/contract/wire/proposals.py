"""Other arguments for an effect: proposed by a reviewer, answered by the agent's side (design section 6)."""

from typing import Literal

from pydantic import Field

from .base import Args, Digest, Instant, Name, Text, WireModel


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
    person: str = Field(description="Issuer and subject of whoever proposes.")
    name: str
    proposed_at: Instant
    decided_by: str | None = Field(
        default=None, description="`agent:NAME`, `person:ISSUER|SUBJECT` or `service`."
    )
    decided_at: Instant | None = None
    became_rev: int | None = Field(default=None, description="The revision it made, once accepted.")
