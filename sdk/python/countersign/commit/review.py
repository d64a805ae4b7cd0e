"""Wait for a review, and answer proposals and questions of reviewers.

Rules: nothing is decided or fired here. A question or an edit is passed to the program once, also over reruns of a
step. A lost answer is sent again and not computed again. A service that does not respond is polled with growing
pauses; its silence is not a denial.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from countersign.clock import backoff
from countersign.commit.edits import edit_in_force, proposal_of
from countersign.commit.plan import Plan
from countersign.contract.codes import ErrorCode
from countersign.contract.digests import canonicalize
from countersign.contract.states import EffectState, TxnState
from countersign.contract.wire import Claimed, EffectView, ProposalView, TransactionView
from countersign.errors import (
    Edited,
    MisuseError,
    NotStageable,
    OverQuota,
    ReviewPending,
    ServiceRefused,
    ServiceUnavailable,
)
from countersign.errors.pending import ApprovalRequirement, PendingReview, Proposal, Question, open_questions
from countersign.journal import Lease, LocalState, LocalTxn
from countersign.runtime import Engine
from countersign.settings import Settings

log: Final = logging.getLogger("countersign")

EditPolicy: TypeAlias = "bool | Callable[[Proposal], bool]"
"""`accept_edits`: accept no change, every change, or those for which a function returns True."""


class ProposalResponder:
    """Answers proposals for one program while it commits or waits."""

    def __init__(self, engine: Engine, judge: EditPolicy) -> None:
        self._engine = engine
        self._judge = judge
        self._answered: set[str] = set()
        self._agreed: set[tuple[str, bytes]] = set()  # effect id and arguments

    def concerns(self, view: TransactionView) -> bool:
        """Whether there is a proposal that this program has not judged yet."""
        return bool(self._judge) and any(True for _ in self._unanswered(view))

    async def answer(self, view: TransactionView) -> TransactionView:
        """Accept the first open proposal that the program agrees to. Returns the new transaction, or the given one."""
        for one, proposed in list(self._unanswered(view)) if self._judge else ():
            self._answered.add(proposed.proposal_id)
            proposal = proposal_of(one, proposed)
            if not self._fits(proposal) or not self._agrees(proposal):
                continue
            try:
                return await self._engine.service.accept_proposal(proposed.proposal_id)
            except ServiceRefused as refused:
                if refused.problem_code != ErrorCode.PROPOSAL_CLOSED:
                    raise
                return await self._engine.service.view(view.txn)
        return view

    def require_agreed(self, staged: Plan, edited: Plan, view: TransactionView) -> None:
        """Refuse a list with arguments that this program does not agree to.

        Raises:
            Edited: naming each change.
            NotStageable: the program agrees to a change that the tool cannot take.
        """
        refused = []
        for staged_call, edited_call, one in zip(staged.calls, edited.calls, view.effects, strict=True):
            raw = edited_call.effect.args_bytes
            if raw == staged_call.effect.args_bytes or (one.effect_id, raw) in self._agreed:
                continue
            proposal = edit_in_force(one, staged_call.effect.args)
            if self._agrees(proposal):
                self._require_fitting(proposal)
            else:
                refused.append(proposal)
        if refused:
            raise Edited(staged.run_key, staged.txn, refused)

    def _unanswered(self, view: TransactionView) -> Iterator[tuple[EffectView, ProposalView]]:
        for one in view.effects:
            for proposed in () if one.review is None else one.review.proposals:
                if proposed.proposal_id not in self._answered:
                    yield one, proposed

    def _agrees(self, proposal: Proposal) -> bool:
        agreed = self._judge if isinstance(self._judge, bool) else self._judge(proposal) is True
        if agreed:
            self._agreed.add((proposal.effect_id, canonicalize(proposal.args)))
        return agreed

    def _fits(self, proposal: Proposal) -> bool:
        """Whether the tool can take the proposal at all. If not, no new review is requested for it."""
        try:
            self._require_fitting(proposal)
        except NotStageable as error:
            log.warning("proposal %s is not accepted: %s", proposal.proposal_id, error)
            return False
        return True

    def _require_fitting(self, proposal: Proposal) -> None:
        """Refuse arguments that the tool would receive as something else: that is not what people signed (I-2)."""
        tool = self._engine.registry.get(proposal.tool)
        if tool is None:
            raise NotStageable(f"this program has no tool {proposal.tool!r}")
        tool.signature.require_args_fit(canonicalize(proposal.args))


def open_proposals(view: TransactionView) -> Sequence[Proposal]:
    """The open proposals of a transaction, as programs read them."""
    return [
        proposal_of(one, proposed)
        for one in view.effects
        if one.review is not None
        for proposed in one.review.proposals
    ]


OnQuestion: TypeAlias = Callable[[Question], str | Awaitable[str | None] | None]

_TOO_LATE: Final = frozenset({ErrorCode.REVIEW_CLOSED, ErrorCode.ALREADY_ANSWERED, ErrorCode.NOT_FOUND})


class QuestionResponder:
    """The questions of one step and the program's answers."""

    def __init__(self, on_question: OnQuestion | None = None) -> None:
        if on_question is not None and not callable(on_question):
            raise MisuseError(
                f"on_question must be a function of one question, not {type(on_question).__name__}"
            )
        self._on_question = on_question
        self._answers: dict[str, str | None] = {}
        self.last_seen = ""  # the newest question, so that only newer ones end a long poll

    async def answer(self, engine: Engine, view: TransactionView) -> None:
        """Pass open questions to the program and send its answers.

        Raises:
            ServiceUnavailable: an answer did not arrive; it is sent again at the next poll.
            Exception: what `on_question` raised.
        """
        for question in open_questions(view):
            self.last_seen = max(self.last_seen, question.question_id)
            if (callback := self._on_question) is None:
                continue
            if question.question_id not in self._answers:
                self._answers[question.question_id] = await _call_on_question(engine, callback, question)
            if (text := self._answers[question.question_id]) is not None:
                await _send_answer(engine, question, text)


async def _call_on_question(engine: Engine, on_question: OnQuestion, question: Question) -> str | None:
    reply = await engine.executor.call(functools.partial(on_question, question), {}, None)
    if reply is not None and not isinstance(reply, str):
        raise MisuseError(f"on_question answers with text or None, not {type(reply).__name__}")
    return reply


async def _send_answer(engine: Engine, question: Question, text: str) -> None:
    try:
        await engine.service.answer(question.review_id, question.question_id, text)
    except ServiceRefused as refused:
        if refused.problem_code not in _TOO_LATE:
            raise


async def wait_for_review(
    engine: Engine,
    txn: str,
    until: float,
    answering: QuestionResponder,
    before_each: Callable[[], None] = lambda: None,
    concerns: Callable[[TransactionView], bool] = lambda _: False,
) -> TransactionView | None:
    """Poll until the review is closed, `concerns` is true, or the time is up. Returns the last transaction seen,
    None if there was no time for a poll. Questions are answered meanwhile.

    Raises:
        ServiceUnavailable, OverQuota: the time is up and the last poll failed.
    """
    clock, settings = engine.clock, engine.settings
    view: TransactionView | None = None
    away: ServiceUnavailable | OverQuota | None = None
    missed = 0
    while (left := until - clock.monotonic()) > 0:
        before_each()
        try:
            wait = max(1, min(int(left), settings.poll_seconds))
            view = await engine.service.view(txn, wait=wait, asked_after=answering.last_seen)
            if view.state is TxnState.REVIEW:
                await answering.answer(engine, view)
        except (ServiceUnavailable, OverQuota) as error:
            away, missed = error, missed + 1
        else:
            away, missed = None, 0
            if view.state is not TxnState.REVIEW or concerns(view):
                return view
        # Also after a response: a service that answers long polls at once must not be polled in a tight loop.
        pause = poll_pause(settings, missed, away)
        await engine.executor.sleep(max(0.0, min(until - clock.monotonic(), pause)))
    if away is not None:
        raise away
    return view


def poll_pause(settings: Settings, missed: int, away: ServiceUnavailable | OverQuota | None = None) -> float:
    """The pause before the next poll. It grows with failed polls up to one long poll, and lasts as long as a quota
    does.
    """
    pause = backoff(settings.retry_base_seconds, missed, settings.poll_seconds)
    return max(pause, (away.retry_after or 0) if isinstance(away, OverQuota) else 0)


def describe_outage(away: ServiceUnavailable | OverQuota) -> str:
    """Why the last poll failed."""
    return away.why if isinstance(away, ServiceUnavailable) else away.detail


def record_service_state(
    engine: Engine, lease: Lease, view: TransactionView, *, parked: bool = False
) -> None:
    """Record the service's state of the transaction before its redemption."""
    engine.journal.transactions.see(
        lease,
        state=LocalTxn(view.state.value),
        rev=view.rev,
        effects={one.effect_id: LocalState(one.state.value) for one in view.effects},
        parked=parked,
    )


def review_pending_error(
    view: TransactionView,
    key: str,
    *,
    parked: bool,
    waited: bool = False,
    connected: bool = False,
    unreached: str = "",
) -> ReviewPending:
    """The `ReviewPending` for a transaction in review: approvers, proposals and questions as of `view`. `waited`: by
    a program that would have run the step again. `connected`: it uses an MCP server.
    """
    return ReviewPending(
        key,
        view.txn,
        [pending_review(one) for one in view.effects if one.state is EffectState.REVIEW],
        parked=parked,
        waited=waited,
        connected=connected,
        unreached=unreached,
        proposals=open_proposals(view),
        questions=open_questions(view),
    )


def pending_review(view: EffectView) -> PendingReview:
    """Who must approve one effect, until when and where."""
    review = view.review
    if review is None:
        return PendingReview(view.effect_id, view.tool, None, None, None)
    return PendingReview(
        view.effect_id,
        view.tool,
        review.review_id,
        review.url,
        review.answer_by.isoformat(timespec="minutes"),
        tuple(map(ApprovalRequirement.of, review.needs)),
    )


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """Options of one commit. `wait`: seconds that people may take in all. `claimed`: the agent's own words, shown to
    people. `accept_edits`: which proposals are accepted. `answering`: who answers questions. `keep_approved`: a list
    that cannot be redeemed now stays approved; otherwise it is withdrawn.
    """

    wait: float = 0.0
    claimed: Claimed | None = None
    accept_edits: EditPolicy = False
    answering: QuestionResponder = field(default_factory=QuestionResponder)
    keep_approved: bool = False


def require_utf8(what: str, text: str) -> None:
    """Refuse text with a lone surrogate, which can be neither sent nor stored.

    Raises:
        MisuseError: the text has one; `what` names it.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MisuseError(f"{what} is text that can be written as UTF-8, and {text!r} is not") from None
