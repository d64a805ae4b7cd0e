"""Step 7: journal FIRING, call the tool with the call key, journal the outcome. In order, and never on a guess.

Rules: a tool is called only under a `Permit` that covers it and has time left, after FIRING is on disk, with arguments
made from the approved bytes. The tool decides what an exception means (tool_errors.py): `NotDone`, or any error of a
tool declared with failure_means="not_done", is failed. Everything else is unknown, unless the reviewed manifest
declares the tool idempotent (the same call key is tried again while permits are granted) or the tool's probe finds out
(probes.py). A call whose window closed before it began was not made; a longer window is requested for it.

The first effect that did not fire ends the run, and the remaining effects are unused. An effect whose manifest lets it
fail (`on_exhausted="tool"`) does not end the run; an unknown one always does. Calls of one group are marked FIRING in
one commit and called concurrently; all of them end before anything is decided. A tool that exits (`sys.exit`) is
unknown, and its exit is raised after that is recorded. If the wait is interrupted, finished calls are recorded as they
ended and the others as left running. Known outcomes are written while others still run (attempt.py).
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from countersign import tracing
from countersign.commit.attempt import Authority, FireWindow, Outcomes, PermitRefused, Retries, is_exit
from countersign.commit.plan import PlannedCall
from countersign.commit.probes import (
    LEFT_RUNNING,
    ProbeFinding,
    UncertainCall,
    find_probe,
    run_probe_after_call,
)
from countersign.commit.tool_errors import (
    MAX_ERROR,
    TooLateError,
    is_final,
    is_not_done,
    public_cause,
    redact_exit,
)
from countersign.concurrency import CallRaised, InterruptedWaitError, StillRunning, ToolTimeoutError
from countersign.contract.states import Outcome
from countersign.errors import JournalError, NotDone, NotStageable, WorkerStopping
from countersign.journal import Lease, LocalState
from countersign.runtime import Engine
from countersign.service.enforcement import Permit
from countersign.tools.context import FiringEffect, RequestOrder, RequestTracker, bind_effect
from countersign.tools.results import unfinished_error

log: Final = logging.getLogger("countersign")
_LOSSY_RESULT: Final = (
    "%s returned a %s, which JSON does not restore completely: another run of this key gets %s instead. Declare "
    "its type in the return annotation, or return less"
)


@dataclass(slots=True)
class ExecutionResult:
    """The result of a run. `stopped` is the effect that did not fire, `cause` the exception that reported it."""

    results: dict[str, object] = field(default_factory=dict, repr=False)
    stopped: PlannedCall | None = None
    outcome: Outcome | None = None
    cause: Exception | None = None
    why: str = ""
    probe_at: float | None = None  # from when the answer of the probe would count


class EffectExecutor:
    """Fires calls in order, under one redemption."""

    def __init__(self, engine: Engine, lease: Lease, authority: Authority, permit: Permit | None) -> None:
        self._engine = engine
        self._lease = lease
        self._authority = authority
        self._time = FireWindow(engine, authority, permit)
        self._outcomes = Outcomes(engine, lease, authority)
        self._result = ExecutionResult()
        self._in_progress: list[FiringEffect] = []
        self._retries = Retries(engine, self._time)
        self._left_running: set[str] = set()  # a try that timed out
        self._is_over = False
        self._ended: dict[str, str] = {}  # by effect id: how the last try ended, for calls not in progress

    async def run(self, calls: Sequence[PlannedCall]) -> ExecutionResult:
        """Fire these calls in order, those of one group concurrently. Every outcome is on disk on return."""
        after = tuple(calls)
        for group in _groups(calls):
            self._check_stopping()
            after = after[len(group) :]
            try:
                await self._fire(group, after)
            except (PermitRefused, NotStageable) as refused:
                self._record_not_called(group, refused)
            except BaseException as interrupt:
                # Ctrl-C, cancellation, a lost lease: the call may have happened. No network request is made now.
                self._interrupted(group, after, interrupt)
                raise
            if self._result.stopped is not None:
                self._rest_unused(after)
                break
        self._outcomes.write()
        return self._result

    def _check_stopping(self) -> None:
        """Between two effects: write the outcomes, and leave the rest redeemed and not begun."""
        try:
            self._engine.require_not_stopping()
        except WorkerStopping:
            self._outcomes.write()
            raise

    async def _fire(self, group: Sequence[PlannedCall], after: Sequence[PlannedCall]) -> None:
        # A call that an earlier run left FIRING may have happened.
        doubtful = {
            call.effect.effect_id
            for call in group
            if self._outcomes.state_of(call.effect.effect_id) is LocalState.FIRING
        }
        self._retries.cut_off |= doubtful
        if not self._time.covers_all(group):
            self._outcomes.write()
        await self._time.take(group, after)
        waiting = list(group)
        while waiting:
            # Anew for every try: a tool may have changed the ones it received. Before FIRING, so that bytes that do
            # not fit the signature are refused.
            arguments = [call.kwargs() for call in waiting]
            # Before every try, so that an owner that lost its lease makes no further call.
            self._outcomes.begin(waiting, lease_seconds=max(map(self._time.lease_seconds, waiting)))
            failed = await self._call_all(waiting, arguments, doubtful)
            ended = [one for one in failed if not isinstance(one[1], TooLateError)]
            for call, error in ended:
                self._retries.note(call, error)
                if not is_not_done(call, error):
                    doubtful.add(call.effect.effect_id)
            self._ended = {
                call.effect.effect_id: self._why(call, self._retries.last(call) or error)
                for call, error in failed
            }
            again = [call for call, error in ended if self._retries.may_retry(call, error)]
            await self._record_failures([one for one in ended if one[0] not in again], doubtful)
            late = [call for call, error in failed if isinstance(error, TooLateError)]
            waiting = [*again, *late]
            if waiting:
                self._outcomes.write()
            refused = await self._retries.extend(again, late, after) if waiting else None
            if refused is not None:
                await self._give_up_retrying(waiting, refused, doubtful)
                waiting = []

    async def _call_all(
        self, calls: Sequence[PlannedCall], arguments: Sequence[dict[str, Any]], doubtful: set[str]
    ) -> list[tuple[PlannedCall, Exception]]:
        """Call them concurrently and return those that raised an `Exception`. Anything else is raised after the
        known outcomes are recorded.
        """
        parts = [
            functools.partial(self._traced, call, kwargs, call.effect.effect_id in doubtful)
            for call, kwargs in zip(calls, arguments, strict=True)
        ]
        self._ended = {}

        def meanwhile(ended: Sequence[tuple[int, object]]) -> None:
            for place, answer in ended:
                self._record_final(calls[place], answer, doubtful)
            self._outcomes.write_during_run()

        try:
            answers: Sequence[object] = await self._engine.executor.together(parts, meanwhile)
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
                text = self._retries.last(call) if isinstance(error, TooLateError) else None
                self._outcomes.note(call, outcome, error=self._why(call, text or error))
            raise leaving
        return [(call, error) for call, error in failed if isinstance(error, Exception)]

    def _record_final(self, call: PlannedCall, answer: object, doubtful: set[str]) -> None:
        """Record an outcome that nothing later can change: a return, or a final report that nothing happened."""
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
                raise  # not called; it is tried again
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
        self._in_progress.append(firing)
        if self._is_over:
            raise NotDone("its run was interrupted before it began")
        self._time.require_time_left(call)
        seconds = call.manifest.timeout_seconds if call.tool.own_thread or call.tool.is_async else None
        try:
            with bind_effect(firing):
                returned = await self._engine.executor.call(call.tool.fn, kwargs, seconds)
            if (error := unfinished_error(returned)) is not None:
                raise error
            return returned
        except SystemExit as exit_:
            leaving = redact_exit(call, exit_)
        raise leaving  # outside of the handler, or its context would hold the hidden exception

    def _places_of(self, call: PlannedCall) -> RequestOrder:
        """Where the journal keeps the requests of an idempotent tool. Only such a tool is called again."""
        if not call.manifest.idempotent:
            return RequestOrder()
        sent, effect_id = self._engine.journal.request_log, call.effect.effect_id
        return RequestOrder(
            functools.partial(sent.of, self._lease.txn, effect_id),
            functools.partial(sent.keep, self._lease, effect_id),
        )

    async def _give_up_retrying(
        self, calls: Sequence[PlannedCall], refused: PermitRefused, doubtful: set[str]
    ) -> None:
        """There is no time for another try: calls that were tried end as their last try did, the others were not
        made.
        """
        tried = [(call, last) for call in calls if (last := self._retries.last(call)) is not None]
        await self._record_failures(tried, doubtful)
        for call in (one for one in calls if self._retries.last(one) is None):
            # A call that an earlier run left FIRING may have happened.
            in_doubt = call.effect.effect_id in doubtful
            why = f"an earlier run left it firing, and there is no time for another call: {refused}"
            outcome, text = (Outcome.UNKNOWN, why) if in_doubt else (Outcome.FAILED, str(refused))
            self._outcomes.note(call, outcome, error=text[:MAX_ERROR])
            self._stop(call, outcome, refused, text)

    def _fired(self, call: PlannedCall, returned: object) -> None:
        self._result.results[call.effect.effect_id] = returned
        raw = None
        try:
            raw = call.tool.signature.result.dump(returned)
        finally:  # it has returned, even if an interrupt hits the serialization
            self._outcomes.note(call, Outcome.FIRED, result=raw)
        if instead := call.tool.signature.result.loses(returned, raw):
            log.warning(_LOSSY_RESULT, call.tool.name, type(returned).__name__, instead)

    async def _record_failures(
        self, failed: Sequence[tuple[PlannedCall, Exception]], doubtful: set[str]
    ) -> None:
        """Write known outcomes before a probe runs for the rest, because a probe may take long."""
        probed = []
        for call, error in failed:
            known = call.effect.effect_id not in doubtful
            if known or find_probe(self._engine, call) is None:
                await self._record_failure(call, error, not_done=known)
            else:
                probed.append((call, error))
        if probed:
            self._outcomes.write()
        for call, error in probed:
            await self._record_failure(call, error, not_done=False)

    async def _record_failure(self, call: PlannedCall, error: Exception, *, not_done: bool) -> None:
        """Record one call that did not fire. A report of "not done" says nothing about an earlier try in doubt: that
        stays unknown unless a probe finds out.
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
                "%s did not happen (%s); its manifest allows that, and the others continue",
                call.tool.name,
                why,
            )
        else:
            self._stop(
                call, outcome, public_cause(call, error), why, None if found is None else found.conclusive_at
            )

    def _why(self, call: PlannedCall, error: BaseException) -> str:
        text = self._retries.describe(call, error)
        return f"{LEFT_RUNNING} ({text})" if call.effect.effect_id in self._left_running else text

    async def _run_probe(self, call: PlannedCall) -> ProbeFinding | None:
        left_running = call.effect.effect_id in self._left_running
        doubt = UncertainCall(self._engine.clock.wall(), left_running)
        return await run_probe_after_call(self._engine, call, doubt, self._authority.attempt_id)

    def _happened(self, call: PlannedCall, raw: bytes | None) -> None:
        """Record a call that a probe found fired. An unavailable result is None."""
        typed = None if raw is None else call.tool.signature.result.load(raw)
        self._result.results[call.effect.effect_id] = typed
        self._outcomes.note(call, Outcome.FIRED, result=raw)

    def _record_not_called(self, group: Sequence[PlannedCall], refused: Exception) -> None:
        """Record calls this run did not make. One that an earlier run left FIRING may have happened."""
        for call in group:
            firing = self._outcomes.state_of(call.effect.effect_id) is LocalState.FIRING
            outcome = Outcome.UNKNOWN if firing else Outcome.UNUSED
            self._outcomes.note(call, outcome, error=str(refused)[:MAX_ERROR])
            self._stop(call, outcome, refused, str(refused))

    def _stop(
        self, call: PlannedCall, outcome: Outcome, cause: Exception, why: str, probe_at: float | None = None
    ) -> None:
        """Keep the first effect that did not fire; an unknown outcome takes precedence over a known one."""
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
        """Record the state at this moment, then let the interrupt propagate. Calls still running may no longer act
        for their effect.
        """
        why = f"interrupted by {type(interrupt).__name__}"
        self._is_over = True  # a thread that has not called its tool yet does not call it
        for one in self._in_progress:
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
            # What was firing stays FIRING on disk, which recovery treats as unknown. The interrupt takes precedence.
            log.exception("the journal could not be written while %s was interrupted", group[0].tool.name)


def _groups(calls: Sequence[PlannedCall]) -> Iterator[tuple[PlannedCall, ...]]:
    """Split the calls into groups that fire concurrently. A call without a group fires alone."""
    for number, together in itertools.groupby(calls, key=lambda call: call.group):
        if number:
            yield tuple(together)
        else:
            yield from ((call,) for call in together)
