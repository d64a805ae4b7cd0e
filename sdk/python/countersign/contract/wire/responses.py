"""Response bodies (design section 8). Views are read models: only a `jws` in them is a permission."""

from typing import Literal

from pydantic import ConfigDict, Field, JsonValue

from countersign.contract.effect import Resource
from countersign.contract.states import (
    EffectState,
    Mode,
    Outcome,
    TaskAnswer,
    TaskKind,
    TxnState,
    Verdict,
)

from .base import Args, Digest, Instant, Jws, Many, Name, Receipt, Text, WireModel
from .discussion import ProposalView, QuestionView


class Reason(WireModel):
    """One reason of a decision, with the policy it comes from and what would change it."""

    code: str = Field(description="Stable code, see DenyCode.")
    text: str
    policy: str | None = Field(default=None, description="`@id` of the policy.")
    advice: str | None = Field(
        default=None, description="The command or policy line that would change the answer."
    )


class DecisionView(WireModel):
    """The policy's answer for one effect, with what determined it."""

    decision_id: Name
    outcome: Verdict
    mode: Mode | None = Field(default=None, description="How it was released, once it is.")
    policies: Many[str] = Field(default=(), description="Determining policies by `@id`.")
    gates: Many[str] = Field(default=(), description="Gates that asked, by `@id`.")
    reasons: Many[Reason] = ()
    bundle: str = Field(description="Digest of the bundle that decided.")
    commit: str = Field(description="Git commit of that bundle.")
    unseen: Many[str] = Field(default=(), description="Fields policy could not weigh.")


class Need(WireModel):
    """What one merged gate still asks for."""

    gates: Many[str]
    groups: Many[str]
    quorum: int = Field(ge=1)
    have: int = Field(ge=0)
    step_up: str | None = None
    shared: bool = False
    added: Many[str] = Field(default=(), description="Those of `groups` that escalation added.")


class ReviewSummary(WireModel):
    """The open question of an effect, for the agent that waits."""

    review_id: Name
    state: str = Field(description="open, met, denied, expired, withdrawn or superseded.")
    url: str = Field(description="Where people answer it.")
    answer_by: Instant
    needs: Many[Need] = ()
    escalated_at: Instant | None = Field(
        default=None, description="Since when it asks further groups as well."
    )
    reminded_at: Instant | None = Field(default=None, description="When people were last reminded.")
    unanswerable: str | None = Field(
        default=None, description="Why the people known now cannot approve it together, as last found."
    )
    proposals: Many[ProposalView] = Field(
        default=(), description="Open proposals of other arguments, oldest first."
    )


class OutcomeView(WireModel):
    """What became of an effect, once reported or settled."""

    outcome: Outcome
    at: Instant
    error: Text | None = None


class Settlement(WireModel):
    """A person's settlement of an effect whose outcome could not be determined otherwise."""

    task_id: Name
    kind: TaskKind
    answer: TaskAnswer
    person: str = Field(description="Issuer and subject.")
    name: str
    at: Instant
    reason: Text
    assurance: Literal["oidc", "dev"]
    result: JsonValue = Field(default=None, description="What the tool answered, as far as the person knew.")


class CompensationRef(WireModel):
    """The compensating effect of a fired one."""

    effect_id: Digest
    state: EffectState
    settlements: Many[Settlement] = Field(default=(), description="What people said of it, oldest first.")


class EffectView(WireModel):
    """One effect of a transaction as the service holds it; `args` are the effective canonical ones."""

    effect_id: Digest
    seq: int = Field(ge=1)
    tool: Name
    tool_digest: Digest
    resource: Resource
    args_digest: Digest
    effect_digest: Digest
    call_key: Digest
    state: EffectState
    args: Args
    decision: DecisionView
    review: ReviewSummary | None = None
    outcome: OutcomeView | None = None
    compensation: CompensationRef | None = None
    settlements: Many[Settlement] = Field(default=(), description="What people said of it, oldest first.")
    edits: Many[ProposalView] = Field(
        default=(), description="The accepted changes that made `args` of what was staged, oldest first."
    )


class TransactionView(WireModel):
    """One revision of a transaction; `releases` and `receipt` only where they were asked for."""

    txn: Digest
    rev: int = Field(ge=1)
    state: TxnState
    agent: Name
    run_key: str
    txn_digest: Digest
    aud: Name
    submitted_at: Instant
    effects: Many[EffectView]
    valid_until: Instant | None = Field(
        default=None, description="Until when releases may be used, once ready."
    )
    superseded_by: int | None = Field(default=None, description="The revision that replaced this one.")
    releases: Many[Jws] = Field(default=(), description="Release tokens in the order of the effects.")
    receipt: Receipt | None = None
    attempt_id: Name | None = None
    questions: Many[QuestionView] = Field(
        default=(), description="What people ask the agent; those without an `answer` wait for one."
    )


class TransactionLine(WireModel):
    """One transaction in a list: enough to know it again and to ask about it."""

    txn: Digest
    rev: int = Field(ge=1)
    state: TxnState
    agent: Name
    run_key: str
    aud: Name
    submitted_at: Instant
    valid_until: Instant | None = None


class TransactionPage(WireModel):
    """`GET /v1/transactions`: one page, by key."""

    transactions: Many[TransactionLine]
    next: str | None = Field(default=None, description="Give this as `cursor` for the next page.")


class RedemptionView(WireModel):
    """Whether the attempt holds; when it does not, `transaction` says where things stand now."""

    attempt_id: Name
    redeemed: bool
    transaction: TransactionView
    receipt: Receipt | None = None


class CompensationView(WireModel):
    """The compensating effect, and its release once it has one."""

    effect: EffectView
    release: Jws | None = None


class EvaluatedEffect(WireModel):
    """What would be decided for one effect."""

    tool: Name
    decision: DecisionView
    needs: Many[Need] = Field(default=(), description="The groups a review would ask, merged.")


class EvaluationView(WireModel):
    """The answer to a dry run."""

    effects: Many[EvaluatedEffect]


class AuditRow(WireModel):
    """One row of the append-only log."""

    index: int = Field(ge=0)
    at: Instant
    kind: str
    actor: dict[str, JsonValue]
    body: dict[str, JsonValue]
    txn: Digest | None = None
    effect_id: Digest | None = None
    rev: int | None = None


class AuditPage(WireModel):
    """`GET /v1/audit?after=INDEX&limit=`."""

    rows: Many[AuditRow]
    next: int | None = Field(default=None, description="Give this as `after` for the next page.")


class Event(WireModel):
    """One server-sent event: ids and kinds, never content."""

    index: int
    kind: str
    txn: Digest | None = None
    effect_id: Digest | None = None
    review_id: Name | None = None
    rev: int | None = None


class BroughtKey(WireModel):
    """`POST /v1/agent-keys`: whose key it now is, and until when."""

    agent: str
    kid: str = Field(description="Its RFC 7638 thumbprint.")
    expires_at: Instant


class Jwk(WireModel):
    """One Ed25519 signing key (RFC 8037)."""

    kty: Literal["OKP"]
    crv: Literal["Ed25519"]
    x: str
    kid: str
    use: Literal["sig"]
    alg: Literal["Ed25519"]


class Jwks(WireModel):
    """`GET /.well-known/jwks.json`: previous, current and next key (RFC 7517)."""

    keys: Many[Jwk]


class HealthFinding(WireModel):
    """One thing that is wrong: what, since when, and what to do. `stops`: the service must not take traffic."""

    check: str
    stops: bool
    wrong: str
    since: Instant
    do: str


class Health(WireModel):
    """`GET /healthz`, `/readyz`: `down` when a finding stops the service, `degraded` when something is wrong."""

    status: Literal["ok", "degraded", "down"]
    findings: Many[HealthFinding] = ()
    commit: str | None = Field(default=None, description="Of the policies in force; `/readyz` only.")
    bundle: Digest | None = Field(default=None, description="Digest of those policies.")
    head: str | None = Field(
        default=None, description="The newest commit where it is another one; a finding says why."
    )


class PolicyProblem(WireModel):
    """One thing that keeps the newest policies out. `message` may quote a policy: it is for people only."""

    file: str
    line: int | None = None
    message: str | None = None


class PoliciesView(WireModel):
    """`GET /v1/policies`: what is in force, what is newest, and why they differ."""

    source: str | None = Field(
        default=None,
        description="Where the policies come from, for people only: a folder, or a repository and its branch or tag.",
    )
    active_commit: str
    active_bundle: str = Field(description="Digest of the bundle in force.")
    active_since: Instant | None = Field(default=None, description="Since when this replica has it in force.")
    head_commit: str | None = Field(default=None, description="The newest commit, as the last look found it.")
    head_bundle: str | None = Field(default=None, description="Digest of its bundle, where it could be read.")
    differs: str | None = Field(
        default=None,
        description="Why the newest is not in force: invalid, unreachable, gone, force_push, unsigned or cases.",
    )
    differs_since: Instant | None = None
    problems: Many[PolicyProblem] = ()


class LookView(WireModel):
    """`POST /v1/policies/sync`: a look was asked for; it goes on by itself."""

    looking: bool


class Problem(WireModel):
    """Problem details (RFC 9457). The only response with extension members (section 3.2)."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    type: str = Field(description="urn:countersign:problem:CODE")
    title: str
    status: int = Field(ge=400, le=599)
    detail: str = Field(description="What happened, to which thing, what to do next.")
    code: str = Field(description="Stable code, see ErrorCode.")
    instance: str | None = None


class RestoreView(WireModel):
    """An epoch that a restore began."""

    epoch: int = Field(ge=1)
    lost_after: Instant = Field(description="Reports after this time may be lost.")


class EpochView(WireModel):
    """The incarnation of the service's database. A client that knew a lower one repeats its reports."""

    epoch: int = Field(ge=1)
    restores: Many[RestoreView] = ()
