"""Step 7: journal FIRING, call the tool with the call key, journal the outcome; in order, and never on a guess.

Rules: a tool is called only under a `Permit` for it that has time left; after FIRING is on disk; with arguments made
from the approved bytes. What an exception means is decided by the tool, not by hope (attempt.py): `NotDone` (or a tool
declared failure_means="not_done") is failed, anything else is unknown, unless the reviewed manifest calls the tool
idempotent, in which case the same call key is tried again while permits are given, or the tool's probe knows
better (probing.py). A call whose time was over before it began was not made: more time is asked for it.

The first effect that did not fire ends the run, and the rest is unused; but one that failed, which its reviewed
manifest lets it (`on_exhausted="tool"`), ends nothing. What is unknown ends every run. Calls of one group are marked
FIRING in one commit and called at the same time; all of them have ended before anything is decided. A tool that exits
(`sys.exit`) is unknown, and goes on its way then; where the wait is interrupted, what had ended is written as it ended,
and what had not was left running. What is known of one is on the disk while others still run (attempt.py).
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from countersign import tracing
from countersign.commit.attempt import (
    MAX_ERROR,
    Authority,
    FireWindow,
    Outcomes,
    PermitRefused,
    Retries,
    TooLateError,
    is_exit,
    is_final,
    is_not_done,
    public_cause,
    redact_exit,
)
from countersign.commit.plan import PlannedCall
from countersign.commit.probes import (
    LEFT_RUNNING,
    ProbeFinding,
    UncertainCall,
    find_probe,
    run_probe_after_call,
)
from countersign.concurrency import ToolTimeoutError
from countersign.contract.states import Outcome
from countersign.errors import JournalError, NotDone, NotStageable, WorkerStopping
from countersign.journal import Lease, LocalState
from countersign.runtime import Engine
from countersign.service.enforcement import Permit
from countersign.tools.context import FiringEffect, RequestOrder, RequestTracker, bind_effect
from countersign.tools.results import unfinished_error
from countersign.waiting import CallRaised, InterruptedWaitError, StillRunning

log: Final = logging.getLogger("countersign")
_LOSSY_RESULT: Final = (
    "%s returned a %s, of which JSON does not bring back all: another run of this key gets %s in its place. Name what "
    "it returns in its annotation, or return less"
)


@dataclass(slots=True)
class ExecutionResult:
    """How far a run came. `stopped` is the effect that did not fire, with the exception that told us."""

    results: dict[str, object] = field(default_factory=dict, repr=False)
    stopped: PlannedCall | None = None
    outcome: Outcome | None = None
    cause: Exception | None = None
    why: str = ""
    probe_at: float | None = None  # from when what the probe of `stopped` said would count


class EffectExecutor:
    """Fires calls in order, under one redemption."""

    def __init__(self, engine: Engine, lease: Lease, authority: Authority, permit: Permit | None) -> None:
        self._engine = engine
        self._lease = lease
        self._authority = authority
        self._time = FireWindow(engine, authority, permit)
        self._outcomes = Outcomes(engine, lease, authority)
        self._result = ExecutionResult()
        self._under_way: list[FiringEffect] = []
        self._tries = Retries(engine, self._time)
        self._left_running: set[str] = set()  # a try of it was waited for in vain
        self._is_over = False
        self._ended: dict[str, str] = {}  # how the last try of what is not being called now has ended

    async def run(self, calls: Sequence[PlannedCall]) -> ExecutionResult:
        """Fire these calls, in order; those of one group at the same time. On return every outcome is on disk."""
        after = tuple(calls)
        for group in _groups(calls):
            self._check_stopping()
            after = after[len(group) :]
            try:
                await self._fire(group, after)
            except (PermitRefused, NotStageable) as refused:
                self._record_not_called(group, refused)
            except BaseException as interrupt:
                # Ctrl-C, cancellation, a lost lease: the call may have happened. Nothing is asked of the network now.
                self._interrupted(group, after, interrupt)
                raise
            if self._result.stopped is not None:
                self._rest_unused(after)
                break
        self._outcomes.write()
        return self._result

    def _check_stopping(self) -> None:
        """Between two effects: what is done is written down, what is left stays redeemed and not begun."""
        try:
            self._engine.require_not_stopping()
        except WorkerStopping:
            self._outcomes.write()
            raise

    async def _fire(self, group: Sequence[PlannedCall], after: Sequence[PlannedCall]) -> None:
        for call in group:
            call.kwargs()  # bytes that do not fit the signature are refused before FIRING
        # What an earlier run left FIRING may have happened already.
        doubtful = {
            call.effect.effect_id
            for call in group
            if self._outcomes.state_of(call.effect.effect_id) is LocalState.FIRING
        }
        self._tries.cut_off |= doubtful
        if not self._time.covers_all(group):
            self._outcomes.write()
        await self._time.take(group, after)
        waiting = list(group)
        while waiting:
            # Before every try, so that an owner who lost the lease meanwhile calls nothing more.
            self._outcomes.begin(waiting, lease_seconds=max(map(self._time.lease_seconds, waiting)))
            # Made afresh for every try: a tool that changed its arguments must not be called with the changes.
            failed = await self._call_all(waiting, doubtful)
            ended = [one for one in failed if not isinstance(one[1], TooLateError)]
            for call, error in ended:
                self._tries.note(call, error)
                if not is_not_done(call, error):
                    doubtful.add(call.effect.effect_id)
            self._ended = {
                call.effect.effect_id: self._why(call, self._tries.last(call) or error)
                for call, error in failed
            }
            again = [call for call, error in ended if self._tries.may_retry(call, error)]
            await self._record_failures([one for one in ended if one[0] not in again], doubtful)
            late = [call for call, error in failed if isinstance(error, TooLateError)]
            waiting = [*again, *late]
            if waiting:
                self._outcomes.write()
            refused = await self._tries.extend(again, late, after) if waiting else None
            if refused is not None:
                await self._give_up_retrying(waiting, refused, doubtful)
                waiting = []

    async def _call_all(
        self, calls: Sequence[PlannedCall], doubtful: set[str]
    ) -> list[tuple[PlannedCall, Exception]]:
        """Call them at the same time; those that raised. What is no exception ends the run, once what is known is
        noted.
        """
        parts = [
            functools.partial(self._traced, call, call.kwargs(), call.effect.effect_id in doubtful)
            for call in calls
        ]
        self._ended = {}

        def meanwhile(ended: Sequence[tuple[int, object]]) -> None:
            for place, answer in ended:
                self._note_last_word(calls[place], answer, doubtful)
            self._outcomes.write_during_run()

        try:
            answers: Sequence[object] = await self._engine.waits.together(parts, meanwhile)
            leaving = next((one.error for one in answers if is_exit(one)), None)
        except InterruptedWaitError as left:
            answers, leaving = left.answers, left.interrupt
        failed = []
        for call, answer in zip(calls, answers, strict=True):
            if isinstance(answer, CallRaised):
                failed.append((call, answer.error))
                if answer.left or isinstance(answer.error, ToolTimeoutError):
                    self._left_running.add(call.effect.effect_id)
            elif not isinstance(answer, StillRunning):
                self._fired(call, answer)
        if leaving is not None:
            for call, error in failed:
                known = is_not_done(call, error) and call.effect.effect_id not in doubtful
                outcome = Outcome.FAILED if known else Outcome.UNKNOWN
                told = self._tries.last(call) if isinstance(error, TooLateError) else None
                self._outcomes.note(call, outcome, error=self._why(call, told or error))
            raise leaving
        return [(call, error) for call, error in failed if isinstance(error, Exception)]

    def _note_last_word(self, call: PlannedCall, answer: object, doubtful: set[str]) -> None:
        """What nothing later says otherwise: that it returned, or knows that it did nothing and is not tried again."""
        if not isinstance(answer, CallRaised):
            self._fired(call, answer)
        elif is_final(call, answer.error) and call.effect.effect_id not in doubtful:
            self._outcomes.note(call, Outcome.FAILED, error=self._why(call, answer.error))

    async def _traced(self, call: PlannedCall, kwargs: dict[str, Any], in_doubt: bool) -> object:
        facts = {"txn": call.effect.txn, "effect_id": call.effect.effect_id, "tool": call.effect.tool}
        with tracing.span("countersign fire", kind=self._authority.kind, **facts) as tell:
            try:
                returned = await self._call(call, kwargs, in_doubt)
            except TooLateError:
                raise  # not called; another try is asked for
            except BaseException as error:
                known = is_not_done(call, error) and not in_doubt
                tell(state=(Outcome.FAILED if known else Outcome.UNKNOWN).value)
                raise
            tell(state=Outcome.FIRED.value)
            return returned

    async def _call(self, call: PlannedCall, kwargs: dict[str, Any], in_doubt: bool) -> object:
        effect = call.effect
        firing = FiringEffect(
            effect.effect_id,
            effect.call_key,
            effect.txn,
            effect.tool,
            self._authority.attempt_id,
            self._authority.run_key,
            self._engine.ledger,
            in_doubt=in_doubt,
            requests=RequestTracker(self._places_of(call)),
        )
        self._under_way.append(firing)
        if self._is_over:
            raise NotDone("its run was interrupted before it began")
        self._time.require_time_left(call)
        seconds = call.manifest.timeout_seconds if call.tool.own_thread or call.tool.is_async else None
        try:
            with bind_effect(firing):
                returned = await self._engine.waits.call(call.tool.fn, kwargs, seconds)
            if (error := unfinished_error(returned)) is not None:
                raise error
            return returned
        except SystemExit as exit_:
            leaving = redact_exit(call, exit_)
        raise leaving  # out here, or it would keep what it hides as its context

    def _places_of(self, call: PlannedCall) -> RequestOrder:
        """Only an idempotent tool is called again, in this run or after a crash: the journal keeps what it sent."""
        if not call.manifest.idempotent:
            return RequestOrder()
        sent, effect_id = self._engine.journal.sent, call.effect.effect_id
        return RequestOrder(
            functools.partial(sent.of, self._lease.txn, effect_id),
            functools.partial(sent.keep, self._lease, effect_id),
        )

    async def _give_up_retrying(
        self, calls: Sequence[PlannedCall], refused: PermitRefused, doubtful: set[str]
    ) -> None:
        """There is no time for another try: what was tried stands as its last try ended, the rest was not called."""
        tried = [(call, last) for call in calls if (last := self._tries.last(call)) is not None]
        await self._record_failures(tried, doubtful)
        for call in (one for one in calls if self._tries.last(one) is None):
            # What an earlier run left FIRING may have happened, whatever became of this try.
            in_doubt = call.effect.effect_id in doubtful
            why = f"an earlier run left it firing, and there is no time for another call: {refused}"
            outcome, told = (Outcome.UNKNOWN, why) if in_doubt else (Outcome.FAILED, str(refused))
            self._outcomes.note(call, outcome, error=told[:MAX_ERROR])
            self._stop(call, outcome, refused, told)

    def _fired(self, call: PlannedCall, returned: object) -> None:
        self._result.results[call.effect.effect_id] = returned
        raw = None
        try:
            raw = call.tool.signature.result.dump(returned)
        finally:  # it has returned, whatever interrupts the writing of its result
            self._outcomes.note(call, Outcome.FIRED, result=raw)
        if instead := call.tool.signature.result.loses(returned, raw):
            log.warning(_LOSSY_RESULT, call.tool.name, type(returned).__name__, instead)

    async def _record_failures(
        self, failed: Sequence[tuple[PlannedCall, Exception]], doubtful: set[str]
    ) -> None:
        """What is known is on the disk before a probe is asked about the rest: that may take its time."""
        asked = []
        for call, error in failed:
            known = call.effect.effect_id not in doubtful
            if known or find_probe(self._engine, call) is None:
                await self._record_failure(call, error, not_done=known)
            else:
                asked.append((call, error))
        if asked:
            self._outcomes.write()
        for call, error in asked:
            await self._record_failure(call, error, not_done=False)

    async def _record_failure(self, call: PlannedCall, error: Exception, *, not_done: bool) -> None:
        """One call that says "not done" says nothing about another before it: then it stays unknown, unless its probe
        can tell.
        """
        outcome, why = Outcome.FAILED if not_done else Outcome.UNKNOWN, self._why(call, error)
        found = None if not_done else await self._run_probe(call)
        noted = why
        if found is not None:
            outcome, why = found.outcome, f"{why}; {found.why}"[:MAX_ERROR]
            if outcome is Outcome.FIRED:
                log.warning("%s raised and has happened: %s", call.tool.name, why)
                self._happened(call, found.result)
                return
        self._outcomes.note(call, outcome, error=noted if outcome is Outcome.UNKNOWN else why)
        if outcome is Outcome.FAILED and call.manifest.may_fail and self._authority.kind == "effect":
            log.warning(
                "%s did not happen (%s); its manifest lets it fail, and the others go on", call.tool.name, why
            )
        else:
            self._stop(
                call, outcome, public_cause(call, error), why, None if found is None else found.conclusive_at
            )

    def _why(self, call: PlannedCall, error: BaseException) -> str:
        told = self._tries.told(call, error)
        return f"{LEFT_RUNNING} ({told})" if call.effect.effect_id in self._left_running else told

    async def _run_probe(self, call: PlannedCall) -> ProbeFinding | None:
        left_running = call.effect.effect_id in self._left_running
        doubt = UncertainCall(self._engine.clock.wall(), left_running)
        return await run_probe_after_call(self._engine, call, doubt, self._authority.attempt_id)

    def _happened(self, call: PlannedCall, raw: bytes | None) -> None:
        """As if it had returned this; what nobody can tell of its result is None."""
        typed = None if raw is None else call.tool.signature.result.load(raw)
        self._result.results[call.effect.effect_id] = typed
        self._outcomes.note(call, Outcome.FIRED, result=raw)

    def _record_not_called(self, group: Sequence[PlannedCall], refused: Exception) -> None:
        """Not called in this run; an idempotent effect that an earlier run left FIRING may have happened all
        the same.
        """
        for call in group:
            firing = self._outcomes.state_of(call.effect.effect_id) is LocalState.FIRING
            outcome = Outcome.UNKNOWN if firing else Outcome.UNUSED
            self._outcomes.note(call, outcome, error=str(refused)[:MAX_ERROR])
            self._stop(call, outcome, refused, str(refused))

    def _stop(
        self, call: PlannedCall, outcome: Outcome, cause: Exception, why: str, probe_at: float | None = None
    ) -> None:
        """The first that did not fire is told; but what is unknown goes before what is known."""
        known = self._result.outcome
        if known is None or (outcome is Outcome.UNKNOWN and known is not Outcome.UNKNOWN):
            self._result.stopped, self._result.outcome = call, outcome
            self._result.cause, self._result.why, self._result.probe_at = cause, why, probe_at

    def _rest_unused(self, rest: Sequence[PlannedCall]) -> None:
        for call in rest:
            self._outcomes.note(call, Outcome.UNUSED)

    def _interrupted(
        self, group: Sequence[PlannedCall], rest: Sequence[PlannedCall], interrupt: BaseException
    ) -> None:
        """Write what is true at this moment, and let the interrupt go on. What was left running has no effect to act
        for any more.
        """
        why = f"interrupted by {type(interrupt).__name__}"
        self._is_over = True  # what has not begun yet, in a thread of its own, does not begin any more
        for one in self._under_way:
            one.over.set()
        try:
            for call in group:
                if not self._outcomes.knows(call):
                    firing = self._outcomes.state_of(call.effect.effect_id) is LocalState.FIRING
                    outcome = Outcome.UNKNOWN if firing else Outcome.UNUSED
                    running = self._ended.get(call.effect.effect_id, f"{LEFT_RUNNING} ({why})")
                    self._outcomes.note(call, outcome, error=running if firing else why)
            self._rest_unused(rest)
            self._outcomes.write()
        except JournalError:
            # What was firing stays FIRING on disk, which recovery reads as unknown; the interrupt matters more.
            log.exception("the journal could not be written while %s was interrupted", group[0].tool.name)


def _groups(calls: Sequence[PlannedCall]) -> Iterator[tuple[PlannedCall, ...]]:
    """What fires at the same time: neighbours of one group. A call without a group fires alone."""
    for number, together in itertools.groupby(calls, key=lambda call: call.group):
        if number:
            yield tuple(together)
        else:
            yield from ((call,) for call in together)
