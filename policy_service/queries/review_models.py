"""What people read: the frozen values behind the queue, the review page and the Slack card.

These are read models. The workflow fills them from stored rows and canonical bytes; a channel only renders.
Rules kept here: no value is HTML, nothing is shortened, text that an agent wrote arrives exactly as it was
sent. Escaping, folding and the marking of deceptive characters belong to the channel that shows it.
Times are aware UTC.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

from policy_service.queries.context_panel import ContextPanel
from policy_service.queries.effect_text import ArgRow, Money, Piece

Risk: TypeAlias = Literal["low", "medium", "high"]
VoteVerdict: TypeAlias = Literal["approve", "deny", "break_glass"]
StepUpStatus: TypeAlias = Literal["none", "asked", "missing"]


@dataclass(frozen=True, slots=True)
class GateView:
    """A gate that fired, with the policy text that made it fire. Gates of the same groups merge: `quorum`, `have`,
    `step_up` and `shared` are those of the merged gate.
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
    own_quorum: int  # what this gate alone asks for
    own_step_up: str | None
    doc: str = ""
    could_sign: tuple[str, ...] = ()  # others than the reader, by name
    could_sign_more: int = 0  # that many besides
    barred: tuple[str, ...] = ()  # in the groups, but of the requester's side
    also: tuple[str, ...] = ()  # further groups whose people can sign, because a vote that is in can move
    added: tuple[str, ...] = ()  # of `groups`, those that escalation added
    added_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class VoteLine:
    """A vote on this revision. `counted` is False for a late, replaced or no longer eligible one."""

    person_name: str
    verdict: VoteVerdict
    reason: str
    at: datetime
    counted: bool
    assurance: str  # "oidc" or "dev"
    step_up: str | None = None  # "passkey" where one signed it


@dataclass(frozen=True, slots=True)
class CommentLine:
    """What somebody wrote. Of a question, the agent's answer is a claim of its own; None while it has said nothing."""

    person_name: str
    text: str
    at: datetime
    channel: str  # "web" or "api"
    assurance: str
    question: bool = False
    for_requester: bool = False  # by the agent's own side
    answer: str | None = None
    answered_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class EventLine:
    """One line of the timeline: what happened, told in the past tense."""

    at: datetime
    kind: str
    text: str
    actor: str
    channel: str = ""  # "web", "api", "slack", "cli"; empty where the service itself did it
    commit: str = ""  # of the rules that answered
    line: str = ""  # its id in the log


@dataclass(frozen=True, slots=True)
class FactLine:
    """A fact the service looked up itself, with where from and how old it was at the decision."""

    label: str
    value: str
    source: str
    age: timedelta


@dataclass(frozen=True, slots=True)
class Sibling:
    """Another effect of the same transaction; they commit or fall together."""

    seq: int
    sentence: tuple[Piece, ...]
    state: str
    review_id: str | None = None
    args: tuple[ArgRow, ...] = ()


@dataclass(frozen=True, slots=True)
class RuleChange:
    """What asking again under another bundle changed: from the answer at one commit to that at another."""

    at: datetime
    before: str
    commit: str
    text: str


@dataclass(frozen=True, slots=True)
class BreakGlassView:
    """Opening an effect in an emergency: who has signed, and what this person may do."""

    signed: tuple[VoteLine, ...] = ()
    opened_at: datetime | None = None  # when that let it go
    may: bool = False  # this person may sign now
    alone: bool = False  # and nobody else is needed then
    step_up: StepUpStatus = (
        "none"  # what their signature asks for: of every gate, also those they could not serve
    )


@dataclass(frozen=True, slots=True)
class DeniedBefore:
    """Nearly the same was denied by a person. `differs` names the arguments that are others now."""

    review_id: str
    at: datetime
    person_name: str
    reason: str
    differs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ArgChange:
    """One argument before and after a change, in canonical JSON; a hidden value as its byte count. What is money is
    there as people say it, too.
    """

    name: str
    read: str
    now: str
    recipient: bool = False
    read_money: Money | None = None  # where the manifest says that it is an amount
    now_money: Money | None = None


@dataclass(frozen=True, slots=True)
class ProposalCard:
    """Other arguments that somebody proposed, and who took them."""

    proposal_id: str
    person_name: str
    reason: str
    at: datetime
    assurance: str
    sentence: tuple[Piece, ...]  # with the proposed arguments
    changes: tuple[ArgChange, ...]  # against the revision it was made on
    rev: int
    mine: bool  # this person made it
    may_answer: bool  # this person may take it, or leave it
    accepted_by: str | None = None
    accepted_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ReviewContent:
    """What the view digest covers (`shown.py`): everything of a review that a vote on it approves or denies."""

    review_id: str
    rev: int
    txn_digest: str
    effect_digest: str
    sentence: tuple[Piece, ...]
    finality: str  # one sentence: "This cannot be undone."
    risk: Risk
    tool: str
    tool_title: str
    args: tuple[ArgRow, ...]
    gates: tuple[GateView, ...]
    agent: str
    agent_owner: str | None
    claimed: Mapping[str, object]  # what the agent says about itself; never checked
    facts: tuple[FactLine, ...]
    siblings: tuple[Sibling, ...]  # the other effects of the transaction
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReviewPage(ReviewContent):
    """Everything one person needs to decide one effect at one revision, and what became of it."""

    effect_id: str
    state: str
    txn: str
    effect_state: str
    canonical: bytes  # the stored JCS bytes; the args above are decoded from them
    votes: tuple[VoteLine, ...]
    answer_by: datetime
    opened_at: datetime
    agent_roles: tuple[str, ...]
    key_kid: str | None
    commit: str
    bundle: str
    timeline: tuple[EventLine, ...]
    why_not: str | None  # why this person cannot vote; None when they can
    superseded_by: int | None
    seq: int = 1  # place of this effect in its transaction
    undoable: bool = False  # the manifest names a compensation
    reason_required: bool = False  # some gate wants a reason for approving too
    my_verdict: VoteVerdict | None = None  # this person's counted vote on this revision
    denied_before: tuple[DeniedBefore, ...] = ()  # by people, a short while ago, the newest first
    step_up: StepUpStatus = (
        "none"  # whether this person's approval asks for their passkey, and whether they have one
    )
    rule_changes: tuple[RuleChange, ...] = ()  # what new rules changed while it waited, the newest first
    proposals: tuple[ProposalCard, ...] = ()  # open ones, the oldest first
    edits: tuple[ProposalCard, ...] = ()  # accepted ones that made these arguments
    since_staged: tuple[ArgChange, ...] = ()  # what the agent staged, against what stands
    may_propose: bool = False  # this person may propose other arguments
    beside: "ContextPanel | None" = None  # what the service remembers, for people to weigh
    comments: tuple[CommentLine, ...] = ()  # the oldest first
    may_comment: bool = False
    may_ask: bool = False  # put a question to the agent
    reminded_at: datetime | None = None  # when its people were last reminded
    unanswerable: str | None = None  # why all people known here could not approve it together
    break_glass: BreakGlassView | None = None
    replaced_by: str = ""  # the review of this effect at the revision that stands now, where it has one


@dataclass(frozen=True, slots=True)
class VoteResult:
    """What casting a vote did. `counted` is False when it came after the review had settled; `said_before`: it only
    repeats what this person's counted one says.
    """

    review_id: str
    state: str
    verdict: VoteVerdict
    counted: bool
    already_recorded: bool = False
