"""Compensate the fired effects of a transaction that did not go through, newest first.

Rules: an outcome is reported before its compensation is asked for, for the service builds the arguments from it; a
compensation is journaled before it is redeemed and redeemed once, whatever crashes; its arguments are computed here as
well and must have the digest the service signed. Where people are asked first, or the service is away, it stays
`compensating` and `countersign resume` goes on. What has no compensation, or one that cannot be built, stands, and is a
task for a person. No text repeats what is secret.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from countersign.commit.attempt import MAX_ERROR, Authority
from countersign.commit.executor import EffectExecutor
from countersign.commit.plan import Plan, PlannedCall
from countersign.commit.probes import CRASHED, UncertainCall, run_probe
from countersign.commit.reconciliation import flush_outbox
from countersign.commit.review import pending_review
from countersign.contract import names
from countersign.contract.admission import JSON, load
from countersign.contract.canonical import canonicalize
from countersign.contract.codes import ErrorCode
from countersign.contract.effect import Compensation, Effect
from countersign.contract.errors import ContractError
from countersign.contract.pointers import compensation_args
from countersign.contract.states import ENDED_UNREDEEMED, EffectState, Outcome
from countersign.contract.wire import CompensationView, EffectView
from countersign.errors import (
    CountersignError,
    JournalError,
    ReleaseRefused,
    ServiceRefused,
    ServiceUnavailable,
)
from countersign.errors.reasons import PendingReview
from countersign.journal import EffectOutcome, EffectRecord, Lease, LocalState
from countersign.journal.queries import COMPENSATE_LANE, STAGED_LANE
from countersign.journal.states import IN_DOUBT
from countersign.runtime import Engine
from countersign.service.enforcement import Permit

_REFUSAL_TEXTS: Final = {  # without the advice that goes with it where it is raised
    ServiceRefused: "{0.detail}",
    ReleaseRefused: "{0.reason}",
    ServiceUnavailable: "the policy service did not answer ({0.why})",
}


@dataclass(frozen=True, slots=True)
class CompensationResult:
    """What people are asked about first, and by the names of calls why what is not taken back is not."""

    reviews: tuple[PendingReview, ...]
    uncompensated: Mapping[str, str]

    @property
    def note(self) -> str | None:
        """For the transaction."""
        return "; ".join(self._lines()) or None

    def beside(self, why: str) -> str:
        """Why the transaction did not go through, and this."""
        return "; ".join([why, *self._lines()])

    def _lines(self) -> list[str]:
        return [f"{name} was not taken back: {why}" for name, why in self.uncompensated.items()]


def describe_refusal(call: PlannedCall, error: CountersignError) -> str:
    """Why a call is not taken back, in the words of whoever refused; where it has secrets, which those may repeat, only
    what kind of refusal it was.
    """
    if call.has_secrets:
        return f"{type(error).__name__}, whose text is not told, for it may repeat secret arguments"
    told = next(
        (text.format(error) for kind, text in _REFUSAL_TEXTS.items() if isinstance(error, kind)), str(error)
    )
    return told[:MAX_ERROR]


def describe_end(call: PlannedCall, undo: EffectView) -> str:
    """Why the service lets a call's compensation go no more."""
    reasons = [] if call.has_secrets else [one.text for one in undo.decision.reasons]
    told = f": {'; '.join(reasons)}" if reasons else ""
    return f"{undo.tool} is {undo.state.value}{told}"


log: Final = logging.getLogger("countersign")
_ATTEMPT_BYTES: Final = 16
_NOT_COMPENSATED: Final = ENDED_UNREDEEMED | {EffectState.FAILED, EffectState.UNUSED}
_COMPENSABLE: Final = frozenset({LocalState.FIRED, LocalState.COMPENSATING})
_GIVEN_UP: Final = ErrorCode.ILLEGAL_STATE.value


class Compensator:
    """Takes back the fired effects of one plan, as far as that goes now."""

    def __init__(self, engine: Engine, lease: Lease, plan: Plan) -> None:
        self._engine = engine
        self._lease = lease
        self._plan = plan
        self._reviews: list[PendingReview] = []
        self._unfinished: dict[str, str] = {}

    async def run(self) -> CompensationResult:
        """Compensate newest first. One that cannot be finished now does not keep the others waiting."""
        states = self._rows()
        for call in reversed(self._plan.calls):
            row = states.get(call.effect.effect_id)
            if row is None or row.state not in _COMPENSABLE or call.effect.compensation is None:
                continue
            try:
                await self._take_back(call, call.effect.compensation, row)
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
        """It goes on later; but what the service has given up, for no compensation can be built, stands."""
        why = describe_refusal(call, error)
        log.warning("the compensation of %s is not finished: %s", call.tool.name, why)
        if isinstance(error, ServiceRefused) and error.problem_code == _GIVEN_UP and await self._stands(call):
            self._settle(call, LocalState.COMPENSATION_FAILED, why)
        else:
            self._unfinished[row.label] = why

    async def _stands(self, call: PlannedCall) -> bool:
        """Whether the service says that nothing takes it back any more."""
        try:
            view = await self._engine.service.view(self._plan.txn)
        except (ServiceRefused, ServiceUnavailable):
            return False
        states = {one.effect_id: one.state for one in view.effects}
        return states.get(call.effect.effect_id) is EffectState.COMPENSATION_FAILED

    async def _take_back(self, call: PlannedCall, rule: Compensation, row: EffectRecord) -> None:
        if not await flush_outbox(self._engine, self._plan.txn):
            return
        view = await self._engine.service.compensate(self._plan.txn, call.effect.effect_id)
        if self._is_settled_already(call, view):
            return
        planned = self._planned(call, rule, row, view)
        if view.effect.state is EffectState.UNKNOWN:
            await self._known_by_probe(call, planned)
            return  # and where its probe cannot tell, it waits for a person
        attempt_id = self._engine.journal.firing.begin_compensation(
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
        """The compensating effect, from our own bytes; it must be the one the service means."""
        tool = self._engine.registry.require_staged(rule.tool, f"it takes back {call.tool.name!r}")
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
                call_key=names.compensation_call_key(effect_id=call.effect.effect_id, tool=rule.tool),
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
        """Redeem the compensation's release; None while people are asked."""
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
        self._engine.journal.firing.compensation_redeemed(
            self._lease, self._plan.staging, planned.effect.effect_id
        )
        return permit

    async def _fire(self, call: PlannedCall, planned: PlannedCall, permit: Permit) -> None:
        authority = Authority(
            txn=self._plan.txn,
            staging=self._plan.staging,
            attempt_id=permit.attempt_id,
            txn_digest=self._plan.txn_digest,
            run_key=self._plan.run_key,
            kind="compensate",
        )
        done = await EffectExecutor(self._engine, self._lease, authority, permit).run([planned])
        if done.stopped is None:
            self._settle(call, LocalState.COMPENSATED)
        elif done.outcome is not Outcome.UNKNOWN:
            why = f"{planned.tool.name} did not happen: {done.why}"
            self._settle(call, LocalState.COMPENSATION_FAILED, why)
        await flush_outbox(self._engine, self._plan.txn)

    def _is_settled_already(self, call: PlannedCall, view: CompensationView) -> bool:
        """A person, or a run of ours whose last word was lost, has settled it."""
        if view.effect.state is EffectState.FIRED:
            self._settle(call, LocalState.COMPENSATED)
        elif view.effect.state in _NOT_COMPENSATED:
            self._settle(call, LocalState.COMPENSATION_FAILED, describe_end(call, view.effect))
        else:
            return False
        return True

    async def _known_by_probe(self, call: PlannedCall, planned: PlannedCall) -> bool:
        """Whether the compensation's own probe could tell what became of it. What did not happen and may be called
        again is, where its process died.
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
        self._engine.journal.firing.write(self._lease, self._plan.staging, [done])
        if found.outcome is Outcome.FIRED:
            self._settle(call, LocalState.COMPENSATED)
        else:
            self._settle(call, LocalState.COMPENSATION_FAILED, found.why)
        await flush_outbox(self._engine, self._plan.txn)
        return True

    async def _unknown_since_crash(self, planned: PlannedCall, attempt_id: str) -> bool:
        """A compensation that was firing when its process died is not called again, unless it is idempotent."""
        row = self._rows(COMPENSATE_LANE).get(planned.effect.effect_id)
        if row is None or row.state is not LocalState.FIRING or planned.manifest.idempotent:
            return False
        done = EffectOutcome(planned.effect.effect_id, Outcome.UNKNOWN, attempt_id, error=CRASHED)
        self._engine.journal.firing.write(self._lease, self._plan.staging, [done])
        await flush_outbox(self._engine, self._plan.txn)
        return True

    def _settle(self, call: PlannedCall, to: LocalState, why: str | None = None) -> None:
        self._engine.journal.firing.settle_compensated(
            self._lease, self._plan.staging, call.effect.effect_id, to, why and why[:MAX_ERROR]
        )

    def _rows(self, lane: str = STAGED_LANE) -> dict[str, EffectRecord]:
        record = self._engine.journal.transactions.require(self._plan.txn)
        return {row.effect_id: row for row in self._engine.journal.transactions.effects(record, lane)}
