"""After the commit point: what a crash, a Ctrl-C or a lost answer left behind is brought to an end (design
section 7).

Rules: FIRING found on disk is unknown, unless the tool's probe can tell, or the reviewed manifest calls the tool
idempotent: then the time to fire is renewed and the same call key is used again. The probe goes first: it fires
nothing and needs nobody's leave; but people go before it, who may have settled it meanwhile. What was redeemed and
never marked FIRING is renewed and fired, and live effects that their adapters had prepared are committed after it;
where live effects were lost with their process it is unused and what fired is taken back. Unknown is asked of the
service and of the probe, and never guessed. Running this twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from countersign.commit.firing import FireRun
from countersign.commit.plan import Plan, PlannedCall
from countersign.commit.probing import Doubt, Found, find_out, probe_of
from countersign.commit.raised import MAX_ERROR
from countersign.commit.renewing import Authority
from countersign.commit.settling import Settlement
from countersign.contract.states import Outcome
from countersign.engine import Engine
from countersign.errors import AlreadyRedeemed, EffectFailed
from countersign.journal import Done, EffectRecord, Lease, LocalState, LocalTxn, TransactionRecord
from countersign.live.remains import Recovered, recover, undo_remains
from countersign.live.work import CommitFailed, LiveWork
from countersign.recovery.learning import learn

_CRASHED: Final = "its process ended while it was firing"
_LOST: Final = "the live effects beside it were lost with their process"
_IN_DOUBT: Final = frozenset({LocalState.FIRING, LocalState.UNKNOWN})
_NOT_DONE: Final = frozenset({LocalState.FAILED, LocalState.UNUSED})
_ENDED_WELL: Final = frozenset({LocalTxn.SETTLED, LocalTxn.ENDED})  # ended: all of it may fail, and did
_TAKEN_BACK: Final = frozenset(
    {LocalState.COMPENSATING, LocalState.COMPENSATED, LocalState.COMPENSATION_FAILED}
)


class Forward:
    """Brings one redeemed transaction to its end. `live` holds the sessions of a rerun, or nothing."""

    def __init__(self, engine: Engine, lease: Lease, plan: Plan, live: LiveWork) -> None:
        self._engine = engine
        self._lease = lease
        self._plan = plan
        self._live = live
        self._settlement = Settlement(engine, lease, plan, live)
        self._found: list[Found] = []  # what probes said and did not settle

    async def run(self) -> dict[str, object]:
        """Go on from whatever the journal says.

        Raises:
            OutcomeUnknown, EffectFailed, PartlyFired, ReleaseLapsed, LiveCommitFailed: with what stands.
        """
        self._settle_firing()
        if self._unknown() or self._to_ask() or self._record().state is LocalTxn.UNSETTLED:
            await learn(self._engine, self._lease, self._plan)
        await self._ask_probes()
        if self._did_not_go_through(self._states()):
            self._give_up_firing()
        states = self._states()
        if self._unknown():
            self._leave_the_rest()
            undo_remains(self._engine, self._plan.txn)
            again = [found.again_at for found in self._found if found.again_at is not None]
            await self._settlement.unknown(self._why_unknown(), None, min(again, default=None))
        if self._did_not_go_through(states):
            self._leave_the_rest()
            return await self._failed(self._first_not_done(states), "an earlier run did not go through")
        return await self._fire_the_rest(states)

    def settle_live_only(self) -> str:
        """A transaction without staged effects: the adapters know whether it landed."""
        found = recover(self._engine, self._record())
        if found.has_landed is None:
            note, state = "it cannot be told whether its live effects were kept", LocalTxn.UNSETTLED
        elif found.has_landed:
            note, state = self._finish_live_only(found)
        else:
            found.undo()
            note, state = "its live effects were undone", LocalTxn.ENDED
            self._engine.journal.transactions.end_live(self._lease, self._plan.staging, LocalState.UNDONE)
        self._engine.journal.transactions.end(self._lease, state, note)
        return note

    def _finish_live_only(self, found: Recovered) -> tuple[str, LocalTxn]:
        """One adapter has committed, so the others, which had all prepared, do as well."""
        self._live.adopt(found)
        try:
            self._live.commit(self._plan.attempt_id)
        except CommitFailed as failed:
            return f"live adapter {failed.adapter!r} could not commit: {failed}", LocalTxn.UNSETTLED
        self._engine.journal.transactions.end_live(self._lease, self._plan.staging, LocalState.KEPT)
        return "its live effects were kept", LocalTxn.SETTLED

    async def _fire_the_rest(self, states: dict[str, LocalState]) -> dict[str, object]:
        rest = [call for call in self._plan.calls if not call.lets_go_on(states[call.effect.effect_id])]
        landed = self._live_landed()
        if landed is None:
            await self._settlement.unknown("it cannot be told whether the live effects were kept", None)
        if landed is False:
            self._leave_the_rest(_LOST)
            return await self._failed(rest[0] if rest else self._plan.calls[-1], _LOST)
        self._live.prepare(self._plan.attempt_id)
        if not rest:
            return await self._settlement.complete({})
        run = FireRun(self._engine, self._lease, Authority.of(self._plan), None)
        return await self._settlement.around(run, rest)

    def _settle_firing(self) -> None:
        """FIRING of a tool that may not be called twice, and has no probe to ask: nobody knows."""
        done = [
            Done(call.effect.effect_id, Outcome.UNKNOWN, self._plan.attempt_id, error=_CRASHED)
            for call in self._plan.calls
            if self._states()[call.effect.effect_id] is LocalState.FIRING
            and not call.manifest.idempotent
            and probe_of(self._engine, call) is None
        ]
        self._write(done)

    def _to_ask(self) -> list[tuple[PlannedCall, EffectRecord]]:
        """The calls in doubt whose probe is here."""
        rows = {row.effect_id: row for row in self._rows()}
        return [
            (call, rows[call.effect.effect_id])
            for call in self._plan.calls
            if rows[call.effect.effect_id].state in _IN_DOUBT and probe_of(self._engine, call) is not None
        ]

    async def _ask_probes(self) -> None:
        for call, row in self._to_ask():
            self._engine.require_going_on()
            doubt = Doubt.of(row, call, self._engine.clock.wall())
            found = await find_out(self._engine, call, doubt, self._plan.attempt_id)
            if found is not None:
                self._take(call, row, found)

    def _take(self, call: PlannedCall, row: EffectRecord, found: Found) -> None:
        """What did not happen and may be called again is called again; what is still unknown is said once."""
        firing = row.state is LocalState.FIRING
        if found.outcome is Outcome.UNKNOWN:
            self._found.append(found)
        if found.outcome is not Outcome.FIRED and firing and call.manifest.idempotent:
            return
        if found.outcome is Outcome.UNKNOWN and not firing:
            return
        told = row.error or _CRASHED
        self._write(
            [
                Done(
                    call.effect.effect_id,
                    found.outcome,
                    self._plan.attempt_id,
                    result=found.result,
                    report_result=call.reports_result,
                    error=told if found.outcome is Outcome.UNKNOWN else f"{told}; {found.why}"[:MAX_ERROR],
                )
            ]
        )

    def _write(self, done: Sequence[Done]) -> None:
        if done:
            self._engine.journal.firing.write(self._lease, self._plan.staging, done)

    def _give_up_firing(self) -> None:
        """Nothing is called again for a list that did not go through, so of what was firing nobody knows."""
        self._write(
            [
                Done(effect_id, Outcome.UNKNOWN, self._plan.attempt_id, error=_CRASHED)
                for effect_id, state in self._states().items()
                if state is LocalState.FIRING
            ]
        )

    def _leave_the_rest(self, why: str | None = None) -> None:
        """What was never started stays so."""
        done = [
            Done(effect_id, Outcome.UNUSED, self._plan.attempt_id, error=why)
            for effect_id, state in self._states().items()
            if state is LocalState.REDEEMED
        ]
        self._write(done)

    async def _failed(self, call: PlannedCall, why: str) -> dict[str, object]:
        undo_remains(self._engine, self._plan.txn)
        await self._settlement.take_back()
        raise EffectFailed(
            self._plan.run_key,
            self._plan.txn,
            call.tool.name,
            call.effect.effect_id,
            why,
            self._settlement.outcomes(),
        )

    def _live_landed(self) -> bool | None:
        """Whether the live effects of the redeemed run stand or can be finished, or a rerun has brought them back."""
        record = self._record()
        if self._plan.live == 0:
            return True
        if record.landed:
            self._settlement.undo_live()  # a rerun's: the first run's are permanent
            return True
        found = recover(self._engine, record)
        if found.can_be_finished is None:
            return None
        if not found.can_be_finished:
            found.undo()
            return bool(self._live)
        self._settlement.undo_live()
        self._live.adopt(found)
        if not found.prepared:
            self._engine.journal.transactions.end_live(
                self._lease, self._plan.staging, LocalState.KEPT, durable=True
            )
        return True

    def _did_not_go_through(self, states: dict[str, LocalState]) -> bool:
        """Whether something was taken back, or is not done that had to be."""
        return any(
            state in _NOT_DONE | _TAKEN_BACK and not call.lets_go_on(state)
            for call in self._plan.calls
            for state in (states[call.effect.effect_id],)
        )

    def _first_not_done(self, states: dict[str, LocalState]) -> PlannedCall:
        not_done = [
            call
            for call in self._plan.calls
            for state in (states[call.effect.effect_id],)
            if state in _NOT_DONE and not call.lets_go_on(state)
        ]
        return not_done[0] if not_done else self._plan.calls[-1]

    def _unknown(self) -> set[str]:
        return {effect_id for effect_id, state in self._states().items() if state is LocalState.UNKNOWN}

    def _why_unknown(self) -> str:
        """In the words of whoever found it out: the tool that raised, or the crash; and of the probe, as of now."""
        unknown = [row for row in self._rows() if row.state is LocalState.UNKNOWN]
        told = next((row.error for row in unknown if row.error), _CRASHED)
        return "; ".join([told, *(found.why for found in self._found[:1])])

    def _states(self) -> dict[str, LocalState]:
        return {row.effect_id: row.state for row in self._rows()}

    def _rows(self) -> tuple[EffectRecord, ...]:
        return self._engine.journal.transactions.effects(self._record())

    def _record(self) -> TransactionRecord:
        return self._engine.journal.transactions.require(self._plan.txn)


def results_in_journal(engine: Engine, plan: Plan) -> dict[str, object]:
    """The results of a transaction that ended well, typed as the tools return them; of what may fail and did, none.

    Raises:
        AlreadyRedeemed: it did not end well; nothing is fired again under this key.
    """
    record = engine.journal.transactions.require(plan.txn)
    rows = {row.effect_id: row for row in engine.journal.transactions.effects(record)}
    if record.state not in _ENDED_WELL or not all(
        call.lets_go_on(rows[call.effect.effect_id].state) for call in plan.calls
    ):
        outcome = ", ".join(f"{row.tool}#{row.seq} {row.state.value}" for row in rows.values())
        raise AlreadyRedeemed(plan.run_key, plan.txn, outcome)
    return {
        call.effect.effect_id: _typed(call, row.result)
        for call in plan.calls
        for row in (rows[call.effect.effect_id],)
        if row.state is LocalState.FIRED
    }


def _typed(call: PlannedCall, raw: bytes | None) -> object:
    """One journaled result; None where it had no JSON form."""
    return None if raw is None else call.tool.signature.load_result(raw)
