"""Every error the SDK raises, in one tree. Each carries a stable code and says what may be done next.

    CountersignError
      MisuseError              the caller's bug: nothing was sent, nothing fired
        OutsideTransaction       a gated tool was called where no transaction is watching
        NotStageable             this call cannot be described as bytes that people could approve
        PlaceholderUsed          a staged call's placeholder was used as if it were a result
        RegistrationError        a tool was declared in a way that cannot be kept
        RerunDiffers             the body stages another list of calls at every rerun
        PriceUnknown             a budget counts money and the model has no price
        SettingsError            an address, a key file or an environment variable is missing or unsafe
      Stopped                  somebody or something said no, or not yet; nothing more fires
        Denied                   the policy or a person refused
        ReviewPending            people are being asked
        AlreadyRedeemed          this run key has been spent
        ReleaseRefused           a release or receipt failed a numbered verification step
        ReleaseLapsed            permission to fire ran out and was not renewed; nothing stands
        Moved                    what live effects read was changed by somebody else
        BudgetExceeded           a budget has no room for a call to a model; it was not made
        SavepointLost            an inner block could not be taken back alone; nothing of the outer stands
        Edited                   other arguments are in force than this agent staged, and it did not say it takes them
      FireError                firing began and did not end well (this family: fire_errors.py)
        EffectFailed             a tool failed and is known not to have acted
        PartlyFired              permission to fire ran out in the middle, and something that fired stands
        OutcomeUnknown           nobody knows yet whether a tool acted
        LiveCommitFailed         staged effects fired, but a live adapter could not commit
      WorldError               the world's fault: try again later
        ServiceUnavailable       the service does not answer, or not sensibly
        ServiceRefused           the service answered with a problem; `.code` is the problem's
          OverQuota                more than this agent may ask for at once; `.retry_after` says when it may
        TransactionBusy          another process owns this transaction
        ResourceBusy             another Serialize transaction has a resource to itself
        WorkerStopping           this process was asked to stop and begins nothing more
        JournalError             the journal cannot be read or written
          LeaseLost                somebody else took this transaction over
    UsageUnknown               a call to a model was made, and its response does not say what it used
    CallNotRecorded            the block of a call to a model ended, and nobody said what became of it
    ReplayDiverged             a step does not do what was recorded of it; NotRecorded, a MisuseError: nobody can say
    NotDone                    raised by tools: "I know that nothing happened"
    IndependentFailures        an ExceptionGroup of the above, from transaction(independent=True)

An agent reads these messages. They quote no argument values and no secrets, only names, ids and reasons.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from countersign.reasons import DenyReason, PendingReview, Proposal, Question, pending_text
from countersign.standing import moved_text

UNNAMED: Final = "unnamed-"
"""How the key of a transaction begins that nobody named: no later run can find it again."""


class CountersignError(Exception):
    """The root. `code` is for programs, the text for people and agents."""

    code: ClassVar[str] = "countersign_error"


class MisuseError(CountersignError):
    """The program asked for something that cannot be kept; nothing was sent and nothing fired."""

    code = "misuse"


class OutsideTransaction(MisuseError):
    """A gated tool was called where no transaction is watching."""

    code = "outside_transaction"


class NotStageable(MisuseError):
    """A call that cannot be described completely before it happens."""

    code = "not_stageable"


class PlaceholderUsed(MisuseError, TypeError):
    """A staged call has no result before the commit, and none is invented."""

    code = "placeholder_used"


class RegistrationError(MisuseError):
    """A tool, compensator or manifest that contradicts itself or another."""

    code = "registration"


class RerunDiffers(MisuseError):
    """The body staged another list of calls twice in a row, so that no answer could ever fit."""

    code = "rerun_differs"

    def __init__(self, key: str, position: int, before: str | None, now: str | None) -> None:
        self.key, self.position, self.before, self.now = key, position, before, now
        super().__init__(
            f"transaction {key!r} stages another list of calls at every rerun; call {position} was"
            f" {before or 'absent'} and is now {now or 'absent'}. Make the body name the same calls with the same"
            " arguments each time (no clocks, no random values), or use another key for another intent."
        )


class SettingsError(MisuseError):
    """A setting is missing or unsafe."""

    code = "settings"


class Stopped(CountersignError):
    """Somebody or something said no, or not yet. Live effects have been undone."""

    code = "stopped"


class Denied(Stopped):
    """The policy or a person refused, or time ran out, or it was taken back. Nothing fired, live effects are undone."""

    code = "denied"

    def __init__(self, key: str, txn: str, reasons: Sequence[DenyReason]) -> None:
        self.key, self.txn, self.reasons = key, txn, tuple(reasons)
        lines = "; ".join(str(reason) for reason in self.reasons) or "no reason was given"
        if self.reasons and not any(reason.is_a_no for reason in self.reasons):
            super().__init__(f"stopped, nothing was done: {lines}.")  # each says how to ask anew
            return
        super().__init__(
            f"denied, nothing was done: {lines}. The same call will be denied again: change what the reason names, "
            "or tell the user that it is not allowed."
        )


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
        unreached: str = "",
        proposals: Sequence[Proposal] = (),
        questions: Sequence[Question] = (),
    ) -> None:
        self.key, self.txn, self.reviews, self.parked = key, txn, tuple(reviews), parked
        self.proposals, self.questions = tuple(proposals), tuple(questions)
        asked: list[PendingReview | Proposal] = [*self.reviews, *self.proposals]
        named = not key.startswith(UNNAMED)
        super().__init__(
            pending_text(key, asked, self.questions, parked=parked, named=named, unreached=unreached)
        )


class AlreadyRedeemed(Stopped):
    """This run key has been spent, by an earlier run or by somebody else with the same agent name."""

    code = "already_redeemed"

    def __init__(self, key: str, txn: str, outcome: str, detail: str = "") -> None:
        self.key, self.txn, self.outcome = key, txn, outcome
        more = f": {detail}" if detail else ""
        super().__init__(
            f"transaction {key!r} was already redeemed (outcome {outcome}){more}; nothing was fired now. "
            "If you mean to act once more, use another key (one for each intent, like "
            'key=f"refund-{order_id}"); if not, there is nothing left to do.'
        )


class ReleaseRefused(Stopped):
    """A release or receipt failed verification; nothing was fired with it."""

    code = "release_refused"

    def __init__(self, txn: str, reason: str, *, step: int | None = None) -> None:
        self.txn, self.reason, self.step = txn, reason, step
        at = f" at verification step {step}" if step is not None else ""
        told = _REFUSALS.get(
            reason, "Tell the operator: the service, its keys or this agent's settings do not fit."
        )
        super().__init__(
            f"the release of transaction {txn[:12]} was refused{at}: {reason}. Nothing was fired. {told}"
        )


_REFUSALS = {
    "dev_assurance": "People approved it by the development sign-in, which this agent does not accept; for a trial set "
    "COUNTERSIGN_ALLOW_DEV=1."
}


class ReleaseLapsed(Stopped):
    """The time to fire ran out and the service did not extend it. What had fired, if anything, is taken back."""

    code = "release_lapsed"

    def __init__(self, key: str, txn: str, detail: str) -> None:
        self.key, self.txn = key, txn
        super().__init__(
            f"permission to act ran out before everything was done: {detail}. Nothing of this transaction stands; to "
            "try again, use another key."
        )


class Moved(Stopped):
    """What live effects saw was changed by somebody else before the commit; run the transaction again.

    `expected` is the version they saw, `now` the one that is there; None where there was, or is, nothing. A database
    that keeps no versions says in the text what it found, and `key` is the tool. `attempts`: how many runs met this.
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
            moved_text(adapter, key, "read" if read else "overwritten", expected, now, holder, said)
        )

    def after(self, attempts: int) -> Moved:
        """The same of the last of so many runs."""
        last = Moved(self.adapter, self.key, read=self.read, expected=self.expected, now=self.now)
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


class WorldError(CountersignError):
    """The world's fault: nothing is wrong with the call."""

    code = "world"


class ServiceUnavailable(WorldError):
    """The service does not answer, or not sensibly. Doubt is a refusal: nothing was fired."""

    code = "service_unavailable"

    def __init__(self, what: str, why: str) -> None:
        self.why = why
        super().__init__(
            f"the policy service did not answer {what}: {why}. Nothing was fired without its answer. Try again later "
            "under the same key; it cannot happen twice."
        )


class ServiceRefused(WorldError):
    """The service answered with a problem (RFC 9457). `problem_code` is stable, `extras` its other members."""

    code = "service_refused"

    def __init__(
        self, status: int, problem_code: str, detail: str, extras: dict[str, Any] | None = None
    ) -> None:
        self.status, self.problem_code, self.detail = status, problem_code, detail
        self.extras = dict(extras or {})
        super().__init__(f"the policy service refused the request ({status} {problem_code}): {detail}")


class TransactionBusy(WorldError):
    """Another process owns this transaction's journal entry and is alive."""

    code = "transaction_busy"

    def __init__(self, key: str, holder: str, waited: float) -> None:
        self.key, self.holder = key, holder
        super().__init__(
            f"transaction {key!r} is being run by {holder}; waited {waited:.0f} s. Try again when it has ended: a "
            "second run finds its results."
        )


class ResourceBusy(WorldError):
    """A live adapter's resource is claimed by another `Serialize` transaction. Nothing of this one has begun.

    `run_key` and `holder` are the transaction that has it and the process that runs it.
    """

    code = "resource_busy"

    def __init__(self, resource: str, run_key: str, holder: str, waited: float) -> None:
        self.resource, self.run_key, self.holder, self.waited = resource, run_key, holder, waited
        super().__init__(
            f"{resource!r} is claimed by transaction {run_key!r}, run by {holder}; waited {waited:.1f} s. Nothing was "
            "done: try again when it has ended, or write a longer Serialize(timeout_seconds=...)."
        )


class WorkerStopping(WorldError):
    """A worker was asked to stop: it has begun nothing more, and what it left another one finishes."""

    code = "worker_stopping"

    def __init__(self) -> None:
        super().__init__("the worker was asked to stop; the next one goes on from here")


class JournalError(WorldError):
    """The journal cannot be read or written; without it nothing fires."""

    code = "journal"


class LeaseLost(JournalError):
    """Another process took this transaction over; this one may not fire any more."""

    code = "lease_lost"


class NotDone(CountersignError):
    """Raised by a tool that knows that nothing happened (refused, never sent). Any other exception means "unknown",
    unless the tool is declared with failure_means="not_done"."""

    code = "not_done"


class IndependentFailures(ExceptionGroup[CountersignError]):
    """What did not go through, of a transaction whose effects stand alone; the others fired."""

    def derive(self, excs: Sequence[Any], /) -> Any:
        """Keep the type when Python splits the group (`except*`)."""
        return IndependentFailures(self.message, excs)
