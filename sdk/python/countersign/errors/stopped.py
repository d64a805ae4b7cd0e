"""Errors of transactions that were refused: nothing more fires, and live effects are undone."""

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
from countersign.errors.pending import ApprovalRequirement, Proposal
from countersign.errors.reasons import DenyReason, stop_reasons


class Denied(Stopped):
    """The policy or a person refused, time ran out, or it was withdrawn. Nothing fired, live effects are undone."""

    code = "denied"

    def __init__(self, key: str, txn: str, reasons: Sequence[DenyReason]) -> None:
        self.key, self.txn, self.reasons = key, txn, tuple(reasons)
        lines = "; ".join(str(reason) for reason in self.reasons) or "no reason was given"
        if self.reasons and not any(reason.is_refusal for reason in self.reasons):
            super().__init__(f"stopped, {NOTHING_DONE} {lines}.")  # each reason says how to request it again
            return
        super().__init__(
            f"denied, {NOTHING_DONE} {lines}. The same call will be denied again: change what the reason names, "
            "or tell the user that it is not allowed."
        )

    @classmethod
    def of(cls, view: TransactionView, key: str) -> Denied:
        """Why a transaction ended, as the service reports it; for withdrawn siblings only the cause."""
        reasons = stop_reasons(view)
        return cls(key, view.txn, [one for one in reasons if one.code != DenyCode.SIBLING.value] or reasons)


class ReviewRequired(Stopped):
    """A live effect would need approval, and it cannot wait for that: it did not run."""

    code = "review_required"

    def __init__(
        self, key: str, txn: str, tool: str, effect_id: str, asks: Sequence[ApprovalRequirement]
    ) -> None:
        self.key, self.txn, self.tool, self.effect_id, self.asks = key, txn, tool, effect_id, tuple(asks)
        asked = " and ".join(map(str, self.asks)) or "people"
        super().__init__(
            f"{tool} did not run: it would need approval by {asked}, and a live effect cannot wait for that. "
            "Either have the policy allow it without approval, or declare the tool staged: leave out lane, "
            "adapter and ask in its code, and lane and ask in its reviewed manifest."
        )


class AlreadyRedeemed(Stopped):
    """This run key was redeemed by an earlier run, or by another program with the same agent name. `finished`: whether
    everything under this key is complete, as far as is known here.
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
        """Redeemed by an earlier, completed run with this journal; `outcomes` by effect. `well`: everything required
        was done; `kept`: its live effects were committed.
        """
        outcome = ", ".join(f"{name} {outcome}" for name, outcome in outcomes.items()) or state
        writes = without_reads(outcomes, reads)
        advice = "" if well else f"{describe_outcomes(writes, kept=kept)} {describe_retry(writes, kept=kept)}"
        return cls(key, txn, outcome, advice=advice)

    @classmethod
    def elsewhere(cls, key: str, txn: str, states: Collection[str], detail: str = "") -> AlreadyRedeemed:
        """Redeemed by a run unknown to this journal; `states` are those of its effects on the service."""
        outcome = ", ".join(sorted(set(states))) or "unknown"
        finished, advice = redeemed_by_other_journal(states)
        return cls(key, txn, outcome, detail, finished=finished, advice=advice)


_SPENT: Final = (
    "If you mean to act once more, use another key (one for each intent, like "
    'key=f"refund-{order_id}"); if not, there is nothing left to do.'
)
_NOT_FINISHED: Final = (
    "It is not finished: `countersign resume --tools MODULE`, or the same calls under this key, complete it or "
    "report what is unknown. Do not repeat it under another key: it might happen twice."
)


class ReleaseRefused(Stopped):
    """A release or receipt failed verification; nothing was fired with it."""

    code = "release_refused"

    def __init__(self, txn: str, reason: str, *, step: int | None = None, advice: str = "") -> None:
        self.txn, self.reason, self.step = txn, reason, step
        at = f" at verification step {step}" if step is not None else ""
        next_step = advice or _REFUSALS.get(reason, _MISFIT)
        super().__init__(
            f"the release of transaction {txn[:12]} was refused{at}: {reason}. Nothing was fired. {next_step}"
        )


_MISFIT = "Tell the operator: the service, its keys or this agent's settings do not match."
_REFUSALS = {
    "dev_assurance": (
        "It was approved with the development sign-in, which this agent does not accept; for a "
        "trial set COUNTERSIGN_ALLOW_DEV=1."
    )
}


class ReleaseLapsed(Stopped):
    """The fire window expired and the service did not extend it. What had fired, if anything, is compensated.

    `may_fire`: nothing has fired, but the release could be neither redeemed nor withdrawn, so it may still fire.
    """

    code = "release_lapsed"

    def __init__(self, key: str, txn: str, detail: str, *, may_fire: bool = False) -> None:
        self.key, self.txn, self.may_fire = key, txn, may_fire
        result = (
            "Nothing has fired, but it is not withdrawn: a worker, `countersign resume --tools MODULE` or the "
            f"same calls under this key ({key!r}) may still fire it, once. Do not repeat it under another key: "
            "it might happen twice."
            if may_fire
            else f"{NOTHING_IN_EFFECT} {USE_ANOTHER_KEY}"
        )
        super().__init__(f"the fire window expired before everything was done: {detail}. {result}")


class IsolationConflict(Stopped):
    """Data that live effects read or overwrote was changed by another transaction before the commit; run again.

    `expected` is the version they saw and `now` the current one; None means that nothing exists. A database without
    versions reports its own message, and `key` is the table it waited for, or empty. `attempts`: how many runs met
    this.
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
        """Add that an earlier run redeemed the same key, so that the agent does not repeat it under another."""
        self.args = (
            f"{self} An earlier run of its key was redeemed and is {state}: the same calls under that key report "
            "its outcome, so do not repeat them under another.",
        )

    def after(self, attempts: int) -> IsolationConflict:
        """The error of the last of this many runs."""
        last = IsolationConflict(self.adapter, self.key, read=self.read, expected=self.expected, now=self.now)
        last.attempts = attempts
        last.args = (f"{self} Each of {attempts} runs met a conflict, which is all that Retry allows.",)
        return last


class SavepointLost(Stopped):
    """A nested transaction raised, and an adapter could not undo its effects alone: the whole outer one is undone."""

    code = "savepoint_lost"

    def __init__(self, why: str) -> None:
        super().__init__(
            f"the effects of an inner block could not be undone alone ({why}), so the whole transaction is "
            "undone; nothing was fired. Run it again."
        )


class SessionLost(Stopped):
    """The database transaction of live work was ended by something other than its adapter, so nothing of it may be
    kept.

    `may_stand`: what it had written by then may be permanent, and can only be undone by hand.
    """

    code = "session_lost"

    def __init__(self, adapter: str, why: str, *, may_stand: bool = False) -> None:
        self.adapter, self.may_stand = adapter, may_stand
        result = (
            "What it had written until then may be permanent and cannot be undone from here: check it before "
            "you run it again."
            if may_stand
            else "Nothing of it is kept: run it again."
        )
        super().__init__(f"the live work in {adapter!r} is lost: {why}. {result} Nothing was fired.")


class Edited(Stopped):
    """A reviewer's edit of the arguments was accepted, and this program did not opt in to edits."""

    code = "edited"

    def __init__(self, key: str, txn: str, edits: Sequence[Proposal]) -> None:
        self.key, self.txn, self.edits = key, txn, tuple(edits)
        listed = "; ".join(str(edit) for edit in self.edits)
        super().__init__(
            f"nothing was fired: other arguments are in force than this agent staged ({listed}). To continue with "
            f"them, run the same block with transaction(key={key!r}, accept_edits=True), or with a function that "
            "checks each; to request what was staged, use another key."
        )
