"""Under which redemption a run fires, and how it is given more time: the policy is asked again every time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from countersign.commit.plan import Plan, PlannedCall
from countersign.contract.release import Kind
from countersign.engine import Engine
from countersign.errors import NotDone, ReleaseRefused, ServiceRefused, ServiceUnavailable
from countersign.service.enforcement import Permit


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


class TimeToFire:
    """The time a run has to fire in: what its permit leaves, renewed where that is too little."""

    def __init__(self, engine: Engine, authority: Authority, permit: Permit | None) -> None:
        self._engine = engine
        self._authority = authority
        self._permit = permit

    async def take(self, calls: Sequence[PlannedCall], after: Sequence[PlannedCall]) -> None:
        """Renew where too little time is left, or where the manifest wants the policy asked before every
        fire.
        """
        if self.is_enough_for(calls):
            return
        self._permit = await renew(self._engine, self._authority, [*calls, *after])
        late = next((call for call in calls if not self._covers(call)), None)
        if late is not None:
            raise PermitRefused(f"too little time was left to start {late.tool.name}")

    def is_enough_for(self, calls: Sequence[PlannedCall]) -> bool:
        """Whether nothing has to be asked of the service first."""
        return all(self._covers(call) and not call.manifest.recheck for call in calls)

    def _covers(self, call: PlannedCall) -> bool:
        return self._names(call) and self._seconds_left() >= self._engine.settings.fire_margin_seconds

    def _names(self, call: PlannedCall) -> bool:
        return self._permit is not None and call.effect.effect_id in self._permit.effect_ids

    def _seconds_left(self) -> float:
        return 0.0 if self._permit is None else self._permit.seconds_left(self._engine.clock)

    def require_left(self, call: PlannedCall) -> None:
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
