"""Roll forward, after the commit point, what a crash, a Ctrl-C or a lost answer left (design section 7).

Rules: FIRING found on disk is unknown, unless the tool's probe can tell or the reviewed manifest declares the tool
idempotent: then the fire window is renewed and the same call key is used again. The service comes first, because people
may have settled it: pending reports are sent, then the service's outcome is adopted where the journal has none. The
probe comes next: it fires nothing. Effects that were redeemed and never marked FIRING are renewed and fired, and
prepared live work is committed after them. If live work was lost with its process, they are unused and fired effects
are compensated, after idempotent calls in doubt that can be compensated were called once more. If the program was
stopped, they are unused too, unless it runs again under its key. An unknown outcome is never guessed. Running this
twice changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final, NoReturn

import orjson

from countersign.commit.attempt import Authority
from countersign.commit.commit import Finalizer
from countersign.commit.executor import EffectExecutor
from countersign.commit.failure import FailurePath
from countersign.commit.live_commit import keep_live
from countersign.commit.plan import Plan, PlannedCall
from countersign.commit.probes import CRASHED, ProbeFinding, UncertainCall, find_probe, run_probe
from countersign.commit.reconciliation import flush_outbox
from countersign.commit.tool_errors import MAX_ERROR
from countersign.contract.codes import ErrorCode
from countersign.contract.digests import canonicalize
from countersign.contract.states import EffectState, Outcome
from countersign.contract.wire import Settlement, TransactionView
from countersign.errors import EffectFailed, LiveCommitFailed, ServiceRefused, ServiceUnavailable
from countersign.journal import (
    EffectOutcome,
    EffectRecord,
    Lease,
    LocalState,
    LocalTxn,
    RemoteOutcome,
    TransactionRecord,
)
from countersign.journal.records import LIVE_LANE
from countersign.journal.states import IN_DOUBT
from countersign.live.sessions import AdapterRecovery
from countersign.live.work import LiveWork, recover_sessions, undo_orphaned_sessions
from countersign.recovery.prior_run import load_prior_run
from countersign.runtime import Engine

log: Final = logging.getLogger("countersign")

_S: Final = LocalState
_STATE_PATHS: Final = {  # states that this journal does not decide itself
    EffectState.FIRED: (_S.FIRED,),
    # a call that was not made is unused, one that did nothing has failed: the same to a person
    EffectState.FAILED: (_S.FAILED, _S.UNUSED),
    EffectState.UNUSED: (_S.UNUSED, _S.FAILED),
    EffectState.COMPENSATED: (_S.FIRED, _S.COMPENSATING, _S.COMPENSATED),
    EffectState.COMPENSATION_FAILED: (_S.FIRED, _S.COMPENSATING, _S.COMPENSATION_FAILED),
}


async def sync_outcomes(engine: Engine, lease: Lease, plan: Plan) -> None:
    """Report our outcomes and adopt the service's. If it is unavailable, nothing changes here."""
    await flush_outbox(engine, plan.txn)
    try:
        view = await engine.service.view(plan.txn)
    except ServiceUnavailable as error:
        log.warning("could not read what people settled of transaction %s: %s", plan.txn[:12], error)
        return
    except ServiceRefused as refused:
        if refused.problem_code != ErrorCode.ALREADY_REDEEMED:
            raise
        outcomes = list(_archived_outcomes(refused))
    else:
        outcomes = list(_remote_outcomes(view))
    engine.journal.settlements.learn(lease, plan.staging, outcomes)


def _archived_outcomes(refused: ServiceRefused) -> Iterator[RemoteOutcome]:
    """The outcomes of an archived transaction, which hold no settlement. A failed compensation is taken over as fired:
    the service refuses to compensate it, which leaves it to a person here.
    """
    for effect_id, state in refused.effect_states.items():
        path = _STATE_PATHS.get(EffectState(state), ())
        yield RemoteOutcome(effect_id, path[:1] if state == EffectState.COMPENSATION_FAILED.value else path)


def _remote_outcomes(view: TransactionView) -> Iterator[RemoteOutcome]:
    for one in view.effects:
        yield RemoteOutcome(
            one.effect_id, _STATE_PATHS.get(one.state, ()), _kept(one.settlements), _result(one.settlements)
        )
        if (undo := one.compensation) is not None:
            yield RemoteOutcome(undo.effect_id, _STATE_PATHS.get(undo.state, ()), _kept(undo.settlements))


def _kept(settlements: Sequence[Settlement]) -> bytes | None:
    if not settlements:
        return None
    return canonicalize([orjson.loads(said.model_dump_json(exclude_none=True)) for said in settlements])


def _result(settlements: Sequence[Settlement]) -> bytes | None:
    text = [said.result for said in settlements if said.result is not None]
    return canonicalize(text[-1]) if text else None


_STOPPED: Final = "its program was stopped before it was begun"
_LOST: Final = "the live effects were lost with their process, or undone while an outcome was not known"
_NOT_DONE: Final = frozenset({LocalState.FAILED, LocalState.UNUSED})
_ENDED_WELL: Final = frozenset({LocalTxn.SETTLED, LocalTxn.ENDED})  # ended: every call may fail, and did
_TAKEN_BACK: Final = frozenset(
    {LocalState.COMPENSATING, LocalState.COMPENSATED, LocalState.COMPENSATION_FAILED}
)


class RollForward:
    """Finishes one redeemed transaction. `live` holds the sessions of a rerun, or none."""

    def __init__(self, engine: Engine, lease: Lease, plan: Plan, live: LiveWork) -> None:
        self._engine = engine
        self._lease = lease
        self._plan = plan
        self._live = live
        self._finalizer = Finalizer(engine, lease, plan, live)
        self._failure = FailurePath(engine, lease, plan, live)
        self._found: list[ProbeFinding] = []  # probe results that left the outcome unknown
        self._not_there: list[EffectOutcome] = []  # calls that did not happen and may be made again

    async def run(self) -> None:
        """Continue from the journal's state. Afterwards the results of all calls are in the journal.

        Raises:
            OutcomeUnknown, EffectFailed, PartlyFired, ReleaseLapsed, LiveCommitFailed: with the outcome of every
                effect.
        """
        self._settle_firing()
        if self._unknown() or self._probeable() or self._record().state is LocalTxn.UNSETTLED:
            await sync_outcomes(self._engine, self._lease, self._plan)
        await self._run_probes()
        if self._unknown():
            await self._stop_unknown()
        if self._did_not_go_through():
            await self._compensate_all("an earlier run failed")
        if self._record().state is LocalTxn.STOPPED:
            await self._compensate_all(_STOPPED)
        found = self._live_landed()
        if isinstance(found, AdapterRecovery):
            self._live.undo()  # the rerun's work; the first run's stays as it is
            await self._failure.unknown(found.settlement_advice, None)
        await (self._fire_remaining() if found else self._compensate_all(_LOST))

    async def _fire_remaining(self) -> None:
        states = self._states()
        rest = [call for call in self._plan.calls if not call.allows_success(states[call.effect.effect_id])]
        self._live.prepare(self._plan.attempt_id)
        if rest:
            await self._finalizer.fire_and_finish(self._firing(), rest)
        else:
            await self._finalizer.complete({})

    async def _compensate_all(self, why: str) -> NoReturn:
        """The failure path: begin nothing more, and compensate fired effects."""
        self._mark_remaining_unused(why)
        found = self._undo_live()
        self._write(self._not_there)
        await self._find_out_by_calling()
        self._give_up_firing()
        if self._unknown():
            await self._stop_unknown()
        undone = await self._failure.compensate()
        key, txn, outcomes = self._plan.run_key, self._plan.txn, self._failure.outcomes()
        call = self._first_not_done()
        if call is None:  # every call had fired, so the live work could not be kept
            adapter = next(iter((*found.adapters_with(False), *found.prepared, *found.landed)), "")
            kept, doubtful = found.adapters_with(True), found.adapters_with(None)
            raise LiveCommitFailed(
                *(key, txn, adapter, undone.explain(why), outcomes),
                committed=kept,
                doubtful=doubtful,
                reviews=undone.reviews,
                reads=self._failure.reads(),
            )
        effect_id = call.effect.effect_id
        text = next((row.error for row in self._rows() if row.effect_id == effect_id), None)
        text = undone.explain(text or why)
        raise EffectFailed(
            *(key, txn, call.tool.name, effect_id, text, outcomes, undone.reviews),
            reads=self._failure.reads(),
        )

    async def _find_out_by_calling(self) -> None:
        """Call again what is idempotent and can be compensated, because only an effect known to have fired is
        compensated. Without a compensation the call is not repeated: it would certainly take effect, where now it
        may not have.
        """
        states = self._states()
        again = [
            call
            for call in self._plan.calls
            if states[call.effect.effect_id] is LocalState.FIRING
            and call.manifest.idempotent
            and call.effect.compensation is not None
        ]
        if again:
            await self._finalizer.fire(self._firing(), again)

    async def _stop_unknown(self) -> NoReturn:
        """Begin and compensate nothing until the outcome is known."""
        self._mark_remaining_unused()
        self._undo_live()
        again = [found.conclusive_at for found in self._found if found.conclusive_at is not None]
        await self._failure.unknown(self._describe_unknown(), None, min(again, default=None))

    def _settle_firing(self) -> None:
        """Record FIRING as unknown if the tool may not be called twice and has no probe."""
        states = self._states()  # every read verifies all rows
        done = [
            EffectOutcome(call.effect.effect_id, Outcome.UNKNOWN, self._plan.attempt_id, error=CRASHED)
            for call in self._plan.calls
            if states[call.effect.effect_id] is LocalState.FIRING
            and not call.manifest.idempotent
            and find_probe(self._engine, call) is None
        ]
        self._write(done)

    def _probeable(self) -> list[tuple[PlannedCall, EffectRecord]]:
        """The calls in doubt whose probe is available."""
        rows = {row.effect_id: row for row in self._rows()}
        return [
            (call, rows[call.effect.effect_id])
            for call in self._plan.calls
            if rows[call.effect.effect_id].state in IN_DOUBT and find_probe(self._engine, call) is not None
        ]

    async def _run_probes(self) -> None:
        for call, row in self._probeable():
            self._engine.require_not_stopping()
            doubt = UncertainCall.of(row, call, self._engine.clock.wall())
            found = await run_probe(self._engine, call, doubt, self._plan.attempt_id)
            if found is not None:
                self._take(call, row, found)

    def _take(self, call: PlannedCall, row: EffectRecord, found: ProbeFinding) -> None:
        """Call again what did not happen and may be called again; record what is still unknown once."""
        firing = row.state is LocalState.FIRING
        again = firing and call.manifest.idempotent
        text = row.error or CRASHED
        done = EffectOutcome(
            call.effect.effect_id,
            found.outcome,
            self._plan.attempt_id,
            result=found.result,
            report_result=call.reports_result,
            error=text if found.outcome is Outcome.UNKNOWN else f"{text}; {found.why}"[:MAX_ERROR],
        )
        if found.outcome is Outcome.UNKNOWN:
            self._found.append(found)
            if firing and not again:
                self._write([done])
        elif again and found.outcome is not Outcome.FIRED:
            self._not_there.append(done)
        else:
            self._write([done])

    def _write(self, done: Sequence[EffectOutcome]) -> None:
        if done:
            self._engine.journal.effect_log.write(self._lease, self._plan.staging, done)

    def _give_up_firing(self) -> None:
        """Nothing is called again for a failed list, so calls that were FIRING are unknown."""
        self._write(
            [
                EffectOutcome(effect_id, Outcome.UNKNOWN, self._plan.attempt_id, error=CRASHED)
                for effect_id, state in self._states().items()
                if state is LocalState.FIRING
            ]
        )

    def _mark_remaining_unused(self, why: str | None = None) -> None:
        """Mark effects that were never begun as unused."""
        done = [
            EffectOutcome(effect_id, Outcome.UNUSED, self._plan.attempt_id, error=why)
            for effect_id, state in self._states().items()
            if state is LocalState.REDEEMED
        ]
        self._write(done)

    def _firing(self) -> EffectExecutor:
        return EffectExecutor(self._engine, self._lease, Authority.of(self._plan), None)

    def _undo_live(self) -> AdapterRecovery:
        """Undo the remaining live work; returns what the adapters had of it."""
        self._live.undo()  # the rerun's work, which is not part of the list in force
        record = self._record()
        found = recover_sessions(self._engine, record)
        found.undo()
        rows = self._engine.journal.transactions.shown(record, LIVE_LANE)
        if found.has_landed is False and any(row.state is LocalState.LIVE for row in rows):
            self._engine.journal.transactions.end_live(self._lease, self._plan.staging, LocalState.UNDONE)
        return found

    def _live_landed(self) -> bool | AdapterRecovery:
        """Whether the live work of the redeemed run is kept or can be finished, or a rerun has repeated it. Returns
        the adapters' answers if that is in doubt.
        """
        record = self._record()
        if self._plan.live == 0:
            undo_orphaned_sessions(self._engine, self._plan.txn)
            return True
        if record.landed:
            self._live.undo()  # the rerun's work; the first run's is committed
            return True
        found = recover_sessions(self._engine, record)
        if found.can_be_finished is None:
            return found
        if not found.can_be_finished:
            found.undo()
            return bool(self._live)
        self._live.adopt(found)  # in place of the rerun's sessions
        if not found.prepared:
            keep_live(self._engine, self._lease, self._plan)
        return True

    def _did_not_go_through(self) -> bool:
        """Whether something was compensated, or a required effect was not done."""
        compensated = not _TAKEN_BACK.isdisjoint(self._states().values())
        return compensated or self._first_not_done() is not None

    def _first_not_done(self) -> PlannedCall | None:
        states = self._states()
        for call in self._plan.calls:
            state = states[call.effect.effect_id]
            if state in _NOT_DONE and not call.allows_success(state):
                return call
        return None

    def _unknown(self) -> set[str]:
        return {effect_id for effect_id, state in self._states().items() if state is LocalState.UNKNOWN}

    def _describe_unknown(self) -> str:
        """The reason in the words of the tool or of the crash, and of the probe as of now."""
        unknown = [row for row in self._rows() if row.state is LocalState.UNKNOWN]
        text = next((row.error for row in unknown if row.error), CRASHED)
        return "; ".join([text, *(found.why for found in self._found[:1])])

    def _states(self) -> dict[str, LocalState]:
        return {row.effect_id: row.state for row in self._rows()}

    def _rows(self) -> tuple[EffectRecord, ...]:
        return self._engine.journal.transactions.effects(self._record())

    def _record(self) -> TransactionRecord:
        return self._engine.journal.transactions.require(self._plan.txn)


def journaled_results(engine: Engine, plan: Plan) -> dict[str, object]:
    """The results of a successful transaction, typed as the tools return them; none for calls that may fail and did.

    Raises:
        AlreadyRedeemed: it did not succeed; nothing is fired again under this key.
    """
    record = engine.journal.transactions.require(plan.txn)
    rows = {row.effect_id: row for row in engine.journal.transactions.effects(record)}
    if record.state not in _ENDED_WELL or not all(
        call.allows_success(rows[call.effect.effect_id].state) for call in plan.calls
    ):
        raise load_prior_run(engine.journal, record).spent()
    return {
        call.effect.effect_id: _typed(call, row.result)
        for call in plan.calls
        for row in (rows[call.effect.effect_id],)
        if row.state is LocalState.FIRED
    }


def _typed(call: PlannedCall, raw: bytes | None) -> object:
    """One journaled result. None if it had no JSON form."""
    return None if raw is None else call.tool.signature.result.load(raw)
