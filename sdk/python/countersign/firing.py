"""Step 7: journal FIRING, call the tool with the call key, journal the outcome; in order, and never on a
guess.

Rules: a tool is called only under a `Permit` for it that has time left; after FIRING is on disk; with
arguments made from the approved bytes. What an exception means is decided by the tool, not by hope: `NotDone`
(or a tool declared failure_means="not_done") is failed, anything else is unknown, unless the reviewed
manifest calls the tool idempotent, in which case the same call key is tried again while the permit lasts. The
first effect that did not fire ends the run, and the rest is unused; but one that failed, which its reviewed
manifest lets it (`on_exhausted="tool"`), ends nothing. What is unknown ends every run. Calls of one
`parallel()` group are marked FIRING in one commit and called at the same time; all of them have ended before
anything is decided.
"""

from __future__ import annotations

import functools
import itertools
import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from countersign import tracing
from countersign.contract.pointers import reads_result
from countersign.contract.release import Kind
from countersign.contract.states import Outcome
from countersign.current import FiringEffect, current_transaction, firing_effect
from countersign.enforcement import Permit
from countersign.engine import Engine
from countersign.errors import (
    JournalError,
    NotDone,
    NotStageable,
    ReleaseRefused,
    ServiceRefused,
    ServiceUnavailable,
    WorkerStopping,
)
from countersign.journal import Done, Lease, LocalState
from countersign.plan import Plan, PlannedCall
from countersign.threads import ToolTimeoutError
from countersign.waiting import Raised

log: Final = logging.getLogger("countersign")

_JITTER: Final = (0.5, 1.5)
_MAX_ERROR: Final = 500  # characters of a tool's exception that people get to read


@dataclass(slots=True)
class FireResult:
    """How far a run came. `stopped` is the effect that did not fire, with the exception that told us."""

    results: dict[str, object] = field(default_factory=dict)
    stopped: PlannedCall | None = None
    outcome: Outcome | None = None
    cause: Exception | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Authority:
    """Under which redemption a run fires: of a whole transaction, or of one compensation of it."""

    txn: str
    staging: int
    attempt_id: str
    txn_digest: str
    kind: Kind = "effect"

    @classmethod
    def of(cls, plan: Plan) -> Authority:
        """The redemption of a plan."""
        return cls(plan.txn, plan.staging, plan.attempt_id, plan.txn_digest)


class PermitRefused(Exception):
    """The service did not extend the permit."""


class FireRun:
    """Fires calls in order, under one redemption."""

    def __init__(self, engine: Engine, lease: Lease, authority: Authority, permit: Permit | None) -> None:
        self._engine = engine
        self._lease = lease
        self._authority = authority
        self._permit = permit
        self._unwritten: list[Done] = []  # the last outcome, written together with the next FIRING
        self._result = FireResult()

    async def run(self, calls: Sequence[PlannedCall]) -> FireResult:
        """Fire these calls, in order; those of one group at the same time. On return every outcome is on disk."""
        after = tuple(calls)
        for group in _groups(calls):
            self._stop_if_asked()
            after = after[len(group) :]
            try:
                await self._fire(group, after)
            except (PermitRefused, NotStageable) as refused:
                self._never_called(group, refused)
            except BaseException as interrupt:
                # Ctrl-C, cancellation, a lost lease: the call may have happened. Nothing is asked of the network now.
                self._interrupted(group, after, interrupt)
                raise
            if self._result.stopped is not None:
                self._rest_unused(after)
                break
        self._write()
        return self._result

    def _stop_if_asked(self) -> None:
        """Between two effects: what is done is written down, what is left stays redeemed and not begun."""
        try:
            self._engine.require_going_on()
        except WorkerStopping:
            self._write()
            raise

    async def _fire(self, group: Sequence[PlannedCall], after: Sequence[PlannedCall]) -> None:
        for call in group:
            call.kwargs()  # bytes that do not fit the signature are refused before FIRING
        # else an earlier run may have done it already
        doubtful = {call.effect.effect_id for call in group if self._state_of(call) is LocalState.FIRING}
        await self._have_time(group, after)
        self._engine.journal.firing.begin(
            self._lease,
            self._authority.staging,
            *(call.effect.effect_id for call in group),
            before=self._unwritten,
            lease_seconds=max(self._lease_seconds(call) for call in group),
        )
        self._unwritten = []
        waiting, tried = list(group), 0
        while waiting:
            tried += 1
            # Made afresh for every try: a tool that changed its arguments must not be called with the changes.
            answers = await self._engine.waits.together(
                [functools.partial(self._traced, call, call.kwargs()) for call in waiting]
            )
            failed = []
            for call, answer in zip(waiting, answers, strict=True):
                if isinstance(answer, Raised):
                    failed.append((call, answer.error))
                else:
                    self._fired(call, answer)
            doubtful |= {call.effect.effect_id for call, error in failed if not _says_not_done(call, error)}
            again = {call.effect.effect_id for call, error in failed if self._may_repeat(call, error, tried)}
            waiting = [call for call, _ in failed if call.effect.effect_id in again]
            if waiting and not await self._have_time_again(waiting, after, tried):
                waiting = []
            for call, error in failed:
                if call not in waiting:
                    self._not_fired(call, error, not_done=call.effect.effect_id not in doubtful)

    async def _traced(self, call: PlannedCall, kwargs: dict[str, Any]) -> object:
        facts = {"txn": call.effect.txn, "effect_id": call.effect.effect_id, "tool": call.effect.tool}
        with tracing.span("countersign fire", kind=self._authority.kind, **facts):
            return await self._call(call, kwargs)

    async def _call(self, call: PlannedCall, kwargs: dict[str, Any]) -> object:
        effect = call.effect
        token = firing_effect.set(
            FiringEffect(
                effect.effect_id, effect.call_key, effect.txn, effect.tool, self._authority.attempt_id
            )
        )
        outer = current_transaction.get()
        current_transaction.set(
            None
        )  # a tool that calls another gated tool would fire it unasked: it is outside
        try:
            seconds = call.manifest.timeout_seconds if call.tool.own_thread or call.tool.is_async else None
            return await self._engine.waits.call(call.tool.fn, kwargs, seconds)
        finally:
            current_transaction.set(outer)
            firing_effect.reset(token)

    def _may_repeat(self, call: PlannedCall, error: Exception, tried: int) -> bool:
        """Whether an idempotent tool may be called once more with the same call key (I-3)."""
        if not call.manifest.idempotent or isinstance(error, NotDone):
            return False  # NotDone is the tool's last word
        return tried < (call.tool.tries or self._engine.settings.idempotent_tries)

    async def _have_time_again(
        self, calls: Sequence[PlannedCall], after: Sequence[PlannedCall], tried: int
    ) -> bool:
        """Wait longer each time, by chance a little more or less, so that many agents do not come back at once."""
        base = self._engine.settings.retry_base_seconds * 2**tried
        await self._engine.waits.sleep(base * random.uniform(*_JITTER))  # noqa: S311 - spread, not secrecy
        try:
            await self._have_time(calls, after)
        except PermitRefused:
            return False
        return True

    async def _have_time(self, calls: Sequence[PlannedCall], after: Sequence[PlannedCall]) -> None:
        """Renew where too little time is left, or where the manifest wants the policy asked before every
        fire.
        """
        if all(self._covers(call) and not call.manifest.recheck for call in calls):
            return
        self._permit = await renew(self._engine, self._authority, [*calls, *after])
        late = next((call for call in calls if not self._covers(call)), None)
        if late is not None:
            raise PermitRefused(f"too little time was left to start {late.tool.name}")

    def _covers(self, call: PlannedCall) -> bool:
        covered = self._permit is not None and call.effect.effect_id in self._permit.effect_ids
        return covered and self._seconds_left() >= self._engine.settings.fire_margin_seconds

    def _seconds_left(self) -> float:
        return 0.0 if self._permit is None else self._permit.seconds_left(self._engine.clock)

    def _lease_seconds(self, call: PlannedCall) -> float:
        """The lease outlasts fire_by and the tool: nobody takes over while a call may still be on its way."""
        return (
            max(self._seconds_left(), 0.0)
            + call.manifest.timeout_seconds
            + self._engine.journal.leases.seconds
        )

    def _fired(self, call: PlannedCall, returned: object) -> None:
        raw = call.tool.signature.dump_result(returned)
        self._result.results[call.effect.effect_id] = returned
        self._note(call, Outcome.FIRED, result=raw)

    def _not_fired(self, call: PlannedCall, error: Exception, *, not_done: bool) -> None:
        """One call that says "not done" says nothing about another before it: then it stays unknown."""
        outcome = Outcome.FAILED if not_done else Outcome.UNKNOWN
        why = describe_error(call, error)
        self._note(call, outcome, error=why)
        if not_done and call.manifest.may_fail and self._authority.kind == "effect":
            log.warning(
                "%s did not happen (%s); its manifest lets it fail, and the others go on", call.tool.name, why
            )
        else:
            self._stop(call, outcome, error, why)

    def _never_called(self, group: Sequence[PlannedCall], refused: Exception) -> None:
        """Not called in this run; an idempotent effect that an earlier run left FIRING may have happened all
        the same.
        """
        for call in group:
            firing = self._state_of(call) is LocalState.FIRING
            outcome = Outcome.UNKNOWN if firing else Outcome.UNUSED
            self._note(call, outcome, error=str(refused)[:_MAX_ERROR])
            self._stop(call, outcome, refused, str(refused))

    def _stop(self, call: PlannedCall, outcome: Outcome, cause: Exception, why: str) -> None:
        """The first that did not fire is told; but what is unknown goes before what is known."""
        known = self._result.outcome
        if known is None or (outcome is Outcome.UNKNOWN and known is not Outcome.UNKNOWN):
            self._result.stopped, self._result.outcome = call, outcome
            self._result.cause, self._result.why = cause, why

    def _rest_unused(self, rest: Sequence[PlannedCall]) -> None:
        for call in rest:
            self._note(call, Outcome.UNUSED)

    def _interrupted(
        self, group: Sequence[PlannedCall], rest: Sequence[PlannedCall], interrupt: BaseException
    ) -> None:
        """Write what is true at this moment, and let the interrupt go on."""
        why = f"interrupted by {type(interrupt).__name__}"
        known = {done.effect_id for done in self._unwritten}
        try:
            for call in group:
                if call.effect.effect_id not in known:
                    firing = self._state_of(call) is LocalState.FIRING
                    self._note(call, Outcome.UNKNOWN if firing else Outcome.UNUSED, error=why)
            self._rest_unused(rest)
            self._write()
        except JournalError:
            # What was firing stays FIRING on disk, which recovery reads as unknown; the interrupt matters more.
            log.exception("the journal could not be written while %s was interrupted", group[0].tool.name)

    def _state_of(self, call: PlannedCall) -> LocalState | None:
        return self._engine.journal.transactions.state_of(
            self._authority.txn, self._authority.staging, call.effect.effect_id
        )

    def _note(
        self, call: PlannedCall, outcome: Outcome, *, result: bytes | None = None, error: str | None = None
    ) -> None:
        self._unwritten.append(
            Done(
                effect_id=call.effect.effect_id,
                outcome=outcome,
                attempt_id=self._authority.attempt_id,
                result=result,
                report_result=needs_result(call),
                error=error,
            )
        )

    def _write(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        if unwritten:
            self._engine.journal.firing.write(self._lease, self._authority.staging, unwritten)


def _groups(calls: Sequence[PlannedCall]) -> Iterator[tuple[PlannedCall, ...]]:
    """What fires at the same time: neighbours of one group. A call without a group fires alone."""
    for number, together in itertools.groupby(calls, key=lambda call: call.group):
        if number:
            yield tuple(together)
        else:
            yield from ((call,) for call in together)


async def renew(engine: Engine, authority: Authority, calls: Sequence[PlannedCall]) -> Permit:
    """Ask for a fresh `fire_by` for these effects; the policy is asked again.

    Raises:
        PermitRefused: it was not given.
    """
    asked_at = engine.clock.steady()
    ids = [call.effect.effect_id for call in calls]
    try:
        view = await engine.service.renew(authority.attempt_id, ids)
        if not view.redeemed or view.receipt is None:
            raise PermitRefused("the service did not extend the time to fire")
        return await engine.enforcer.permit(
            engine.service,
            [call.effect for call in calls],
            view.receipt,
            attempt_id=authority.attempt_id,
            txn_digest=authority.txn_digest,
            asked_at=asked_at,
            kind=authority.kind,
        )
    except (ServiceRefused, ServiceUnavailable, ReleaseRefused) as error:
        raise PermitRefused(str(error)) from error


def needs_result(call: PlannedCall) -> bool:
    """Whether the service needs the tool's result: only if a compensation takes an argument from it."""
    compensation = call.effect.compensation
    return compensation is not None and reads_result(compensation.map)


def describe_error(call: PlannedCall, error: BaseException) -> str:
    """What people get to read of a tool's exception; only its kind where the tool has secret arguments."""
    kind = type(error).__name__
    text = "" if call.manifest.secret else str(error)
    return f"{kind}: {text}"[:_MAX_ERROR] if text else kind


def _says_not_done(call: PlannedCall, error: Exception) -> bool:
    if isinstance(error, ToolTimeoutError):
        return False  # ours, not the tool's: the call may have landed
    return isinstance(error, NotDone) or call.tool.failure_means == "not_done"
