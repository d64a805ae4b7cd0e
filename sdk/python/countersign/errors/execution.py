"""Errors of a transaction that did not end well: each says what stands, never more than is known.

`NotDone` is what a tool raises of itself; `IndependentFailures` holds several.
"""

from __future__ import annotations

import traceback
from collections.abc import Collection, Sequence
from typing import Any, Final

from countersign.errors.base import CountersignError
from countersign.errors.reasons import PendingReview
from countersign.texts import storable

COMPENSATION_UNKNOWN: Final = "compensation_unknown"
"""In `outcomes`: the effect fired, and nobody knows whether its compensation did."""

IN_EFFECT: Final = frozenset({"fired", "compensating", "compensation_failed", COMPENSATION_UNKNOWN})
"""In `outcomes`: the effect stands, or may stand, and must not be repeated under another key."""

NOTHING_IN_EFFECT: Final = "Nothing of this transaction stands."
USE_ANOTHER_KEY: Final = "To try again, use another key."
NOTHING_DONE: Final = "nothing was done:"
NOTHING_BEGUN: Final = "Nothing after it was started and nothing was compensated."
_OF_ONE_CALL: Final = {
    NOTHING_IN_EFFECT: "Nothing of this call stands.",
    USE_ANOTHER_KEY: "To try again, stage this call alone under another key: others of its block may have fired.",
    NOTHING_DONE: "this call was not done:",
    NOTHING_BEGUN: "It was not compensated, and the other calls of its block are told by themselves.",
}
"""What is said of a whole transaction, as it is said of a call that stands alone in its block."""
_UNKNOWN: Final = frozenset({"firing", "unknown"})
_COMPENSATING: Final = "compensating"

# Of the service's states; in any other one it may still happen, or be taken back.
_DONE: Final = frozenset({"fired", "compensation_failed"})
_NOT_DONE: Final = frozenset({"failed", "unused", "compensated", "denied", "expired", "withdrawn", "revoked"})
_OTHER_JOURNAL: Final = (
    "A run with another journal spent it, on another host or under another COUNTERSIGN_JOURNAL."
)
_CONTINUE_THERE: Final = (
    "`countersign resume --tools MODULE` there, or the same calls under this key, bring it to its end or say what "
    "nobody knows. Ask for none of it under another key: it might happen twice."
)
_DONE_THERE: Final = (
    "What has fired is done, and its result stands there: under another key it would be done once more, so stage under "
    "one only what is to happen besides."
)


def without_reads(outcomes: dict[str, str], reads: Collection[str]) -> dict[str, str]:
    """What is left to say of a transaction, of whose reads nothing stands."""
    return {name: outcome for name, outcome in outcomes.items() if name not in reads}


def describe_outcomes(
    outcomes: dict[str, str], reviews: Sequence[PendingReview] = (), *, kept: bool = False
) -> str:
    """In words what stands and what may stand, so that an agent never reports a clean rollback that was none, nor takes
    for standing what is taken back as soon as people agree. `reviews`: which of that they are asked about; `kept`: its
    live effects stand.
    """
    standing = [
        name
        for name, outcome in outcomes.items()
        if outcome in IN_EFFECT - {_COMPENSATING, COMPENSATION_UNKNOWN}
    ]
    compensating = _compensating_names(outcomes)
    doubtful = [name for name, outcome in outcomes.items() if outcome == COMPENSATION_UNKNOWN]
    unknown = [name for name, outcome in outcomes.items() if outcome in _UNKNOWN]
    told = ["Its live effects stand."] if kept else []
    if standing:
        told.append(
            f"Still standing and not undone: {', '.join(standing)}; `countersign resume --tools MODULE` takes back "
            "what still can be, the rest is for a person."
        )
    if compensating:
        asked = f": people are asked first ({'; '.join(map(str, reviews))})" if reviews else ""
        told.append(
            f"To be taken back, and not yet: {', '.join(compensating)}{asked}; `countersign resume --tools MODULE`, a "
            "worker or the next run of this key goes on with it."
        )
    if doubtful:
        told.append(
            f"It is not known whether this was taken back: {', '.join(doubtful)}; a person settles it."
        )
    if unknown:
        told.append(f"It is not known whether this happened: {', '.join(unknown)}; a person settles it.")
    return " ".join(told) or NOTHING_IN_EFFECT


def describe_retry(outcomes: dict[str, str], *, kept: bool = False) -> str:
    """How to try again without doing anything twice, nor anything that follows from what is still being taken back."""
    if _compensating_names(outcomes):
        return "Stage nothing of it again before that is decided."
    rest = [name for name, outcome in outcomes.items() if outcome not in IN_EFFECT | _UNKNOWN]
    if len(rest) == len(outcomes) and not kept:
        return USE_ANOTHER_KEY
    return f"To try again, stage under another key only what does not stand: {', '.join(rest) or 'nothing is left'}."


def text_for_one_call(text: str) -> str:
    """What ended one call of a block whose calls stand alone: nobody repeats the others for its sake."""
    for of_all, of_one in _OF_ONE_CALL.items():
        text = text.replace(of_all, of_one)
    return text


def redeemed_by_other_journal(states: Collection[str]) -> tuple[bool, str]:
    """Whether what another journal's run has redeemed came to its end, as the service knows of each effect, and what to
    do about it here, where nobody can go on with it.
    """
    told = set(states)
    if not told or told - _DONE - _NOT_DONE:
        return False, f"{_OTHER_JOURNAL} It is not finished: {_CONTINUE_THERE}"
    if told & _DONE:
        return True, f"{_OTHER_JOURNAL} {_DONE_THERE}"
    return True, f"{_OTHER_JOURNAL} {NOTHING_IN_EFFECT} {USE_ANOTHER_KEY}"


def only_reviews_left(outcomes: dict[str, str], reviews: Sequence[PendingReview]) -> bool:
    """Whether all that is still open is to be taken back, and people are asked about each of it."""
    still_open = [outcome for outcome in outcomes.values() if outcome in IN_EFFECT | _UNKNOWN]
    return bool(reviews) and still_open == [_COMPENSATING] * len(reviews)


def _compensating_names(outcomes: dict[str, str]) -> list[str]:
    return [name for name, outcome in outcomes.items() if outcome == _COMPENSATING]


def isolation_conflict_text(
    adapter: str, key: str, verb: str, expected: str | None, now: str | None, holder: str, said: str
) -> str:
    """That nothing stands, because somebody else came in between; `said` are the resource's own words for it."""
    if said:
        met = f"{key!r} met another transaction" if key else "another transaction was met"
        return (
            f"{met} in {adapter!r} ({said}). Nothing was fired now, live effects are undone; "
            "run the transaction again."
        )
    found = f"{holder}, is changing it" if holder else f"it is now at {_version(now)}"
    return (
        f"{key!r} of {adapter!r} was {verb} at {_version(expected)}, and {found}. Nothing was fired now, live "
        "effects are undone; run the transaction again."
    )


def _version(version: str | None) -> str:
    return "no version (not there)" if version is None else f"version {version[:12]}"


class FireError(CountersignError):
    """Firing began and did not end well. `outcomes` tells what is known of each effect: the journal's states, and
    `compensation_unknown`. `reviews` are open: people are asked whether something may be taken back. `reads`: of which
    effects nothing stands once they fired.
    """

    code = "fire_error"

    def __init__(
        self,
        text: str,
        *,
        key: str,
        txn: str,
        outcomes: dict[str, str],
        reviews: Sequence[PendingReview] = (),
    ) -> None:
        self.key, self.txn, self.outcomes, self.reviews = key, txn, dict(outcomes), tuple(reviews)
        super().__init__(text)

    @property
    def only_reviews_remain(self) -> bool:
        """Whether nothing else keeps it open than people who are asked what may be taken back."""
        return only_reviews_left(self.outcomes, self.reviews)


class EffectFailed(FireError):
    """A tool failed and is known not to have acted; what fired before it was compensated where possible."""

    code = "effect_failed"

    def __init__(
        self,
        key: str,
        txn: str,
        tool: str,
        effect_id: str,
        why: str,
        outcomes: dict[str, str],
        reviews: Sequence[PendingReview] = (),
        *,
        reads: Collection[str] = (),
    ) -> None:
        self.tool, self.effect_id = tool, effect_id
        writes = without_reads(outcomes, reads)
        told = f"{tool} did not happen: {why}. {describe_outcomes(writes, reviews)} {describe_retry(writes)}"
        super().__init__(told, key=key, txn=txn, outcomes=outcomes, reviews=reviews)


class PartlyFired(FireError):
    """The time to fire ran out in the middle and was not extended; what fired could not all be taken back."""

    code = "partly_fired"

    def __init__(
        self,
        key: str,
        txn: str,
        why: str,
        outcomes: dict[str, str],
        reviews: Sequence[PendingReview] = (),
        *,
        reads: Collection[str] = (),
    ) -> None:
        writes = without_reads(outcomes, reads)
        rest = f"{describe_outcomes(writes, reviews)} {describe_retry(writes)}"
        told = f"permission to act ran out before everything was done: {why}. {rest}"
        super().__init__(told, key=key, txn=txn, outcomes=outcomes, reviews=reviews)


_HINT_FOR_AUTHOR: Final = (
    " (For its author: a tool that knows that nothing happened says so by `raise NotDone(...)`; any other exception "
    "may mean that it did, and a probe can find out.)"
)


class OutcomeUnknown(FireError):
    """Nobody knows yet whether a tool acted, or whether live work was kept (then `effects` is empty). It is not called
    again on a guess. `probe_at`: the time (of `time.time`) from which its probe's answer counts, where waiting for that
    is all that is missing. `said_not_done`: its last try did nothing and said so, an earlier one may have acted.
    `tasks_url`: where people settle it. `briefly`: the same, for whoever goes on with it anyway.
    """

    code = "outcome_unknown"

    def __init__(
        self,
        key: str,
        txn: str,
        effects: Sequence[str],
        outcomes: dict[str, str],
        why: str = "",
        *,
        probe_at: float | None = None,
        reported_not_done: bool = False,
        tasks_url: str | None = None,
    ) -> None:
        self.effects, self.probe_at, self.tasks_url = tuple(effects), probe_at, tasks_url
        because = f" ({why})" if why else ""
        who = f"a person settles it first, in the service's queue{f' at {tasks_url}' if tasks_url else ''}"
        if probe_at is not None:
            who = f"its probe is asked again, or {who}"
        next_run = "`countersign resume --tools MODULE` or the next run of this key"
        what, later = "all of its live work was kept", "its live adapters are asked again"
        then = f"{next_run} asks its live adapters again."
        if self.effects:
            what, later = f"{', '.join(self.effects)} happened", who
            then = f"{who}; {next_run} takes that over.{'' if reported_not_done else _HINT_FOR_AUTHOR}"
        told = f"it is not known whether {what}{because}. {NOTHING_BEGUN} Do not repeat it:"
        self.briefly = f"{told} {later}."
        super().__init__(f"{told} {then}", key=key, txn=txn, outcomes=outcomes)


class LiveCommitFailed(FireError):
    """A live adapter could not commit; staged effects that had fired are taken back as far as they can be. `committed`:
    the adapters whose work stands, `doubtful`: those of which nobody knows.
    """

    code = "live_commit_failed"

    def __init__(
        self,
        key: str,
        txn: str,
        adapter: str,
        why: str,
        outcomes: dict[str, str],
        *,
        committed: Sequence[str] = (),
        doubtful: Sequence[str] = (),
        reviews: Sequence[PendingReview] = (),
        reads: Collection[str] = (),
    ) -> None:
        self.adapter, self.committed, self.doubtful = adapter, tuple(committed), tuple(doubtful)
        partly = f"; already committed and standing: {', '.join(self.committed)}" if self.committed else ""
        partly += f"; it is not known whether this committed: {', '.join(doubtful)}" if doubtful else ""
        staged = describe_outcomes(without_reads(outcomes, reads), reviews)
        after = " Tell the operator."
        if (self.committed or doubtful) and staged == NOTHING_IN_EFFECT:
            staged = "None of its staged effects stands." if outcomes else "It had no staged effects."
        elif staged == NOTHING_IN_EFFECT:
            after = " To do it again, use another key." if outcomes else " Run it again."
        super().__init__(
            f"live adapter {adapter!r} could not commit: {why}{partly}. {staged}{after}",
            key=key,
            txn=txn,
            outcomes=outcomes,
            reviews=reviews,
        )


class NotDone(CountersignError):
    """Raised by a tool that knows that nothing happened (refused, never sent). Any other exception means "unknown",
    unless the tool is declared with failure_means="not_done"."""

    code = "not_done"


class IndependentFailures(ExceptionGroup[CountersignError]):
    """What did not go through, of a transaction whose effects stand alone; the others fired, and are named."""

    @classmethod
    def beside(
        cls, failures: Sequence[CountersignError], failed: Sequence[str], fired: Sequence[str]
    ) -> IndependentFailures:
        """Each failure with what is to be said of one call; the names of all, in their order."""
        for failure in failures:
            failure.args = (text_for_one_call(str(failure)),)
        done = f"; done, and done once more under another key: {', '.join(fired)}" if fired else ""
        count = f"{len(failed)} of {len(failed) + len(fired)} effects"
        return cls(f"{count} did not go through: {', '.join(failed)}{done}", failures)

    def derive(self, excs: Sequence[Any], /) -> Any:
        """Keep the type when Python splits the group (`except*`)."""
        return IndependentFailures(self.message, excs)


def error_location(error: BaseException) -> str:
    """The file and line where an exception was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return storable(f"{frames[-1].filename}:{frames[-1].lineno}") if frames else "an unknown place"


class ToolRaised(CountersignError):
    """What a tool or a live adapter raised that was given secret arguments: it may repeat them, so only the kind and
    the place are told. Of a staged tool it is the cause of an error above. `tool`: the tool's name, or the adapter's.
    """

    code = "tool_raised"

    def __init__(self, tool: str, kind: str, at: str) -> None:
        self.tool, self.kind, self.at = tool, kind, at
        super().__init__(
            f"{tool} raised {kind} at {at}; its text is not told, for it may repeat secret arguments"
        )

    @classmethod
    def of(cls, tool: str, error: BaseException) -> ToolRaised:
        """In place of this exception."""
        return cls(tool, type(error).__name__, error_location(error))
