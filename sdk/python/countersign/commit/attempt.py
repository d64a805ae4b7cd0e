"""One run under one redemption: its time to fire, its retries, its outcomes, and what tools' errors mean.

Rules: the policy is asked again before more time is given. The first outcome of an effect is final. It is written
together with the FIRING of the next, at the end, and before a pause, a renewal, a probe or a sibling that still runs.
An unconfirmed write is repeated for what the journal lacks.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from typing_extensions import TypeIs

from countersign.clock import backoff
from countersign.commit.plan import Plan, PlannedCall
from countersign.concurrency import ToolTimeoutError
from countersign.contract.release import Kind
from countersign.contract.states import Outcome
from countersign.errors import (
    CountersignError,
    JournalError,
    NotDone,
    ReleaseRefused,
    ServiceRefused,
    ServiceUnavailable,
    ToolRaised,
)
from countersign.errors.tracebacks import skip_sdk_frames
from countersign.journal import EffectOutcome, Lease, LocalState
from countersign.live.sessions import has_no_arguments
from countersign.runtime import Engine
from countersign.service.enforcement import Permit
from countersign.texts import text_of
from countersign.tools.rest import RestUnknown
from countersign.tools.results import UnfinishedError
from countersign.waiting import CallRaised

MAX_ERROR: Final = 500  # characters of a tool's exception that people get to read
_EARLIER: Final = "; an earlier try "
_IN_DOUBT: Final = ", and may have happened"


def describe_error(call: PlannedCall, error: BaseException) -> str:
    """What people get to read of a tool's exception; only its kind where the tool has secret arguments."""
    return _describe(error, has_secrets=call.has_secrets)


def describe_block_error(error: BaseException, *, has_secrets: bool) -> str:
    """What people get to read of the exception that ended a block: as of a tool's. An error of ours that holds no
    argument keeps all its storable text.
    """
    if has_no_arguments(error) and (text := text_of(error)):
        return f"{type(error).__name__}: {text}"
    return _describe(error, has_secrets=has_secrets)


def _describe(error: BaseException, *, has_secrets: bool) -> str:
    kind = type(error).__name__
    text = "" if has_secrets else text_of(error)
    return f"{kind}: {text}"[:MAX_ERROR] if text else kind


def with_earlier_try(told: str, earlier: str) -> str:
    """Of a call whose last try knows that nothing happened, and whose `earlier` one did not: both, neither of which is
    cut off for the other's length.
    """
    rest = f"{_EARLIER}{earlier[: MAX_ERROR // 2]}{_IN_DOUBT}"
    return f"{told[: MAX_ERROR - len(rest)]}{rest}"


def last_try_was_not_done(why: str) -> bool:
    """Whether this is told of a call whose last try knew that nothing happened: its author did say so."""
    return _EARLIER in why


def public_cause(call: PlannedCall, error: Exception) -> Exception:
    """The tool's exception, as the one that is raised names its cause: its trace begins in the tool. Where the tool has
    secret arguments its place alone: a traceback prints its text, and the text of what it was raised from.
    """
    if call.has_secrets:
        return ToolRaised.of(call.tool.name, error)
    trace = skip_sdk_frames(error.__traceback__)
    if trace is None and not isinstance(error, ToolTimeoutError | UnfinishedError | CountersignError):
        return error  # a tool that is ours, as one of an MCP server: this may be a bug
    return error.with_traceback(trace)


def redact_exit(call: PlannedCall, leaving: SystemExit) -> SystemExit:
    """A tool's exit, as the program ends by it: Python prints its text. Where the tool has secret arguments its code
    alone, which is 1 of an exit with a text.
    """
    if not call.has_secrets:
        return leaving
    return SystemExit(leaving.code if isinstance(leaving.code, int | None) else 1)


def is_exit(answer: object) -> TypeIs[CallRaised]:
    """Whether a tool ended its program (`sys.exit`) instead of itself."""
    return isinstance(answer, CallRaised) and not isinstance(answer.error, Exception)


def is_not_done(call: PlannedCall, error: BaseException) -> bool:
    """Whether the tool itself says that nothing happened, by `NotDone` or by how it was declared. `RestApi` knows
    better, where it says that something may have been done.
    """
    if isinstance(error, ToolTimeoutError | RestUnknown | UnfinishedError) or not isinstance(
        error, Exception
    ):
        return False  # not the tool's word; or it ends the program: the call may have landed
    return isinstance(error, NotDone) or call.tool.failure_means == "not_done"


@dataclass(frozen=True, slots=True)
class Authority:
    """Under which redemption a run fires: of a whole transaction, or of one compensation of it."""

    txn: str
    staging: int
    attempt_id: str
    txn_digest: str
    run_key: str
    kind: Kind = "effect"

    @classmethod
    def of(cls, plan: Plan) -> Authority:
        """The redemption of a plan."""
        return cls(plan.txn, plan.staging, plan.attempt_id, plan.txn_digest, plan.run_key)


class PermitRefused(Exception):
    """The service did not extend the permit."""


class TooLateError(NotDone):
    """A call was not made, because its permit had run out by then."""


async def renew_permit(engine: Engine, authority: Authority, calls: Sequence[PlannedCall]) -> Permit:
    """Ask for a fresh `fire_by` for these effects; the policy is asked again.

    Raises:
        PermitRefused: it was not given.
    """
    asked_at = engine.clock.monotonic()
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


class FireWindow:
    """The time a run has to fire in: what its permit leaves, renewed where that is too little."""

    def __init__(self, engine: Engine, authority: Authority, permit: Permit | None) -> None:
        self._engine = engine
        self._authority = authority
        self._permit = permit

    async def take(self, calls: Sequence[PlannedCall], after: Sequence[PlannedCall]) -> None:
        """Renew where too little time is left, or where the manifest wants the policy asked before every
        fire.
        """
        if self.covers_all(calls):
            return
        self._permit = await renew_permit(self._engine, self._authority, [*calls, *after])
        late = next((call for call in calls if not self._covers(call)), None)
        if late is not None:
            raise PermitRefused(f"too little time was left to start {late.tool.name}")

    def covers_all(self, calls: Sequence[PlannedCall]) -> bool:
        """Whether nothing has to be asked of the service first."""
        return all(self._covers(call) and not call.manifest.recheck for call in calls)

    def _covers(self, call: PlannedCall) -> bool:
        return self._names(call) and self._seconds_left() >= self._engine.settings.fire_margin_seconds

    def _names(self, call: PlannedCall) -> bool:
        return self._permit is not None and call.effect.effect_id in self._permit.effect_ids

    def _seconds_left(self) -> float:
        return 0.0 if self._permit is None else self._permit.seconds_left(self._engine.clock)

    def require_time_left(self, call: PlannedCall) -> None:
        """The last look before a call: between the FIRING and here the process may have stood still.

        Raises:
            TooLateError: `fire_by` has passed, or the permit is none for it.
        """
        if not self._names(call) or self._seconds_left() <= 0:
            raise TooLateError("its time to fire was over before it was called")

    def lease_seconds(self, call: PlannedCall) -> float:
        """The lease outlasts fire_by and the tool: nobody takes over while a call may still be on its way."""
        return (
            max(self._seconds_left(), 0.0)
            + call.manifest.timeout_seconds
            + self._engine.journal.leases.seconds
        )


_MAX_PAUSE: Final = 30.0  # seconds; live effects hold their locks meanwhile
_MAX_EXTENSIONS: Final = 3  # times that a run gives more time to calls that came too late


def is_final(call: PlannedCall, error: BaseException) -> bool:
    """Whether it says that nothing happened, and no other try follows that could say otherwise."""
    if isinstance(error, TooLateError) or not is_not_done(call, error):
        return False
    return isinstance(error, NotDone) or not call.manifest.idempotent


class Retries:
    """How the calls of one run ended that did not fire, and how often they are given time."""

    def __init__(self, engine: Engine, time: FireWindow) -> None:
        self._engine = engine
        self._time = time
        self._ended: dict[str, list[Exception]] = {}
        self.cut_off: set[str] = set()  # effects an earlier run had begun, without writing how they ended
        self._late = 0

    def note(self, call: PlannedCall, error: Exception) -> None:
        """One try was made, and ended so."""
        self._ended.setdefault(call.effect.effect_id, []).append(error)

    def last(self, call: PlannedCall) -> Exception | None:
        """How the last try of it ended; None where there was none."""
        tries = self._ended.get(call.effect.effect_id)
        return tries[-1] if tries else None

    def told(self, call: PlannedCall, error: BaseException) -> str:
        """What people get to read of a try that ended so; where it knows that nothing happened, also of the one before
        it that does not: that one is why nobody knows.
        """
        told = describe_error(call, error)
        if not is_not_done(call, error):
            return told
        tries = self._ended.get(call.effect.effect_id, [])
        doubtful = next((one for one in reversed(tries) if not is_not_done(call, one)), None)
        if doubtful is not None:
            return with_earlier_try(told, f"raised {describe_error(call, doubtful)}")
        return with_earlier_try(told, "was cut off") if call.effect.effect_id in self.cut_off else told

    def may_retry(self, call: PlannedCall, error: Exception) -> bool:
        """Whether an idempotent tool may be called once more with the same call key (I-3)."""
        if not call.manifest.idempotent or isinstance(error, NotDone | UnfinishedError):
            return False  # NotDone is the tool's last word, and a tool that returns work does so every time
        most = call.tool.tries or self._engine.settings.idempotent_tries
        return len(self._ended[call.effect.effect_id]) < most

    async def extend(
        self, again: Sequence[PlannedCall], late: Sequence[PlannedCall], after: Sequence[PlannedCall]
    ) -> PermitRefused | None:
        """Time for those that may go on and for those that came too late; or why there is none."""
        self._late += bool(late)
        if self._late > _MAX_EXTENSIONS:
            return PermitRefused(f"its time to fire was over before it was called, {self._late} times")
        if again:
            tried = max(len(self._ended[call.effect.effect_id]) for call in again)
            pause = backoff(self._engine.settings.retry_base_seconds, tried, _MAX_PAUSE)
            await self._engine.waits.sleep(pause)
        try:
            await self._time.take([*again, *late], after)
        except PermitRefused as refused:
            return refused
        return None


log: Final = logging.getLogger("countersign")


class Outcomes:
    """The outcomes of one run, in the order in which they became known."""

    def __init__(self, engine: Engine, lease: Lease, authority: Authority) -> None:
        self._engine = engine
        self._lease = lease
        self._authority = authority
        self._unwritten: list[EffectOutcome] = []
        self._unconfirmed = False  # nobody knows whether they were written
        self._known: set[str] = set()

    def begin(self, calls: Sequence[PlannedCall], *, lease_seconds: float) -> None:
        """Write FIRING for these, and what became of those before, in one commit.

        Raises:
            JournalError: it could not be written; none of them may be called.
        """
        self._engine.journal.firing.begin(
            self._lease,
            self._authority.staging,
            *(call.effect.effect_id for call in calls),
            before=self._to_write(),
            lease_seconds=lease_seconds,
        )
        self._written()

    def note(
        self, call: PlannedCall, outcome: Outcome, *, result: bytes | None = None, error: str | None = None
    ) -> None:
        """Keep one until it is written; what this run has said of it already stands."""
        if self.knows(call):
            return
        self._known.add(call.effect.effect_id)
        self._unwritten.append(
            EffectOutcome(
                effect_id=call.effect.effect_id,
                outcome=outcome,
                attempt_id=self._authority.attempt_id,
                result=result,
                report_result=call.reports_result,
                error=error,
            )
        )

    def knows(self, call: PlannedCall) -> bool:
        """Whether this run has said what became of it."""
        return call.effect.effect_id in self._known

    def state_of(self, effect_id: str) -> LocalState | None:
        """As the journal has it."""
        return self._engine.journal.transactions.state_of(
            self._authority.txn, self._authority.staging, effect_id
        )

    def write(self) -> None:
        """Write what is not written yet.

        Raises:
            JournalError: it could not be; what was FIRING on the disk still is.
        """
        if unwritten := self._to_write():
            self._engine.journal.firing.write(self._lease, self._authority.staging, unwritten)
        self._written()

    def write_during_run(self) -> None:
        """The same while others still run. A journal in trouble ends none of them: it is told when all have ended."""
        try:
            self.write()
        except JournalError as error:
            log.warning("what has ended of a group could not be written while others of it run: %s", error)

    def _to_write(self) -> list[EffectOutcome]:
        if self._unconfirmed:
            self._unwritten = [
                done
                for done in self._unwritten
                if self.state_of(done.effect_id) is not LocalState(done.outcome.value)
            ]
        self._unconfirmed = True
        return self._unwritten

    def _written(self) -> None:
        self._unwritten, self._unconfirmed = [], False
