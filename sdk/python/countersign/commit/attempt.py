"""One run under one redemption: its fire window, retries and outcomes.

Rules: the policy is evaluated again before a fire window is extended. The first outcome of an effect is final. It is
written with the FIRING of the next effect, at the end, and before a pause, a renewal, a probe or a sibling that still
runs. A write without confirmation is repeated for outcomes that the journal lacks.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from typing_extensions import TypeIs

from countersign.clock import backoff
from countersign.commit.plan import Plan, PlannedCall
from countersign.commit.tool_errors import TooLateError, describe_error, is_not_done, with_earlier_try
from countersign.concurrency import CallRaised
from countersign.contract.release import Kind
from countersign.contract.states import Outcome
from countersign.errors import (
    JournalError,
    NotDone,
    ReleaseRefused,
    ServiceRefused,
    ServiceUnavailable,
)
from countersign.journal import EffectOutcome, Lease, LocalState
from countersign.runtime import Engine
from countersign.service.enforcement import Permit
from countersign.tools.results import UnfinishedError


def is_exit(answer: object) -> TypeIs[CallRaised]:
    """Whether a tool ended the program (`sys.exit`)."""
    return isinstance(answer, CallRaised) and not isinstance(answer.error, Exception)


@dataclass(frozen=True, slots=True)
class Authority:
    """The redemption a run fires under: of a whole transaction, or of one compensation in it."""

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


async def renew_permit(engine: Engine, authority: Authority, calls: Sequence[PlannedCall]) -> Permit:
    """Request a new `fire_by` for these effects. The service evaluates the policy again.

    Raises:
        PermitRefused: the service did not grant it.
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
    """The time in which a run may fire: the rest of its permit, renewed when that is too short."""

    def __init__(self, engine: Engine, authority: Authority, permit: Permit | None) -> None:
        self._engine = engine
        self._authority = authority
        self._permit = permit

    async def take(self, calls: Sequence[PlannedCall], after: Sequence[PlannedCall]) -> None:
        """Renew if too little time is left, or if the manifest requires a policy check before every fire.

        Raises:
            PermitRefused: the service did not grant it, or granted too little.
        """
        if self.covers_all(calls):
            return
        self._permit = await renew_permit(self._engine, self._authority, [*calls, *after])
        late = next((call for call in calls if not self._covers(call)), None)
        if late is not None:
            raise PermitRefused(f"too little time was left to start {late.tool.name}")

    def covers_all(self, calls: Sequence[PlannedCall]) -> bool:
        """Whether these calls may start without a request to the service."""
        return all(self._covers(call) and not call.manifest.recheck for call in calls)

    def _covers(self, call: PlannedCall) -> bool:
        return self._names(call) and self._seconds_left() >= self._engine.settings.fire_margin_seconds

    def _names(self, call: PlannedCall) -> bool:
        return self._permit is not None and call.effect.effect_id in self._permit.effect_ids

    def _seconds_left(self) -> float:
        return 0.0 if self._permit is None else self._permit.seconds_left(self._engine.clock)

    def require_time_left(self, call: PlannedCall) -> None:
        """Last check before a call. The process may have been suspended since FIRING was written.

        Raises:
            TooLateError: `fire_by` has passed, or the permit does not cover this effect.
        """
        if not self._names(call) or self._seconds_left() <= 0:
            raise TooLateError("its fire window closed before it was called")

    def lease_seconds(self, call: PlannedCall) -> float:
        """A lease that outlasts `fire_by` and the tool, so that no other process takes over while a call may still
        be in flight.
        """
        return (
            max(self._seconds_left(), 0.0)
            + call.manifest.timeout_seconds
            + self._engine.journal.leases.seconds
        )


_MAX_PAUSE: Final = 30.0  # seconds; live effects hold their locks meanwhile
_MAX_EXTENSIONS: Final = 3  # extensions of a run's window for calls that came too late


class Retries:
    """The failed tries of one run, and how often their fire window was extended."""

    def __init__(self, engine: Engine, time: FireWindow) -> None:
        self._engine = engine
        self._time = time
        self._ended: dict[str, list[Exception]] = {}
        self.cut_off: set[str] = set()  # effects an earlier run left without an outcome
        self._late = 0

    def note(self, call: PlannedCall, error: Exception) -> None:
        """Record one failed try."""
        self._ended.setdefault(call.effect.effect_id, []).append(error)

    def last(self, call: PlannedCall) -> Exception | None:
        """The error of the last try, or None if there was none."""
        tries = self._ended.get(call.effect.effect_id)
        return tries[-1] if tries else None

    def describe(self, call: PlannedCall, error: BaseException) -> str:
        """The text people see for a failed try. If this try did nothing but an earlier one is in doubt, both are
        described: the earlier one is the reason why the outcome is unknown.
        """
        message = describe_error(call, error)
        if not is_not_done(call, error):
            return message
        tries = self._ended.get(call.effect.effect_id, [])
        doubtful = next((one for one in reversed(tries) if not is_not_done(call, one)), None)
        if doubtful is not None:
            return with_earlier_try(message, f"raised {describe_error(call, doubtful)}")
        return with_earlier_try(message, "was cut off") if call.effect.effect_id in self.cut_off else message

    def may_retry(self, call: PlannedCall, error: Exception) -> bool:
        """Whether an idempotent tool may be called again with the same call key (I-3)."""
        if not call.manifest.idempotent or isinstance(error, NotDone | UnfinishedError):
            return False  # NotDone is final; a tool that returns an awaitable does so every time
        most = call.tool.tries or self._engine.settings.idempotent_tries
        return len(self._ended[call.effect.effect_id]) < most

    async def extend(
        self, again: Sequence[PlannedCall], late: Sequence[PlannedCall], after: Sequence[PlannedCall]
    ) -> PermitRefused | None:
        """Pause, then extend the fire window for calls to retry and calls that came too late. Returns why it was
        refused.
        """
        self._late += bool(late)
        if self._late > _MAX_EXTENSIONS:
            return PermitRefused(f"its fire window closed before it was called, {self._late} times")
        if again:
            tried = max(len(self._ended[call.effect.effect_id]) for call in again)
            pause = backoff(self._engine.settings.retry_base_seconds, tried, _MAX_PAUSE)
            await self._engine.executor.sleep(pause)
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
        self._unconfirmed = False  # it is unknown whether they were written
        self._known: set[str] = set()

    def begin(self, calls: Sequence[PlannedCall], *, lease_seconds: float) -> None:
        """Write FIRING for these calls together with the outcomes so far, in one commit.

        Raises:
            JournalError: the write failed; none of these calls may be made.
        """
        self._engine.journal.effect_log.begin(
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
        """Queue an outcome to be written. The first outcome of an effect in this run is final."""
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
        """Whether this run has recorded an outcome for the call."""
        return call.effect.effect_id in self._known

    def state_of(self, effect_id: str) -> LocalState | None:
        """The effect's state in the journal."""
        return self._engine.journal.transactions.state_of(
            self._authority.txn, self._authority.staging, effect_id
        )

    def write(self) -> None:
        """Write the queued outcomes.

        Raises:
            JournalError: the write failed; what was FIRING on disk still is.
        """
        if unwritten := self._to_write():
            self._engine.journal.effect_log.write(self._lease, self._authority.staging, unwritten)
        self._written()

    def write_during_run(self) -> None:
        """Write the queued outcomes while other calls of the group still run. A journal error is logged and raised
        by the next write.
        """
        try:
            self.write()
        except JournalError as error:
            log.warning("outcomes of a group could not be written while others of it still run: %s", error)

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
