"""Errors of a transaction that began to fire and did not complete. Each states the known outcome, never more.

Tools raise `NotDone` themselves; `IndependentFailures` groups several errors.
"""

from __future__ import annotations

import traceback
from collections.abc import Collection, Sequence
from typing import Any, Final

from countersign.errors.base import CountersignError
from countersign.errors.pending import PendingReview
from countersign.texts import storable

COMPENSATION_UNKNOWN: Final = "compensation_unknown"
"""In `outcomes`: the effect fired, and it is not known whether its compensation did."""

IN_EFFECT: Final = frozenset({"fired", "compensating", "compensation_failed", COMPENSATION_UNKNOWN})
"""In `outcomes`: the effect is or may be in effect, and must not be repeated under another key."""

NOTHING_IN_EFFECT: Final = "Nothing of this transaction remains in effect."
USE_ANOTHER_KEY: Final = "To try again, use another key."
NOTHING_DONE: Final = "nothing was done:"
NOTHING_BEGUN: Final = "Nothing after it was started and nothing was compensated."
_OF_ONE_CALL: Final = {
    NOTHING_IN_EFFECT: "Nothing of this call remains in effect.",
    USE_ANOTHER_KEY: "To try again, stage this call alone under another key: others of its block may have fired.",
    NOTHING_DONE: "this call was not done:",
    NOTHING_BEGUN: "It was not compensated, and the other calls of its block are reported separately.",
}
"""Sentences about a transaction, and the same about one call of `transaction(independent=True)`."""
_UNKNOWN: Final = frozenset({"firing", "unknown"})
_COMPENSATING: Final = "compensating"

# States of the service; in any other state it may still happen, or be compensated.
_DONE: Final = frozenset({"fired", "compensation_failed"})
_NOT_DONE: Final = frozenset({"failed", "unused", "compensated", "denied", "expired", "withdrawn", "revoked"})
_OTHER_JOURNAL: Final = (
    "It was redeemed by a run with another journal, on another host or with another COUNTERSIGN_JOURNAL."
)
_CONTINUE_THERE: Final = (
    "`countersign resume --tools MODULE` there, or the same calls under this key, complete it or report what is "
    "unknown. Do not repeat it under another key: it might happen twice."
)
_DONE_THERE: Final = (
    "What has fired is done, and its result is there. Another key would do it once more, so use one only for "
    "further calls."
)


def without_reads(outcomes: dict[str, str], reads: Collection[str]) -> dict[str, str]:
    """The outcomes without those of read tools, which have no lasting effect."""
    return {name: outcome for name, outcome in outcomes.items() if name not in reads}


def describe_outcomes(
    outcomes: dict[str, str], reviews: Sequence[PendingReview] = (), *, kept: bool = False
) -> str:
    """Describe what is and may be in effect, so that an agent never reports a clean rollback wrongly, nor counts on an
    effect whose compensation is pending. `reviews`: the open reviews about compensations; `kept`: the live effects were
    committed.
    """
    in_effect = [
        name
        for name, outcome in outcomes.items()
        if outcome in IN_EFFECT - {_COMPENSATING, COMPENSATION_UNKNOWN}
    ]
    compensating = _compensating_names(outcomes)
    doubtful = [name for name, outcome in outcomes.items() if outcome == COMPENSATION_UNKNOWN]
    unknown = [name for name, outcome in outcomes.items() if outcome in _UNKNOWN]
    sentences = ["Its live effects are kept."] if kept else []
    if in_effect:
        sentences.append(
            f"Still in effect and not undone: {', '.join(in_effect)}; `countersign resume --tools MODULE` "
            "compensates what it can, a person settles the rest."
        )
    if compensating:
        asked = f": waiting for approval ({'; '.join(map(str, reviews))})" if reviews else ""
        sentences.append(
            f"Compensation pending: {', '.join(compensating)}{asked}; `countersign resume --tools MODULE`, a "
            "worker or the next run of this key continues it."
        )
    if doubtful:
        sentences.append(
            f"It is not known whether this was compensated: {', '.join(doubtful)}; a person settles it."
        )
    if unknown:
        sentences.append(f"It is not known whether this happened: {', '.join(unknown)}; a person settles it.")
    return " ".join(sentences) or NOTHING_IN_EFFECT


def describe_retry(outcomes: dict[str, str], *, kept: bool = False) -> str:
    """How to try again without repeating what has happened, or what depends on a pending compensation."""
    if _compensating_names(outcomes):
        return "Do not repeat any of it before that is decided."
    rest = [name for name, outcome in outcomes.items() if outcome not in IN_EFFECT | _UNKNOWN]
    if len(rest) == len(outcomes) and not kept:
        return USE_ANOTHER_KEY
    return (
        "To try again, stage under another key only what is not in effect: "
        f"{', '.join(rest) or 'nothing is left'}."
    )


def text_for_one_call(text: str) -> str:
    """Reword an error text for one call of an independent block: the others need not be repeated."""
    for of_all, of_one in _OF_ONE_CALL.items():
        text = text.replace(of_all, of_one)
    return text


def redeemed_by_other_journal(states: Collection[str]) -> tuple[bool, str]:
    """Whether what another journal's run redeemed is complete, judging by the service's effect states, with advice,
    since this journal cannot continue it.
    """
    known = set(states)
    if not known or known - _DONE - _NOT_DONE:
        return False, f"{_OTHER_JOURNAL} It is not finished: {_CONTINUE_THERE}"
    if known & _DONE:
        return True, f"{_OTHER_JOURNAL} {_DONE_THERE}"
    return True, f"{_OTHER_JOURNAL} {NOTHING_IN_EFFECT} {USE_ANOTHER_KEY}"


def only_reviews_left(outcomes: dict[str, str], reviews: Sequence[PendingReview]) -> bool:
    """Whether all that is open are compensations with an open review each."""
    still_open = [outcome for outcome in outcomes.values() if outcome in IN_EFFECT | _UNKNOWN]
    return bool(reviews) and still_open == [_COMPENSATING] * len(reviews)


def _compensating_names(outcomes: dict[str, str]) -> list[str]:
    return [name for name, outcome in outcomes.items() if outcome == _COMPENSATING]


def isolation_conflict_text(
    adapter: str, key: str, verb: str, expected: str | None, now: str | None, holder: str, said: str
) -> str:
    """The text of an isolation conflict; `said` is the resource's own message."""
    if said:
        met = f"{key!r} met another transaction" if key else "another transaction was met"
        return (
            f"{met} in {adapter!r} ({said}). Nothing was fired now, live effects are undone; run the transaction "
            "again."
        )
    found = f"{holder}, is changing it" if holder else f"it is now at {_version(now)}"
    return (
        f"{key!r} of {adapter!r} was {verb} at {_version(expected)}, and {found}. Nothing was fired now, live "
        "effects are undone; run the transaction again."
    )


def _version(version: str | None) -> str:
    return "no version (not there)" if version is None else f"version {version[:12]}"


class FireError(CountersignError):
    """Firing began and did not complete. `outcomes` has the known outcome of each effect: the journal's states, and
    `compensation_unknown`. `reviews`: open reviews about compensations. `reads`: the effects of read tools, which have
    no lasting effect.
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
        """Whether it is open only because of reviews about compensations."""
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
        text = f"{tool} did not happen: {why}. {describe_outcomes(writes, reviews)} {describe_retry(writes)}"
        super().__init__(text, key=key, txn=txn, outcomes=outcomes, reviews=reviews)


class PartlyFired(FireError):
    """The fire window expired part-way and was not extended; what fired could not all be compensated."""

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
        text = f"permission to act ran out before everything was done: {why}. {rest}"
        super().__init__(text, key=key, txn=txn, outcomes=outcomes, reviews=reviews)


_HINT_FOR_AUTHOR: Final = (
    " (For its author: a tool that knows that nothing happened does `raise NotDone(...)`; any other exception may "
    "mean that it acted, and a probe can find out.)"
)


class OutcomeUnknown(FireError):
    """It is not known whether a tool acted, or whether live work was committed (then `effects` is empty). The tool is
    not called again. `probe_at`: the time (of `time.time`) from which the probe's answer counts, if only that is
    missing. `said_not_done`: the last attempt did nothing, an earlier one may have acted. `tasks_url`: where people
    settle it. `briefly`: a short form for callers that continue anyway.
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
            who = f"its probe is called again, or {who}"
        next_run = "`countersign resume --tools MODULE` or the next run of this key"
        what, later = "all of its live work was kept", "its live adapters are queried again"
        then = f"{next_run} queries its live adapters again."
        if self.effects:
            what, later = f"{', '.join(self.effects)} happened", who
            then = f"{who}; {next_run} takes that over.{'' if reported_not_done else _HINT_FOR_AUTHOR}"
        text = f"it is not known whether {what}{because}. {NOTHING_BEGUN} Do not repeat it:"
        self.briefly = f"{text} {later}."
        super().__init__(f"{text} {then}", key=key, txn=txn, outcomes=outcomes)


class LiveCommitFailed(FireError):
    """A live adapter could not commit; staged effects that had fired are compensated where possible. `committed`: the
    adapters that have committed; `doubtful`: those of which it is not known.
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
        partly = f"; already committed: {', '.join(self.committed)}" if self.committed else ""
        partly += f"; it is not known whether this committed: {', '.join(doubtful)}" if doubtful else ""
        staged = describe_outcomes(without_reads(outcomes, reads), reviews)
        after = " Tell the operator."
        if (self.committed or doubtful) and staged == NOTHING_IN_EFFECT:
            staged = (
                "None of its staged effects remains in effect." if outcomes else "It had no staged effects."
            )
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
    unless the tool is declared with failure_means="not_done".
    """

    code = "not_done"


class IndependentFailures(ExceptionGroup[CountersignError]):
    """The failures of a transaction whose effects are independent; the effects that fired are listed."""

    @classmethod
    def from_failures(
        cls, failures: Sequence[CountersignError], failed: Sequence[str], fired: Sequence[str]
    ) -> IndependentFailures:
        """Group the failures, each reworded for one call, with the names of all effects in order."""
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
    return storable(f"{frames[-1].filename}:{frames[-1].lineno}") if frames else "an unknown location"


class ToolRaised(CountersignError):
    """Replaces what a tool or a live adapter with secret arguments raised: the text may repeat secrets, so only the
    type and location are kept. For a staged tool it is the cause of an error above. `tool`: the tool's name, or the
    adapter's.
    """

    code = "tool_raised"

    def __init__(self, tool: str, kind: str, at: str) -> None:
        self.tool, self.kind, self.at = tool, kind, at
        super().__init__(
            f"{tool} raised {kind} at {at}; its text is withheld, because it may repeat secret arguments"
        )

    @classmethod
    def of(cls, tool: str, error: BaseException) -> ToolRaised:
        """The replacement for this exception."""
        return cls(tool, type(error).__name__, error_location(error))
