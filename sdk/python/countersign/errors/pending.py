"""What an open review waits for, and the error that says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from countersign.contract.admission import JSON
from countersign.contract.digests import canonicalize
from countersign.contract.states import EffectState
from countersign.contract.wire import Need, TransactionView
from countersign.errors.base import Stopped

_UNSEEN: Final = "unseen"  # the group of the built-in gate


@dataclass(frozen=True, slots=True)
class ApprovalRequirement:
    """What one merged gate requires: this many people of any of these groups, with a passkey if `step_up` is set."""

    groups: tuple[str, ...]
    quorum: int
    step_up: str | None = None

    @classmethod
    def of(cls, need: Need) -> ApprovalRequirement:
        """From the service's response."""
        return cls(need.groups, need.quorum, need.step_up)

    def __str__(self) -> str:
        people = f"{self.quorum} of " if self.quorum > 1 else ""
        return f"{people}{'|'.join(self.groups)}{f' with {self.step_up}' if self.step_up else ''}"


@dataclass(frozen=True, slots=True)
class PendingReview:
    """One open review: which effect, which approvers, until when, and where a person votes."""

    effect_id: str
    tool: str
    review_id: str | None
    url: str | None
    answer_by: str | None
    asks: tuple[ApprovalRequirement, ...] = ()

    def __str__(self) -> str:
        asked = " and ".join(map(str, self.asks)) or "people"
        if any(_UNSEEN in one.groups for one in self.asks):
            asked += f" ({_UNSEEN}: policies cannot evaluate all of its arguments)"
        until = f" until {self.answer_by}" if self.answer_by else ""
        where = f" at {self.url}" if self.url else ""
        return f"{self.tool} waits for {asked}{until}{where}"


@dataclass(frozen=True, slots=True)
class Proposal:
    """Other arguments for one call, proposed by a reviewer; `accepted_by` names who already accepted them."""

    proposal_id: str
    tool: str
    effect_id: str
    args: dict[str, JSON] = field(repr=False)  # some may be secret
    instead_of: dict[str, JSON] = field(repr=False)
    reason: str
    person: str
    name: str
    accepted_by: str | None = None

    @property
    def changed(self) -> tuple[str, ...]:
        """The names of the arguments that differ, are added or are removed."""
        names = dict.fromkeys([*self.instead_of, *self.args])
        return tuple(name for name in names if _differs(name, self.instead_of, self.args))

    def __str__(self) -> str:
        changed = ", ".join(self.changed) or "nothing any more"
        taken = f", accepted by {self.accepted_by}" if self.accepted_by else ""
        return f"{self.name} proposes to change {changed} of {self.tool} ({self.proposal_id}{taken}): {self.reason}"


def _differs(name: str, one: dict[str, JSON], other: dict[str, JSON]) -> bool:
    """Compare canonical bytes: to Python 1 and true are equal, to a tool they are not."""
    if name not in one or name not in other:
        return True
    return canonicalize(one[name]) != canonicalize(other[name])


@dataclass(frozen=True, slots=True)
class Question:
    """A reviewer's question to the agent about one of its effects."""

    question_id: str
    review_id: str
    effect_id: str
    tool: str
    text: str
    asked_by: str
    asked_at: str

    def __str__(self) -> str:
        return f"{self.asked_by} asks about {self.tool}: {self.text}"


def pending_text(
    key: str,
    asked_of: Sequence[PendingReview | Proposal],
    questions: Sequence[Question],
    *,
    parked: bool,
    named: bool,
    waited: bool,
    connected: bool,
    unreached: str,
) -> str:
    """Describe for the agent who must approve, what reviewers propose or ask, and how to continue."""
    asked = "; ".join(map(str, asked_of)) or "a review is open"
    if unreached:  # they may have answered by now
        asked += f". The policy service could not be reached when the time was up ({unreached})"
    fires = (
        "`await resume_async(runtime)`, in a program that has gated the MCP server's session again"
        if connected
        else "`countersign resume --tools MODULE`"
    )
    after = (
        f"It is parked: {fires}, fires it once it is approved; do not repeat the calls under another key."
        if parked
        else f"Nothing of it is in effect: run the same transaction again under key {key!r} once it is approved"
        + (
            "; a longer wait= waits longer."
            if waited
            else ", or write it as run_transaction(step, key=..., wait=...), which waits and does so."
        )
    )
    if questions:
        asked += f". Before they decide, {'; '.join(map(str, questions))}"
        after += " Answer the question: on_question=... of the transaction, or `countersign answer KEY TEXT`."
    if not named:
        after += (
            " It has no key of its own, so running the block again asks people again: write "
            'transaction(key="what-this-step-is-about").'
        )
    return f"not done yet: {asked}. {after}"


def open_questions(view: TransactionView) -> tuple[Question, ...]:
    """The questions of open reviews that the agent has not answered, oldest first."""
    waiting = {one.effect_id: one.tool for one in view.effects if one.state is EffectState.REVIEW}
    return tuple(
        Question(
            one.question_id,
            one.review_id,
            one.effect_id,
            waiting[one.effect_id],
            one.text,
            one.asked_by,
            one.asked_at.isoformat(timespec="seconds"),
        )
        for one in view.questions
        if one.answer is None and one.effect_id in waiting
    )


UNNAMED: Final = "unnamed-"
"""The prefix of generated run keys. No later run can continue a transaction without a key of its own."""


class ReviewPending(Stopped):
    """A review is open. Nothing fired yet."""

    code = "review_pending"

    def __init__(
        self,
        key: str,
        txn: str,
        reviews: Sequence[PendingReview],
        *,
        parked: bool,
        waited: bool = False,
        connected: bool = False,
        unreached: str = "",
        proposals: Sequence[Proposal] = (),
        questions: Sequence[Question] = (),
    ) -> None:
        self.key, self.txn, self.reviews, self.parked = key, txn, tuple(reviews), parked
        self.proposals, self.questions = tuple(proposals), tuple(questions)
        asked: list[PendingReview | Proposal] = [*self.reviews, *self.proposals]
        named = not key.startswith(UNNAMED)
        super().__init__(
            pending_text(
                key,
                asked,
                self.questions,
                parked=parked,
                named=named,
                waited=waited,
                connected=connected,
                unreached=unreached,
            )
        )
