"""Read models of the queue, the review page and the Slack card.

Values are immutable and complete: nothing is HTML, nothing is shortened, and texts of agents are unchanged.
Escaping, folding and marking belong to the channels. Times are UTC.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

from policy_service.queries.context_panel import ContextPanel
from policy_service.queries.effects import ArgRow, Money, Piece

Risk: TypeAlias = Literal["low", "medium", "high"]
VoteVerdict: TypeAlias = Literal["approve", "deny", "break_glass"]
StepUpStatus: TypeAlias = Literal["none", "asked", "missing"]


@dataclass(frozen=True, slots=True)
class GateView:
    """A gate that fired, with its policy text. `quorum`, `have`, `step_up` and `shared` are those of the
    merged gate.
    """

    policy_id: str
    title: str
    groups: tuple[str, ...]
    quorum: int
    have: int
    step_up: str | None
    shared: bool
    cedar_text: str
    file: str
    line: int
    own_quorum: int  # of this gate alone
    own_step_up: str | None
    doc: str = ""
    could_sign: tuple[str, ...] = ()  # names of people other than the reader
    could_sign_more: int = 0  # the number of further people
    barred: tuple[str, ...] = ()  # members who belong to the requester's side
    also: tuple[str, ...] = ()  # groups whose members can sign because a vote can move to their gate
    added: tuple[str, ...] = ()  # of `groups`, those that escalation added
    added_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class VoteLine:
    """A vote on this revision. `counted` is False if it was late, replaced or is no longer eligible."""

    person_name: str
    verdict: VoteVerdict
    reason: str
    at: datetime
    counted: bool
    assurance: str  # "oidc" or "dev"
    step_up: str | None = None  # "passkey" if one signed it
    vote_id: str = ""
    person: str = ""  # key
    view_digest: str | None = None


@dataclass(frozen=True, slots=True)
class CommentLine:
    """A comment or a question to the agent; `answer` is the agent's claim, None until it answers."""

    person_name: str
    text: str
    at: datetime
    channel: str  # "web" or "api"
    assurance: str
    question: bool = False
    for_requester: bool = False  # written by the requester's side
    answer: str | None = None
    answered_at: datetime | None = None
    comment_id: str = ""
    person: str = ""  # key


@dataclass(frozen=True, slots=True)
class EventLine:
    """One line of the timeline."""

    at: datetime
    kind: str
    text: str
    actor: str
    channel: str = ""  # "web", "api", "slack", "cli"; empty for the service itself
    commit: str = ""  # of the bundle that decided
    line: str = ""  # its id in the audit log


@dataclass(frozen=True, slots=True)
class FactLine:
    """A fact the service looked up, with its source and its age at the decision."""

    label: str
    value: str
    source: str
    age: timedelta


@dataclass(frozen=True, slots=True)
class Sibling:
    """Another effect of the same transaction."""

    seq: int
    sentence: tuple[Piece, ...]
    state: str
    review_id: str | None = None
    args: tuple[ArgRow, ...] = ()


@dataclass(frozen=True, slots=True)
class RuleChange:
    """A decision that changed under another bundle."""

    at: datetime
    before: str
    commit: str
    text: str


@dataclass(frozen=True, slots=True)
class BreakGlassView:
    """The break-glass signatures, and what this person may do."""

    signed: tuple[VoteLine, ...] = ()
    opened_at: datetime | None = None  # when it was released by break-glass
    may: bool = False  # this person may sign now
    alone: bool = False  # and one signature is sufficient
    step_up: StepUpStatus = "none"  # of all gates, also those this person cannot serve


@dataclass(frozen=True, slots=True)
class RecentDenial:
    """A recent denial of nearly the same effect. ``differs`` names the changed arguments; empty if all are the same."""

    review_id: str
    at: datetime
    person_name: str
    reason: str
    differs: tuple[str, ...]
    txn: str = ""
    person: str = ""  # key


@dataclass(frozen=True, slots=True)
class ArgChange:
    """One argument before and after a change, in canonical JSON; secrets as byte counts."""

    name: str
    read: str
    now: str
    recipient: bool = False
    read_money: Money | None = None  # if the manifest declares it as money
    now_money: Money | None = None


@dataclass(frozen=True, slots=True)
class ProposalCard:
    """A proposal and who accepted it."""

    proposal_id: str
    person_name: str
    reason: str
    at: datetime
    assurance: str
    sentence: tuple[Piece, ...]  # for the proposed arguments
    changes: tuple[ArgChange, ...]  # relative to the revision it was made on
    rev: int
    mine: bool  # made by this person
    may_answer: bool  # this person may accept or decline it
    accepted_by: str | None = None
    accepted_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ReviewContent:
    """The part of a review that the view digest covers (`view_digest.py`): what a vote approves or denies."""

    review_id: str
    rev: int
    txn_digest: str
    effect_digest: str
    sentence: tuple[Piece, ...]
    finality: str  # for example "This cannot be undone."
    risk: Risk
    tool: str
    tool_title: str
    args: tuple[ArgRow, ...]
    gates: tuple[GateView, ...]
    agent: str
    agent_owner: str | None
    claimed: Mapping[str, object]  # the agent's own claims, not verified
    facts: tuple[FactLine, ...]
    siblings: tuple[Sibling, ...]  # other effects of the transaction
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReviewPage(ReviewContent):
    """Everything one person needs to decide one effect at one revision, and its outcome."""

    effect_id: str
    state: str
    txn: str
    effect_state: str
    canonical: bytes  # the stored JCS bytes that `args` were decoded from
    votes: tuple[VoteLine, ...]
    answer_by: datetime
    opened_at: datetime
    agent_roles: tuple[str, ...]
    key_kid: str | None
    commit: str
    bundle: str
    timeline: tuple[EventLine, ...]
    why_not: str | None  # why this person cannot vote; None if they can
    superseded_by: int | None
    seq: int = 1  # position in the transaction
    undoable: bool = False  # the manifest declares a compensation
    reason_required: bool = False  # a gate requires a reason for an approval
    my_verdict: VoteVerdict | None = None  # of this person's counted vote on this revision
    denied_before: tuple[RecentDenial, ...] = ()  # newest first
    step_up: StepUpStatus = "none"  # whether an approval needs a passkey, and whether this person has one
    rule_changes: tuple[RuleChange, ...] = ()  # newest first
    proposals: tuple[ProposalCard, ...] = ()  # open ones, oldest first
    edits: tuple[ProposalCard, ...] = ()  # accepted ones that made the arguments
    since_staged: tuple[ArgChange, ...] = ()  # staged arguments compared with the current ones
    may_propose: bool = False  # whether this person may propose other arguments
    panel: "ContextPanel | None" = None  # context from the service's own records
    comments: tuple[CommentLine, ...] = ()  # oldest first
    may_comment: bool = False
    may_ask: bool = False  # whether this person may ask the agent a question
    reminded_at: datetime | None = None  # last reminder
    unanswerable: str | None = None  # why the gates cannot be satisfied by all known people
    break_glass: BreakGlassView | None = None
    replaced_by: str = ""  # the review of this effect at the newest revision, if there is one


@dataclass(frozen=True, slots=True)
class VoteResult:
    """The effect of a vote.

    `counted` is False if the review had settled. `repeats_vote` is True if it repeats the person's counted
    vote.
    """

    review_id: str
    state: str
    verdict: VoteVerdict
    counted: bool
    already_recorded: bool = False
