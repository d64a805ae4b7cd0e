"""Request bodies of agents (design section 8). Digests, call keys and resources in them are only compared."""

from typing import Self

from pydantic import Field, model_validator

from countersign.contract.effect import Resource
from countersign.contract.states import Outcome

from .base import Args, AttemptId, Digest, Jws, Many, Name, Receipt, Result, Text, WireModel

MAX_EFFECTS = 100
"""Effects in one transaction: as many as a person can still review."""


class Claimed(WireModel):
    """What the agent says about itself; shown as such, weighed as such."""

    purpose: Text | None = None
    reasoning: Text | None = None
    on_behalf_of: Name | None = Field(
        default=None, description="A user the agent says it acts for; not proven."
    )


class SubmittedEffect(WireModel):
    """One staged effect, in the order it will fire."""

    tool: Name
    tool_digest: Digest = Field(description="Digest of the manifest the caller has; another one is a denial.")
    args: Args
    n: int = Field(default=0, ge=0, le=9999, description="Which intended repeat of the same call this is.")
    call_key: Digest | None = Field(
        default=None, description="Compared with the service's own; 422 if it differs."
    )
    resource: Resource | None = Field(
        default=None, description="Compared with the one derived from the args."
    )


class _Submission(WireModel):
    run_key: str = Field(min_length=1, max_length=200, description="The caller's name for this step.")
    independent: bool = Field(default=False, description="A transaction of its own; exactly one effect.")
    effects: Many[SubmittedEffect] = Field(min_length=1, max_length=MAX_EFFECTS)
    claimed: Claimed | None = None

    @model_validator(mode="after")
    def _independent_is_alone(self) -> Self:
        if self.independent and len(self.effects) != 1:
            raise ValueError(
                f"an independent transaction holds one effect, not {len(self.effects)}; send one each"
            )
        return self


class SubmitRequest(_Submission):
    """`POST /v1/transactions`: stage these effects as one transaction."""

    attempt_id: AttemptId | None = Field(
        default=None, description="Redeem at once under this attempt if everything is released at once."
    )
    epoch: int | None = Field(
        default=None,
        ge=1,
        description="The epoch the caller has reported everything to; 409 `other_epoch` if it is not current.",
    )


class EvaluationRequest(_Submission):
    """`POST /v1/evaluations`: what would be decided. Recorded is nothing but, of live effects, what was answered."""

    live: bool = Field(
        default=False,
        description="The caller runs these at once where they are released (`ask: live`): the answer is a line of the "
        "log, and none while the agent, one of the tools or everything is stopped.",
    )


class WithdrawRequest(WireModel):
    """`POST /v1/transactions/{txn}/withdraw`."""

    reason: Text | None = None


class BringKeyRequest(WireModel):
    """`POST /v1/agent-keys`: a token of a trusted issuer lets the key that signs this prove calls a while."""

    token: str = Field(min_length=1, max_length=16_384, description="A JWT of an issuer the operator trusts.")
    x: str = Field(
        pattern=r"^[A-Za-z0-9_-]{43}$", description="The Ed25519 public key, base64url (RFC 8037)."
    )


class ReleaseRequest(WireModel):
    """`POST /v1/transactions/{txn}/release`: mint tokens for the key that asks."""

    rev: int = Field(ge=1, description="The revision the caller means.")


class CompensateRequest(WireModel):
    """`POST /v1/transactions/{txn}/compensate`: take one fired effect back."""

    effect_id: Digest


class RedeemRequest(WireModel):
    """`POST /v1/redemptions`: spend the tokens of one whole transaction, or of one compensation."""

    tokens: Many[Jws] = Field(min_length=1, max_length=MAX_EFFECTS)
    attempt_id: AttemptId = Field(description="Journaled by the caller before this request.")


class RenewRequest(WireModel):
    """`POST /v1/redemptions/{attempt_id}/renew`: a fresh `fire_by` for these effects."""

    effect_ids: Many[Digest] = Field(min_length=1, max_length=MAX_EFFECTS)


class ReportedOutcome(WireModel):
    """What became of one effect, as the redeeming party knows it."""

    effect_id: Digest
    outcome: Outcome
    result: Result = Field(default=None, description="The tool's result, where it has one in JSON.")
    error: Text | None = None


class RecalledCompensation(WireModel):
    """How a recalled effect would be taken back, as its digest covers it."""

    tool: Name
    tool_digest: Digest
    map: dict[str, str]


class RecalledEffect(WireModel):
    """One effect as its digest covers it; the transaction and its agent stand in the receipt."""

    seq: int = Field(ge=1, le=MAX_EFFECTS)
    tool: Name
    tool_digest: Digest
    resource: Resource
    args: Args
    call_key: Digest
    compensation: RecalledCompensation | None = None


class Recall(WireModel):
    """A receipt from before the service's database was restored, and what it was given for."""

    receipt: Receipt
    run_key: str = Field(min_length=1, max_length=200)
    independent: bool = False
    effects: Many[RecalledEffect] = Field(
        min_length=1, max_length=MAX_EFFECTS, description="The whole list, or the one compensation."
    )


class ReportRequest(WireModel):
    """`POST /v1/outcomes`: the first report of an effect is final; a contradicting one becomes a task."""

    attempt_id: Name
    outcomes: Many[ReportedOutcome] = Field(max_length=MAX_EFFECTS)
    recall: Recall | None = Field(
        default=None, description="For an attempt the service does not know any more: proof that it did."
    )

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.outcomes and self.recall is None:
            raise ValueError("say what became of at least one effect")
        return self
