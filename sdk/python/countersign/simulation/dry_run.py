"""A dry run: live work is done and undone, and the policy is evaluated for the staged calls.

Rules: nothing is submitted, redeemed or fired, and no row is written to the journal, so the key stays free. The live
work is undone before the service is called: no session is open meanwhile. A denial is collected, not raised, so that
later calls are evaluated too. An invalid call raises as in a real run.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from countersign.adapters.protocol import Change
from countersign.commit.plan import PlannedCall, StagedCall
from countersign.commit.review import CommitOptions
from countersign.concurrency import run_sync
from countersign.contract.admission import load
from countersign.contract.wire import Claimed, EvaluatedEffect, EvaluationRequest
from countersign.errors import MisuseError, ServiceUnavailable
from countersign.errors.pending import ApprovalRequirement
from countersign.errors.reasons import DenyReason
from countersign.journal.export import without_secrets
from countersign.journal.shown import HIDDEN, ShownEffect
from countersign.live.calls import LiveCallRequest, require_released
from countersign.runtime import Engine, Runtime
from countersign.simulation.dry_run_report import AdapterChanges, DryRun, ForeseenEffect, SimulatedLiveCall
from countersign.simulation.offline import SimulatedStep, Simulation
from countersign.tools.results import settle
from countersign.transactions.transaction import Transaction

DRY_RUN_NOTE: Final = "rehearsed"
"""The outcome of a placeholder after a dry run."""


class DryRunStep(SimulatedStep):
    """A step that evaluates the policy when its block ends."""

    effects: tuple[ForeseenEffect, ...] | None = None
    live: tuple[SimulatedLiveCall, ...] = ()
    changes: tuple[AdapterChanges, ...] = ()

    async def require_released(self, engine: Engine, call: LiveCallRequest, claimed: Claimed | None) -> None:
        """Evaluate the policy for a live call as a real run does, because it runs too; the service does not record
        it.
        """
        await require_released(engine, call, run_key=self.run_key, txn=self.txn, claimed=claimed, noted=False)

    async def commit(self, engine: Engine, terms: CommitOptions) -> None:
        """Undo the live work, then evaluate.

        Raises:
            SavepointLost: an inner block could not be rolled back alone; a real run refuses then too.
            IsolationConflict: another writer changed what the live work had read; run it again.
            ServiceRefused: the service refuses this agent.
            MisuseError: as a commit, for a call that cannot be submitted.
        """
        try:
            live = self._live_work()
            live.end_block()
            live.require_whole()
            live.verify_isolation()
            self.live = self._live_calls(engine)
            hiding = self._adapters_given_secrets(engine)
            self.changes = tuple(
                AdapterChanges(name, _redacted_changes(changes) if name in hiding else changes)
                for name, changes in live.changes().items()
            )
        finally:
            self.abort("a dry run")
        self.effects = await self._evaluate_calls(engine, terms.claimed)
        for placeholder in self._list.placeholders.values():
            settle(placeholder, DRY_RUN_NOTE)

    def _live_calls(self, engine: Engine) -> tuple[SimulatedLiveCall, ...]:
        return tuple(
            SimulatedLiveCall(row.tool, without_secrets(row.args, _secrets_of_live(engine, row.tool)))
            for row in self._live_rows()
        )

    def _adapters_given_secrets(self, engine: Engine) -> frozenset[str]:
        """The adapters, by name, whose changes may contain a secret."""
        tools = [engine.registry.get(row.tool) for row in self._live_rows() if row.has_secrets]
        return frozenset(tool.adapter.name for tool in tools if tool is not None and tool.adapter is not None)

    def _live_rows(self) -> tuple[ShownEffect, ...]:
        record = replace(self._journal.transactions.require(self.txn), staging=self._list.staging)
        return self._journal.transactions.live(record)

    async def _evaluate_calls(self, engine: Engine, claimed: Claimed | None) -> tuple[ForeseenEffect, ...]:
        if not self._list.calls:
            return ()
        try:
            planned = await self._planned(engine)
            decided = await self._evaluate(engine, planned, claimed)
        except ServiceUnavailable as away:
            return tuple(_unknown(engine, call, away.why) for call in self._list.calls)
        return tuple(map(_foreseen_effect, planned, decided))

    async def _evaluate(
        self, engine: Engine, planned: Sequence[PlannedCall], claimed: Claimed | None
    ) -> Sequence[EvaluatedEffect]:
        question = EvaluationRequest(
            run_key=self.run_key,
            independent=self._independent,
            effects=tuple(call.submitted() for call in planned),
            claimed=claimed,
        )
        return (await engine.service.evaluate(question)).effects


class DryRunSimulation(Simulation[DryRunStep]):
    """One dry run."""

    def __init__(self, key: str) -> None:
        super().__init__(DryRunStep)
        self._key = key

    @property
    def result(self) -> DryRun:
        """The result of the dry run.

        Raises:
            MisuseError: the block has not ended, or raised.
        """
        found = [step.effects for step in self.steps if step.effects is not None]
        if len(found) != len(self.steps):
            raise MisuseError(
                f"the dry run of {self._key!r} has no result: its block has not ended, or ended by an exception"
            )
        return DryRun(
            self._key,
            tuple(one for effects in found for one in effects),
            tuple(one for step in self.steps for one in step.live),
            tuple(one for step in self.steps for one in step.changes),
        )


def run_dry(
    fn: Callable[[Transaction], Any], *, key: str, runtime: Runtime, claimed: Claimed | None = None
) -> Any:
    """Run `fn(txn)` as a dry run and return the `DryRun`; an async `fn` gives a coroutine.

    Raises:
        CountersignError: as leaving the block of a dry run does; and anything `fn` raises.
    """
    txn = Transaction(runtime, key, CommitOptions(claimed=claimed), rehearsal=DryRunSimulation(key))
    if inspect.iscoroutinefunction(fn):
        return _rehearse_async(fn, txn)
    with txn:
        run_sync(runtime.sync_executor().call(functools.partial(fn, txn), {}, None))
    return txn.result


async def _rehearse_async(fn: Callable[[Transaction], Any], txn: Transaction) -> DryRun:
    async with txn:
        await fn(txn)
    return txn.result


def _foreseen_effect(call: PlannedCall, decided: EvaluatedEffect) -> ForeseenEffect:
    name, effect_id, decision = call.tool.name, call.effect.effect_id, decided.decision
    return ForeseenEffect(
        name,
        effect_id,
        without_secrets(load(call.effect.args_bytes), call.secret),
        decision.outcome.value,
        tuple(map(ApprovalRequirement.of, decided.needs)),
        DenyReason.of(name, effect_id, decision),
        tuple(decision.policies),
    )


def _unknown(engine: Engine, call: StagedCall, why: str) -> ForeseenEffect:
    """The service did not answer. Secrets are known from a local manifest, or not at all."""
    return ForeseenEffect(
        call.tool.name,
        call.effect_id,
        without_secrets(load(call.args), engine.manifests.staged_secret_pointers(call.tool)),
        "unknown",
        why=f"the service did not answer: {why}",
    )


def _redacted_changes(changes: tuple[Change, ...] | None) -> tuple[Change, ...] | None:
    """The changes without names and values: it is unknown which of them are secret."""
    if changes is None:
        return None
    return tuple(
        Change(HIDDEN, None if change.before is None else HIDDEN, None if change.after is None else HIDDEN)
        for change in changes
    )


def _secrets_of_live(engine: Engine, tool: str) -> tuple[str, ...]:
    found = engine.registry.get(tool)
    return () if found is None else engine.manifests.live_secret_pointers(found)
