"""A dry run: live work is done and undone, and the policy is asked what it would say to the rest.

Rules: nothing is submitted, redeemed or fired, and not a row is written to the journal, so the key is as free as it
was. The live work is undone before the service is asked: no session is open meanwhile. A denial is collected, not
raised, for what comes after it is to be seen as well. What is wrong with a call itself is raised as in a real run.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from countersign.answering import Answering
from countersign.contract.admission import load
from countersign.contract.manifest import ToolManifest
from countersign.contract.pointers import pointer_to
from countersign.contract.wire import Claimed, EvaluatedEffect, EvaluationRequest
from countersign.edits import Judge
from countersign.engine import Engine
from countersign.errors import MisuseError, ServiceUnavailable
from countersign.journal.reading import LIVE_LANE
from countersign.placeholder import settle
from countersign.plan import PlannedCall, StagedCall, plan_calls
from countersign.reasons import DenyReason
from countersign.rehearsal.foreseen import AdapterChanges, Asks, DryRun, ForeseenEffect, RehearsedLive
from countersign.rehearsal.stage import Rehearsal, RehearsedStep
from countersign.runtime import Runtime
from countersign.telling import without_secrets
from countersign.transaction import Transaction
from countersign.waiting import run

REHEARSED: Final = "rehearsed"
"""The outcome of a placeholder after a dry run."""


class DryStep(RehearsedStep):
    """A step whose leaving asks what would happen."""

    effects: tuple[ForeseenEffect, ...] | None = None
    live: tuple[RehearsedLive, ...] = ()
    changes: tuple[AdapterChanges, ...] = ()

    async def commit(
        self,
        engine: Engine,
        *,
        wait: float,
        claimed: Claimed | None,
        accept_edits: Judge = False,
        answering: Answering | None = None,
    ) -> None:
        """Undo the live work, then ask.

        Raises:
            Moved: somebody changed what the live work had read; run it again.
            ServiceRefused: the service takes no question of this agent.
            MisuseError: as a commit, of a call that cannot be asked for at all.
        """
        try:
            self._live.verify_unmoved()
            self.live = self._live_calls(engine)
            found = self._live.changes()
            self.changes = tuple(AdapterChanges(name, changes) for name, changes in found.items())
        finally:
            self.abort("a dry run")
        self.effects = await self._foresee(engine, claimed)
        for placeholder in self._list.placeholders.values():
            settle(placeholder, REHEARSED)

    def _live_calls(self, engine: Engine) -> tuple[RehearsedLive, ...]:
        record = replace(self._journal.transactions.require(self.txn), staging=self._list.staging)
        rows = self._journal.transactions.effects(record, LIVE_LANE)
        return tuple(
            RehearsedLive(row.tool, without_secrets(load(row.args), _secrets_in_code(engine, row.tool)))
            for row in rows
        )

    async def _foresee(self, engine: Engine, claimed: Claimed | None) -> tuple[ForeseenEffect, ...]:
        if not self._list.calls:
            return ()
        try:
            planned = await plan_calls(
                self._list.calls,
                agent=self._agent,
                txn=self.txn,
                manifests=engine.manifests,
                registry=engine.registry,
                service=engine.service,
            )
            decided = await self._ask(engine, planned, claimed)
        except ServiceUnavailable as away:
            return tuple(_unknown(engine, call, away.why) for call in self._list.calls)
        return tuple(map(_foreseen, planned, decided))

    async def _ask(
        self, engine: Engine, planned: Sequence[PlannedCall], claimed: Claimed | None
    ) -> Sequence[EvaluatedEffect]:
        question = EvaluationRequest(
            run_key=self.run_key,
            independent=self._independent,
            effects=tuple(call.submitted() for call in planned),
            claimed=claimed,
        )
        decided = (await engine.service.evaluate(question)).effects
        if [one.tool for one in decided] != [call.tool.name for call in planned]:
            raise ServiceUnavailable(
                "POST /v1/evaluations", "it answers about other effects than it was asked"
            )
        return decided


class DryRehearsal(Rehearsal[DryStep]):
    """One dry run."""

    def __init__(self, key: str) -> None:
        super().__init__(DryStep)
        self._key = key

    @property
    def result(self) -> DryRun:
        """What was found.

        Raises:
            MisuseError: the block has not ended, or ended by an exception.
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


def rehearse(
    fn: Callable[[Transaction], Any], *, key: str, runtime: Runtime, claimed: Claimed | None = None
) -> Any:
    """Run `fn(txn)` as a dry run and answer the `DryRun`; of an async `fn` a coroutine that does.

    Raises:
        CountersignError: as leaving the block of a dry run does; and whatever `fn` raises.
    """
    txn = Transaction(runtime, key, claimed=claimed, rehearsal=DryRehearsal(key))
    if inspect.iscoroutinefunction(fn):
        return _rehearse_async(fn, txn, runtime)
    with txn:
        run(runtime.sync_waits().call(functools.partial(fn, txn), {}, None))
    return txn.result


async def _rehearse_async(fn: Callable[[Transaction], Any], txn: Transaction, runtime: Runtime) -> DryRun:
    async with txn:
        await fn(txn)
    return txn.result


def _foreseen(call: PlannedCall, decided: EvaluatedEffect) -> ForeseenEffect:
    name, effect_id, decision = call.tool.name, call.effect.effect_id, decided.decision
    return ForeseenEffect(
        name,
        effect_id,
        _shown(call.manifest, call.effect.args_bytes),
        decision.outcome.value,
        tuple(map(Asks.of, decided.needs)),
        tuple(
            DenyReason(name, effect_id, one.code, one.text, one.policy, one.advice)
            for one in decision.reasons
        ),
        tuple(decision.policies),
    )


def _unknown(engine: Engine, call: StagedCall, why: str) -> ForeseenEffect:
    """Nobody could be asked: what is secret is known from the file beside the code, or not at all."""
    manifest = engine.manifests.at_hand(call.tool)
    return ForeseenEffect(
        call.tool.name,
        call.effect_id,
        _shown(manifest, call.args),
        "unknown",
        why=f"nobody could be asked: {why}",
    )


def _shown(manifest: ToolManifest | None, args: bytes) -> Any:
    return without_secrets(load(args), None if manifest is None else manifest.secret)


def _secrets_in_code(engine: Engine, tool: str) -> tuple[str, ...]:
    """A live tool runs unreviewed: what its own declaration calls secret."""
    found = engine.registry.get(tool)
    named = () if found is None else found.draft.secret
    return tuple(one if one.startswith("/") else pointer_to(one) for one in named)
