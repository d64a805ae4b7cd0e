"""How firing ends when it does not end well: each error says what stands, never more than is known.

`NotDone` is what a tool says of itself; `IndependentFailures` holds several of the tree.
"""

from __future__ import annotations

import traceback
from collections.abc import Collection, Sequence
from typing import Any, Final

from countersign.errors.reasons import PendingReview
from countersign.errors.roots import CountersignError
from countersign.errors.standing import (
    NOTHING_BEGUN,
    NOTHING_STANDS,
    only_people_are_left,
    said_of_one_call,
    what_stands,
    what_to_repeat,
    without_reads,
)
from countersign.texts import storable


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
    def waits_for_people(self) -> bool:
        """Whether nothing else keeps it open than people who are asked what may be taken back."""
        return only_people_are_left(self.outcomes, self.reviews)


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
        told = f"{tool} did not happen: {why}. {what_stands(writes, reviews)} {what_to_repeat(writes)}"
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
        rest = f"{what_stands(writes, reviews)} {what_to_repeat(writes)}"
        told = f"permission to act ran out before everything was done: {why}. {rest}"
        super().__init__(told, key=key, txn=txn, outcomes=outcomes, reviews=reviews)


_TO_ITS_AUTHOR: Final = (
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
        said_not_done: bool = False,
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
            then = f"{who}; {next_run} takes that over.{'' if said_not_done else _TO_ITS_AUTHOR}"
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
        staged = what_stands(without_reads(outcomes, reads), reviews)
        after = " Tell the operator."
        if (self.committed or doubtful) and staged == NOTHING_STANDS:
            staged = "None of its staged effects stands." if outcomes else "It had no staged effects."
        elif staged == NOTHING_STANDS:
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
            failure.args = (said_of_one_call(str(failure)),)
        done = f"; done, and done once more under another key: {', '.join(fired)}" if fired else ""
        count = f"{len(failed)} of {len(failed) + len(fired)} effects"
        return cls(f"{count} did not go through: {', '.join(failed)}{done}", failures)

    def derive(self, excs: Sequence[Any], /) -> Any:
        """Keep the type when Python splits the group (`except*`)."""
        return IndependentFailures(self.message, excs)


def raised_at(error: BaseException) -> str:
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
        return cls(tool, type(error).__name__, raised_at(error))
