"""Somebody or something said no, or not yet: nothing more fires, and what was live is undone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from countersign.contract.codes import DenyCode
from countersign.contract.wire import TransactionView
from countersign.errors.base import Stopped
from countersign.errors.execution import (
    NOTHING_DONE,
    NOTHING_IN_EFFECT,
    USE_ANOTHER_KEY,
    describe_outcomes,
    describe_retry,
    isolation_conflict_text,
    redeemed_by_other_journal,
    without_reads,
)
from countersign.errors.reasons import (
    ApprovalRequirement,
    DenyReason,
    PendingReview,
    Proposal,
    Question,
    pending_text,
    stop_reasons,
)

UNNAMED: Final = "unnamed-"
"""How the key of a transaction begins that nobody named: no later run can find it again."""


class Denied(Stopped):
    """The policy or a person refused, or time ran out, or it was taken back. Nothing fired, live effects are undone."""

    code = "denied"

    def __init__(self, key: str, txn: str, reasons: Sequence[DenyReason]) -> None:
        self.key, self.txn, self.reasons = key, txn, tuple(reasons)
        lines = "; ".join(str(reason) for reason in self.reasons) or "no reason was given"
        if self.reasons and not any(reason.is_refusal for reason in self.reasons):
            super().__init__(f"stopped, {NOTHING_DONE} {lines}.")  # each says how to ask anew
            return
        super().__init__(
            f"denied, {NOTHING_DONE} {lines}. The same call will be denied again: change what the reason names, "
            "or tell the user that it is not allowed."
        )

    @classmethod
    def of(cls, view: TransactionView, key: str) -> Denied:
        """Why a transaction ended, as the service holds it; of what was withdrawn with another, only why that was."""
        reasons = stop_reasons(view)
        return cls(key, view.txn, [one for one in reasons if one.code != DenyCode.SIBLING.value] or reasons)


class ReviewPending(Stopped):
    """People are being asked. Nothing fired yet."""

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


class ReviewRequired(Stopped):
    """People would have to agree before a live effect runs, and a live effect cannot wait: it did not run."""

    code = "review_required"

    def __init__(
        self, key: str, txn: str, tool: str, effect_id: str, asks: Sequence[ApprovalRequirement]
    ) -> None:
        self.key, self.txn, self.tool, self.effect_id, self.asks = key, txn, tool, effect_id, tuple(asks)
        asked = " and ".join(map(str, self.asks)) or "people"
        super().__init__(
            f"{tool} did not run: {asked} would have to agree first, and a live effect cannot wait for them. Either "
            "have the policy allow it without them, or declare the tool staged to ask them: leave out lane, adapter "
            "and ask in its code, and lane and ask in its reviewed manifest."
        )


class AlreadyRedeemed(Stopped):
    """This run key has been spent, by an earlier run or by somebody else with the same agent name. `finished`: whether
    all that was to be done under it has come to an end, as far as is known here.
    """

    code = "already_redeemed"

    def __init__(
        self, key: str, txn: str, outcome: str, detail: str = "", *, finished: bool = True, advice: str = ""
    ) -> None:
        self.key, self.txn, self.outcome, self.finished = key, txn, outcome, finished
        more = f": {detail}" if detail else ""
        super().__init__(
            f"transaction {key!r} was already redeemed (outcome {outcome}){more}; nothing was fired now. "
            f"{advice or (_SPENT if finished else _NOT_FINISHED)}"
        )

    @classmethod
    def here(
        cls,
        key: str,
        txn: str,
        outcomes: dict[str, str],
        state: str,
        *,
        well: bool,
        kept: bool,
        reads: Collection[str] = (),
    ) -> AlreadyRedeemed:
        """By an earlier run with this journal, which has come to its end; `outcomes` by effect, `state` its own.
        `well`: all was done that had to be; `kept`: its live effects stand.
        """
        outcome = ", ".join(f"{name} {outcome}" for name, outcome in outcomes.items()) or state
        writes = without_reads(outcomes, reads)
        advice = "" if well else f"{describe_outcomes(writes, kept=kept)} {describe_retry(writes, kept=kept)}"
        return cls(key, txn, outcome, advice=advice)

    @classmethod
    def elsewhere(cls, key: str, txn: str, states: Collection[str], detail: str = "") -> AlreadyRedeemed:
        """By a run that the journal here knows nothing of; `states` are those of its effects, at the service."""
        outcome = ", ".join(sorted(set(states))) or "not told"
        finished, advice = redeemed_by_other_journal(states)
        return cls(key, txn, outcome, detail, finished=finished, advice=advice)


_SPENT: Final = (
    "If you mean to act once more, use another key (one for each intent, like "
    'key=f"refund-{order_id}"); if not, there is nothing left to do.'
)
_NOT_FINISHED: Final = (
    "It is not finished: `countersign resume --tools MODULE`, or the same calls under this key, bring it to its end or "
    "say what nobody knows. Ask for none of it under another key: it might happen twice."
)


class ReleaseRefused(Stopped):
    """A release or receipt failed verification; nothing was fired with it."""

    code = "release_refused"

    def __init__(self, txn: str, reason: str, *, step: int | None = None, advice: str = "") -> None:
        self.txn, self.reason, self.step = txn, reason, step
        at = f" at verification step {step}" if step is not None else ""
        told = advice or _REFUSALS.get(reason, _MISFIT)
        super().__init__(
            f"the release of transaction {txn[:12]} was refused{at}: {reason}. Nothing was fired. {told}"
        )


_MISFIT = "Tell the operator: the service, its keys or this agent's settings do not fit."
_REFUSALS = {
    "dev_assurance": "People approved it by the development sign-in, which this agent does not accept; for a trial set "
    "COUNTERSIGN_ALLOW_DEV=1."
}


class ReleaseLapsed(Stopped):
    """The time to fire ran out and the service did not extend it. What had fired, if anything, is taken back.

    `may_fire`: nothing has fired, but what was approved could be neither redeemed nor withdrawn, so it may fire yet.
    """

    code = "release_lapsed"

    def __init__(self, key: str, txn: str, detail: str, *, may_fire: bool = False) -> None:
        self.key, self.txn, self.may_fire = key, txn, may_fire
        stands = (
            "Nothing has fired, but it is not withdrawn: a worker, `countersign resume --tools MODULE` or the same "
            f"calls under this key ({key!r}) may still fire it, once. Ask for none of it under another key: it might "
            "happen twice."
            if may_fire
            else f"{NOTHING_IN_EFFECT} {USE_ANOTHER_KEY}"
        )
        super().__init__(f"permission to act ran out before everything was done: {detail}. {stands}")


class IsolationConflict(Stopped):
    """What live effects saw was changed by somebody else before the commit; run the transaction again.

    `expected` is the version they saw, `now` the one that is there; None where there was, or is, nothing. A database
    that keeps no versions says in the text what it found; `key` is the table it waited for, or empty where it names
    none. `attempts`: how many runs met this.
    """

    code = "moved"

    def __init__(
        self,
        adapter: str,
        key: str,
        *,
        read: bool,
        expected: str | None,
        now: str | None,
        holder: str = "",
        said: str = "",
    ) -> None:
        self.adapter, self.key, self.read, self.expected, self.now = adapter, key, read, expected, now
        self.attempts = 1
        super().__init__(
            isolation_conflict_text(
                adapter, key, "read" if read else "overwritten", expected, now, holder, said
            )
        )

    def add_earlier_run(self, state: str) -> None:
        """Say that an earlier run has redeemed the same key, so that nobody asks for it again elsewhere."""
        self.args = (
            f"{self} An earlier run of its key was redeemed and is {state}: the same calls under that key find what "
            "became of it, so ask for none of it under another.",
        )

    def after(self, attempts: int) -> IsolationConflict:
        """The same of the last of so many runs."""
        last = IsolationConflict(self.adapter, self.key, read=self.read, expected=self.expected, now=self.now)
        last.attempts = attempts
        last.args = (f"{self} Somebody came in between in each of {attempts} runs, all that Retry allows.",)
        return last


class SavepointLost(Stopped):
    """A nested transaction raised and an adapter could not take its effects back: nothing of the outer stands."""

    code = "savepoint_lost"

    def __init__(self, why: str) -> None:
        super().__init__(
            f"the effects of an inner block could not be taken back alone ({why}), so the whole transaction is undone; "
            "nothing was fired. Run it again."
        )


class SessionLost(Stopped):
    """Something else than its adapter ended the database transaction of live work, so nothing of it may be kept.

    `may_stand`: what it had written by then is perhaps permanent, and can be undone only by hand.
    """

    code = "session_lost"

    def __init__(self, adapter: str, why: str, *, may_stand: bool = False) -> None:
        self.adapter, self.may_stand = adapter, may_stand
        stands = (
            "What it had written until then may stand and cannot be undone from here: look there before you run it "
            "again."
            if may_stand
            else "Nothing of it stands: run it again."
        )
        super().__init__(f"the live work in {adapter!r} is lost: {why}. {stands} Nothing was fired.")


class Edited(Stopped):
    """A reviewer's change of the arguments was accepted, and this program did not say that it takes such changes."""

    code = "edited"

    def __init__(self, key: str, txn: str, edits: Sequence[Proposal]) -> None:
        self.key, self.txn, self.edits = key, txn, tuple(edits)
        told = "; ".join(str(edit) for edit in self.edits)
        super().__init__(
            f"nothing was fired: other arguments are in force than this agent staged ({told}). To go on with them, run "
            f"the same block with transaction(key={key!r}, accept_edits=True), or with a function that looks at each; "
            "to ask for what was staged, take another key."
        )
