"""Compensate the fired effects of a transaction that did not commit, newest first.

Rules: an outcome is reported before its compensation is requested, because the service builds the arguments from it. A
compensation is journaled before it is redeemed, and redeemed once, even after a crash. Its arguments are computed here
too and must have the digest that the service signed. If it needs a review, or the service is unavailable, it stays
`compensating` and `countersign resume` continues it. An effect without a compensation, or with one that cannot be
built, stays in effect and becomes a task for a person. No text quotes a secret.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from countersign.commit.attempt import Authority
from countersign.commit.executor import EffectExecutor
from countersign.commit.plan import Plan, PlannedCall
from countersign.commit.probes import CRASHED, UncertainCall, run_probe
from countersign.commit.reconciliation import flush_outbox
from countersign.commit.review import pending_review
from countersign.commit.tool_errors import MAX_ERROR
from countersign.contract import digests
from countersign.contract.admission import JSON, load
from countersign.contract.codes import ErrorCode
from countersign.contract.compensation_sources import compensation_args
from countersign.contract.digests import canonicalize
from countersign.contract.effect import Compensation, Effect
from countersign.contract.errors import ContractError
from countersign.contract.states import ENDED_UNREDEEMED, EffectState, Outcome
from countersign.contract.wire import CompensationView, EffectView
from countersign.errors import (
    CountersignError,
    JournalError,
    ReleaseRefused,
    ServiceRefused,
    ServiceUnavailable,
)
from countersign.errors.pending import PendingReview
from countersign.journal import EffectOutcome, EffectRecord, Lease, LocalState
from countersign.journal.records import COMPENSATE_LANE, STAGED_LANE
from countersign.journal.states import IN_DOUBT
from countersign.runtime import Engine
from countersign.service.enforcement import Permit

_REFUSAL_TEXTS: Final = {  # without the advice in the error's own text
    ServiceRefused: "{0.detail}",
    ReleaseRefused: "{0.reason}",
    ServiceUnavailable: "the policy service did not answer ({0.why})",
}


@dataclass(frozen=True, slots=True)
class CompensationResult:
    """Reviews of compensations that wait for people, and the reason for each call that was not compensated, by its
    label.
    """

    reviews: tuple[PendingReview, ...]
    uncompensated: Mapping[str, str]

    @property
    def note(self) -> str | None:
        """The note for the transaction record."""
        return "; ".join(self._lines()) or None

    def explain(self, why: str) -> str:
        """The reason why the transaction failed, followed by the calls that were not compensated."""
        return "; ".join([why, *self._lines()])

    def _lines(self) -> list[str]:
        return [f"{name} was not compensated: {why}" for name, why in self.uncompensated.items()]


def describe_refusal(call: PlannedCall, error: CountersignError) -> str:
    """Why a call is not compensated, in the refusal's own words. Only the error type if it has secrets."""
    if call.has_secrets:
        return f"{type(error).__name__}, whose text is hidden because it may quote secret arguments"
    message = next(
        (text.format(error) for kind, text in _REFUSAL_TEXTS.items() if isinstance(error, kind)), str(error)
    )
    return message[:MAX_ERROR]


def describe_end(call: PlannedCall, undo: EffectView) -> str:
    """Why the service no longer allows a call's compensation."""
    reasons = [] if call.has_secrets else [one.text for one in undo.decision.reasons]
    message = f": {'; '.join(reasons)}" if reasons else ""
    return f"{undo.tool} is {undo.state.value}{message}"


log: Final = logging.getLogger("countersign")
_ATTEMPT_BYTES: Final = 16
_NOT_COMPENSATED: Final = ENDED_UNREDEEMED | {EffectState.FAILED, EffectState.UNUSED}
_COMPENSABLE: Final = frozenset({LocalState.FIRED, LocalState.COMPENSATING})
_GIVEN_UP: Final = ErrorCode.ILLEGAL_STATE.value


_ARCHIVED: Final = (
    "the policy service has archived it, so a person decides; close it by `countersign journal close`"
)


def is_left_in_archive(row: EffectRecord) -> bool:
    """Whether its compensation was refused because the service has archived the effect. No task is left there."""
    return row.state is LocalState.COMPENSATION_FAILED and (row.error or "").startswith(_ARCHIVED)


class Compensator:
    """Compensates the fired effects of one plan, as far as possible now."""

    def __init__(self, engine: Engine, lease: Lease, plan: Plan) -> None:
        self._engine = engine
        self._lease = lease
        self._plan = plan
        self._reviews: list[PendingReview] = []
        self._unfinished: dict[str, str] = {}

    async def run(self) -> CompensationResult:
        """Compensate newest first. One that cannot finish now does not block the others."""
        states = self._rows()
        for call in reversed(self._plan.calls):
            row = states.get(call.effect.effect_id)
            if row is None or row.state not in _COMPENSABLE or call.effect.compensation is None:
                continue
            try:
                await self._compensate(call, call.effect.compensation, row)
            except JournalError:
                raise
            except CountersignError as error:
                await self._not_finished(call, row, error)
        failed = {
            row.label: row.error
            for row in self._rows().values()
            if row.state is LocalState.COMPENSATION_FAILED and row.error
        }
        return CompensationResult(tuple(self._reviews), self._unfinished | failed)

    async def _not_finished(self, call: PlannedCall, row: EffectRecord, error: CountersignError) -> None:
        """Retry later, unless the service reports that the compensation can never be built: that is final."""
        why = describe_refusal(call, error)
        log.warning("the compensation of %s is not finished: %s", call.tool.name, why)
        if (
            isinstance(error, ServiceRefused)
            and error.problem_code == _GIVEN_UP
            and await self._has_failed_finally(call)
        ):
            self._settle(call, LocalState.COMPENSATION_FAILED, why)
        else:
            self._unfinished[row.label] = why

    async def _has_failed_finally(self, call: PlannedCall) -> bool:
        """Whether the service records the compensation as failed for good."""
        try:
            view = await self._engine.service.view(self._plan.txn)
        except (ServiceRefused, ServiceUnavailable):
            return False
        states = {one.effect_id: one.state for one in view.effects}
        return states.get(call.effect.effect_id) is EffectState.COMPENSATION_FAILED

    async def _compensate(self, call: PlannedCall, rule: Compensation, row: EffectRecord) -> None:
        if not await flush_outbox(self._engine, self._plan.txn):
            return
        try:
            view = await self._engine.service.compensate(self._plan.txn, call.effect.effect_id)
        except ServiceRefused as refused:
            if refused.problem_code != ErrorCode.ALREADY_REDEEMED:
                raise
            self._settle(call, LocalState.COMPENSATION_FAILED, f"{_ARCHIVED}: {refused.detail}")
            return
        if self._is_settled_already(call, view):
            return
        planned = self._planned(call, rule, row, view)
        if view.effect.state is EffectState.UNKNOWN:
            await self._known_by_probe(call, planned)
            return  # without an answer of its probe, it waits for a person
        attempt_id = self._engine.journal.settlements.begin_compensation(
            self._lease,
            self._plan.staging,
            planned.effect,
            secret=planned.secret,
            compensates=call.effect.effect_id,
            attempt_id=secrets.token_urlsafe(_ATTEMPT_BYTES),
        )
        if await self._known_by_probe(call, planned) or await self._unknown_since_crash(planned, attempt_id):
            return
        permit = await self._permit(call, planned, attempt_id, view)
        if permit is not None:
            await self._fire(call, planned, permit)

    def _planned(
        self, call: PlannedCall, rule: Compensation, row: EffectRecord, view: CompensationView
    ) -> PlannedCall:
        """The compensating effect, built from our own bytes. Its digest must be the one the service signed.

        Raises:
            ReleaseRefused: it cannot be built, or the service's digest differs.
        """
        tool = self._engine.registry.require_staged(rule.tool, f"it compensates {call.tool.name!r}")
        manifest = self._engine.journal.manifests.get(rule.tool, rule.tool_digest)
        result: JSON = None if row.result is None else load(row.result)
        try:
            args = compensation_args(rule.map, args=call.effect.args, result=result)
            effect = Effect(
                agent=self._plan.agent,
                txn=self._plan.txn,
                effect_id=view.effect.effect_id,
                seq=view.effect.seq,
                tool=rule.tool,
                tool_digest=rule.tool_digest,
                resource=manifest.resource_of(args),
                args_bytes=canonicalize(args),
                call_key=digests.compensation_call_key(effect_id=call.effect.effect_id, tool=rule.tool),
            )
        except ContractError as error:
            raise ReleaseRefused(
                self._plan.txn, f"no compensation can be built for {call.tool.name}: {error}"
            ) from error
        if effect.digest != view.effect.effect_digest:
            raise ReleaseRefused(
                self._plan.txn, f"the service compensates {call.tool.name} with other bytes than ours"
            )
        return PlannedCall(tool, manifest, effect, inherits_secrets=call.has_secrets)

    async def _permit(
        self, call: PlannedCall, planned: PlannedCall, attempt_id: str, view: CompensationView
    ) -> Permit | None:
        """Redeem the compensation's release. None while it waits for a review."""
        asked_at = self._engine.clock.monotonic()
        releases = []
        if view.effect.state is EffectState.REDEEMED:
            answer = await self._engine.service.renew(attempt_id, [planned.effect.effect_id])
        elif view.release is not None:
            releases = [
                await self._engine.enforcer.compensation_release(
                    self._engine.service,
                    planned.effect,
                    view.release,
                    compensates=call.effect.effect_id,
                    txn_digest=self._plan.txn_digest,
                )
            ]
            answer = await self._engine.service.redeem([releases[0].token], attempt_id)
        else:
            if view.effect.state is EffectState.REVIEW:
                self._reviews.append(pending_review(view.effect))
            return None
        if not answer.redeemed or answer.receipt is None:
            return None
        permit = await self._engine.enforcer.permit(
            self._engine.service,
            [planned.effect],
            answer.receipt,
            attempt_id=attempt_id,
            txn_digest=self._plan.txn_digest,
            asked_at=asked_at,
            releases=releases,
            kind="compensate",
        )
        self._engine.journal.settlements.compensation_redeemed(
            self._lease, self._plan.staging, planned.effect.effect_id
        )
        return permit

    async def _fire(self, call: PlannedCall, planned: PlannedCall, permit: Permit) -> None:
        authority = replace(Authority.of(self._plan), attempt_id=permit.attempt_id, kind="compensate")
        done = await EffectExecutor(self._engine, self._lease, authority, permit).run([planned])
        if done.stopped is None:
            self._settle(call, LocalState.COMPENSATED)
        elif done.outcome is not Outcome.UNKNOWN:
            why = f"{planned.tool.name} did not happen: {done.why}"
            self._settle(call, LocalState.COMPENSATION_FAILED, why)
        await flush_outbox(self._engine, self._plan.txn)

    def _is_settled_already(self, call: PlannedCall, view: CompensationView) -> bool:
        """Record an outcome that a person, or an earlier run of ours, has already reported."""
        if view.effect.state is EffectState.FIRED:
            self._settle(call, LocalState.COMPENSATED)
        elif view.effect.state in _NOT_COMPENSATED:
            self._settle(call, LocalState.COMPENSATION_FAILED, describe_end(call, view.effect))
        else:
            return False
        return True

    async def _known_by_probe(self, call: PlannedCall, planned: PlannedCall) -> bool:
        """Whether the compensation's own probe could determine the outcome. False also if it did not happen and may
        be called again.
        """
        row = self._rows(COMPENSATE_LANE).get(planned.effect.effect_id)
        if row is None or row.state not in IN_DOUBT or row.attempt_id is None:
            return False
        doubt = UncertainCall.of(row, planned, self._engine.clock.wall())
        found = await run_probe(self._engine, planned, doubt, row.attempt_id)
        again = planned.manifest.idempotent and row.state is LocalState.FIRING
        if found is None or found.outcome is Outcome.UNKNOWN or (found.outcome is Outcome.FAILED and again):
            return False
        done = EffectOutcome(
            row.effect_id, found.outcome, row.attempt_id, result=found.result, error=found.why[:MAX_ERROR]
        )
        self._engine.journal.effect_log.write(self._lease, self._plan.staging, [done])
        if found.outcome is Outcome.FIRED:
            self._settle(call, LocalState.COMPENSATED)
        else:
            self._settle(call, LocalState.COMPENSATION_FAILED, found.why)
        await flush_outbox(self._engine, self._plan.txn)
        return True

    async def _unknown_since_crash(self, planned: PlannedCall, attempt_id: str) -> bool:
        """Record as unknown a compensation that was firing when its process died. An idempotent one may be called
        again.
        """
        row = self._rows(COMPENSATE_LANE).get(planned.effect.effect_id)
        if row is None or row.state is not LocalState.FIRING or planned.manifest.idempotent:
            return False
        done = EffectOutcome(planned.effect.effect_id, Outcome.UNKNOWN, attempt_id, error=CRASHED)
        self._engine.journal.effect_log.write(self._lease, self._plan.staging, [done])
        await flush_outbox(self._engine, self._plan.txn)
        return True

    def _settle(self, call: PlannedCall, to: LocalState, why: str | None = None) -> None:
        self._engine.journal.settlements.settle_compensated(
            self._lease, self._plan.staging, call.effect.effect_id, to, why and why[:MAX_ERROR]
        )

    def _rows(self, lane: str = STAGED_LANE) -> dict[str, EffectRecord]:
        record = self._engine.journal.transactions.require(self._plan.txn)
        return {row.effect_id: row for row in self._engine.journal.transactions.effects(record, lane)}
