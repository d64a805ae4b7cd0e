"""One journaled transaction being staged and committed: the lease, the list, the placeholders, the live lane.

`transaction()` has one of these; with independent=True one for every staged effect. Rules: a call is in the
journal before its placeholder is handed out; a transaction that was redeemed before is never submitted again,
its results come from the journal; whatever raises before the redemption leaves the live lane undone and the
lease free.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from countersign import tracing
from countersign.adapters.protocol import LiveCall
from countersign.commit.attempt import describe_block_error
from countersign.commit.commit import Commit
from countersign.commit.plan import Plan, PlannedCall, StagedCall, plan_calls, require_resumable
from countersign.commit.reconciliation import flush_outbox
from countersign.commit.review import CommitOptions
from countersign.contract import names
from countersign.contract.wire import Claimed
from countersign.errors import JournalError, ReviewPending, ServiceUnavailable, TransactionBusy
from countersign.journal import Journal, Lease, LocalState, LocalTxn, StagedRow
from countersign.live.calls import ALL_LOST, LiveCallRequest, LiveEffectRun, require_released
from countersign.live.isolation import Serialize, lock_resources
from countersign.live.sessions import undo_orphaned_sessions
from countersign.live.work import LiveWork
from countersign.recovery.roll_forward import journaled_results
from countersign.runtime import Engine
from countersign.texts import text_of
from countersign.tools.definition import Tool
from countersign.tools.placeholder import Placeholder
from countersign.transactions.call_list import (
    CallList,
    commit_live_only,
    require_live_work_kept,
    require_same_live_calls,
    withdraw_earlier,
)
from countersign.transactions.prior_run import finish_prior_run, load_prior_record, log_cleanup_errors
from countersign.waiting import run_sync

log: Final = logging.getLogger("countersign")

_LEASE_POLL_SECONDS: Final = 0.05


class Step:
    """One run of one run key (or of one effect of it)."""

    def __init__(
        self, journal: Journal, lease: Lease, *, agent: str, run_key: str, independent: bool
    ) -> None:
        self.txn = lease.txn
        self.run_key = run_key
        self.replayed = False
        self._journal = journal
        self._lease = lease
        self._agent = agent
        self._independent = independent
        self._pid = os.getpid()
        self._list = CallList(journal, lease)
        self._live = LiveWork(lease.txn)
        self._in_force = False  # the list was frozen, or an earlier run's was found redeemed
        self._ended = False

    @classmethod
    async def open(
        cls, engine: Engine, *, txn: str, run_key: str, independent: bool, patient: bool = True
    ) -> Step:
        """Take the transaction's lease; a second run of the same key waits a little for the first.

        Raises:
            TransactionBusy: somebody alive owns it.
            JournalError, AlreadyRedeemed: what an earlier run left is not as the SDK wrote it; or a person closed it.
        """
        agent, journal = engine.settings.agent, engine.journal
        waited, until = 0.0, engine.settings.lease_wait_seconds if patient else 0.0
        while True:
            with journal.database.unit(durable=False):  # the row, its lease and its list begin in one commit
                journal.transactions.open(txn=txn, agent=agent, run_key=run_key, independent=independent)
                lease = journal.leases.acquire(txn)
                if isinstance(lease, Lease):
                    require_resumable(journal, txn)
                    return cls(journal, lease, agent=agent, run_key=run_key, independent=independent)
            if waited >= until:
                raise TransactionBusy(run_key, lease, waited)
            await engine.waits.sleep(_LEASE_POLL_SECONDS)
            waited += _LEASE_POLL_SECONDS

    @property
    def calls(self) -> tuple[StagedCall, ...]:
        """The staged calls, in order."""
        return self._list.calls

    @property
    def ran(self) -> tuple[StagedRow, ...]:
        """The live effects that stand so far, in order."""
        return self._list.ran

    def stage(
        self,
        tool: Tool,
        raw: bytes,
        n: int,
        call_key: str,
        group: int = 0,
        secret: tuple[str, ...] | None = None,
    ) -> Placeholder[Any]:
        """Write one call down and answer its placeholder. `secret`: which arguments are, None where nobody said yet."""
        effect_id = names.effect_id(txn=self.txn, call_key=call_key)
        return self._list.stage(StagedCall(tool, raw, n, call_key, effect_id, group, secret))

    def end_block(self, start: int, calls: Sequence[StagedCall] | None) -> None:
        """Calls of other threads and tasks are over; those from `start` on stand in this order, if one is given."""
        self._live.end_block()
        if calls is None:
            return
        try:
            self._list.order(start, calls)
        except JournalError as error:
            self._live.lose(str(error))

    async def serialize(self, engine: Engine, policy: Serialize) -> None:
        """Wait until the resources are this transaction's alone.

        Raises:
            ResourceBusy: somebody else keeps one for too long; this step has ended then.
        """
        try:
            self._live.claimed = await lock_resources(engine, self._lease, policy)
        except BaseException as error:
            self.abort(f"{type(error).__name__} before it began")
            raise

    async def require_released(self, engine: Engine, call: LiveCallRequest, claimed: Claimed | None) -> None:
        """Ask the policy about a live call, where that is asked about, before anything of it is written or run.

        Raises:
            Stopped, WorldError: it may not run (live/calls.py).
        """
        await require_released(engine, call, run_key=self.run_key, txn=self.txn, claimed=claimed, noted=True)

    def begin_live(self, tool: Tool, raw: bytes, call_key: str, secret: tuple[str, ...]) -> Callable[[], Any]:
        """Write one live effect down and answer how to run it."""
        if tool.adapter is None:
            raise AssertionError("registration refuses a live tool without an adapter")
        args = tool.signature.retype(raw)
        row = self._list.run(tool, raw, call_key, secret)
        if secret:
            self._live.hide(tool)
        call, running = LiveCall(tool.name, args, row.effect_id), LiveEffectRun(row, tool.adapter.name)
        return functools.partial(
            running.run,
            functools.partial(self._run_live, tool, call),
            functools.partial(self._leave_out, tool),
            functools.partial(self._list.keep, row, tool),
            awaited=tool.is_async,
        )

    def _run_live(self, tool: Tool, call: LiveCall) -> Any:
        return self._live.run(tool, call)

    def _leave_out(self, tool: Tool, rows: Sequence[StagedRow], error: BaseException) -> None:
        """What the journal could not be told would be kept there, so the whole must not be committed; what the effect
        raised goes on its way.
        """
        if self._pid != os.getpid():
            return  # a fork inside the effect: its rows stay the parent's, for which it goes on
        why = f"{tool.name} raised {describe_block_error(error, has_secrets=self._list.live_has_secrets)}"
        try:
            self._list.leave_out(rows, why)
        except BaseException as error:
            self._live.lose(
                f"{why}, and the journal could not be told: {text_of(error) or type(error).__name__}"
            )
            if not isinstance(error, Exception):
                raise

    @contextmanager
    def savepoint(self, engine: Engine) -> Iterator[None]:
        """A block that leaves nothing of itself if it raises. The journal keeps what it had asked for; `engine` asks,
        blocking, what of that is secret.

        Raises:
            NotStageable: an adapter has no savepoints, or a live effect is running.
            SavepointLost, SessionLost: a live effect could not be taken back alone.
        """
        staged, live = len(self._list.calls), self._list.live
        try:
            with self._live.savepoint():
                yield
        except ALL_LOST:
            raise  # nobody knows what stands, so nothing is noted before all of it is undone
        except BaseException as error:
            if self._pid == os.getpid():
                self._take_back(engine, staged, live, error)
            raise

    def _take_back(self, engine: Engine, staged: int, live: int, raised: BaseException) -> None:
        """What the journal could not be told is not taken back there, so the whole must not be committed."""
        try:
            try:
                run_sync(self.learn_secrets(engine))
            finally:
                self._list.take_back(staged, live, f"the inner block raised {self._described(raised)}")
        except BaseException as error:
            self._live.lose(text_of(error) or type(error).__name__)
            raise

    @property
    def has_secrets(self) -> bool:
        """Whether what its block raises may repeat a secret argument, as far as anybody knows."""
        return self._list.has_secrets

    async def learn_secrets(self, engine: Engine) -> None:
        """Find out what is secret of its calls, so that the journal can keep them although they are not submitted."""
        await self._list.learn_secrets(engine)

    def undo_live(self) -> None:
        """Undo the live effects, before anything else is waited for."""
        self._live.undo()

    def abort(self, note: str) -> None:
        """Nothing of it stands."""
        with self._ending(), self._undone_live():
            try:
                self._forget(note)
            finally:
                with log_cleanup_errors(self.txn):
                    self._journal.leases.release(self._lease)

    def drop(self) -> None:
        """End what an interrupt kept from ending, and nothing else."""
        if self._ended:
            return
        log.warning("transaction %s was interrupted as it was to end; it is ended now", self.txn[:12])
        try:
            if not self._in_force:
                self._forget("it was interrupted before it was submitted")
            self._end()
        except Exception as error:  # noqa: BLE001 - the interrupt is what its caller hears; recovery looks at this again
            log.warning("transaction %s could not be ended: %s", self.txn[:12], text_of(error))

    async def commit(self, engine: Engine, terms: CommitOptions) -> None:
        """Commit what was staged and settle the placeholders.

        Raises:
            CountersignError: as commit/commit.py and commit/settling.py say; placeholders then tell what is known.
        """
        why: str | None = None
        with tracing.span("countersign transaction", txn=self.txn, effects=len(self._list.calls)) as tell:
            try:
                results = await self._commit(engine, terms)
                self._list.settle(results, submitted=self._in_force)
            except BaseException as error:
                if not isinstance(error, Exception):
                    # On the disk first: nobody is to begin later what its caller was told has not happened.
                    with log_cleanup_errors(self.txn):
                        self._journal.stops.stop(
                            self._lease, f"its program was stopped ({type(error).__name__})"
                        )
                elif not isinstance(error, ReviewPending | ServiceUnavailable):
                    await self.learn_secrets(engine)  # planned calls need no request
                if not self._in_force:
                    self._forget(f"{self._described(error)}, before it was submitted")
                elif isinstance(error, Exception) and not isinstance(error, ReviewPending):
                    why = self._described(error)
                self._list.settle({}, submitted=self._in_force)
                raise
            finally:
                self._end(why)
                if tracing.enabled():
                    with log_cleanup_errors(self.txn):
                        tell(state=self.state().value, replayed=self.replayed)

    def state(self) -> LocalTxn:
        """Where the transaction stands in the journal."""
        return self._journal.transactions.require(self.txn).state

    async def _commit(self, engine: Engine, terms: CommitOptions) -> dict[str, object]:
        self._live.end_block()
        self._live.require_whole()
        if not self._list.live:
            self._live.undo()  # nothing stands of what raised, so an empty session decides nothing
        if self._live.claimed and not self._live:
            self._journal.claims.drop(self._lease)  # nobody waits for it while people decide
        plan = await self._plan(engine)
        earlier = await load_prior_record(engine, self._lease)
        if earlier.redeemed:
            self._in_force = True
            in_force = await finish_prior_run(engine, self._lease, earlier, plan, self._live)
            self.replayed = True
            results = journaled_results(engine, in_force)
            require_live_work_kept(self._journal, plan, self._list.live_call_keys)
            return results
        if earlier.landed or earlier.state is LocalTxn.UNSETTLED:
            self._in_force = True
            require_same_live_calls(self._journal, earlier, plan, self._list.live_call_keys)
            self._live.undo()
            self.replayed = True
            return {}
        if not self._list.is_first:
            undo_orphaned_sessions(
                engine, self.txn
            )  # of runs that died; this one's own sessions are not touched
        attempt_id = self._journal.transactions.freeze(
            self._lease,
            self._list.staging,
            plan.effects,
            secret=plan.secret,
            txn_digest=plan.txn_digest,
            live=plan.live,
            returned=plan.returned,
        )
        self._in_force = True
        self._journal.traces.keep(self.txn, tracing.current_traceparent())
        self._journal.edits.keep(self.txn, every=terms.accept_edits is True)
        if not plan.calls:
            await withdraw_earlier(engine, earlier)
            commit_live_only(self._journal, self._lease, self._live, plan, attempt_id)
            return {}
        await flush_outbox(engine)  # what an earlier run still owes is told before anything new is asked
        plan = replace(plan, attempt_id=attempt_id)
        return await Commit(engine, self._lease, plan, self._live, terms).run()

    async def _plan(self, engine: Engine) -> Plan:
        """The list, frozen."""
        return Plan(
            agent=self._agent,
            run_key=self.run_key,
            txn=self.txn,
            independent=self._independent,
            calls=await self._planned(engine),
            staging=self._list.staging,
            live=self._list.live,
            returned=self._list.returned,
        )

    async def _planned(self, engine: Engine) -> tuple[PlannedCall, ...]:
        """The staged calls with their reviewed manifests."""
        return await plan_calls(
            self._list.calls,
            agent=self._agent,
            txn=self.txn,
            manifests=engine.manifests,
            registry=engine.registry,
            service=engine.service,
        )

    def _described(self, error: BaseException) -> str:
        return describe_block_error(error, has_secrets=self._list.has_secrets)

    def _end(self, why: str | None = None) -> None:
        """Whatever happened: no session stays open, no live row stays undecided but where it may stand, the lease is
        free. `why`: it did not go through.
        """
        transactions, leases = self._journal.transactions, self._journal.leases
        with self._ending(), self._undone_live(), log_cleanup_errors(self.txn):
            try:
                with self._journal.database.unit(durable=False):
                    if not self._live.may_stand:
                        transactions.end_live(self._lease, self._list.staging, LocalState.UNDONE)
                    if why is not None:
                        transactions.explain(self._lease, why)
                    leases.release(self._lease)
            except JournalError:
                with log_cleanup_errors(self.txn):
                    leases.release(self._lease)
                raise

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """It has ended, also where something of that failed; not where an interrupt came between."""
        try:
            yield
        except Exception:
            self._ended = True
            raise
        self._ended = True

    @contextmanager
    def _undone_live(self) -> Iterator[None]:
        """Where the adapters can be made to undo. What could not be undone stays live in the journal, for recovery."""
        try:
            self._live.undo()
        except BaseException:
            with log_cleanup_errors(self.txn):
                self._journal.leases.release(self._lease)
            raise
        yield

    def _forget(self, note: str) -> None:
        with log_cleanup_errors(self.txn):
            self._journal.transactions.abort(self._lease, self._list.staging, note, self._list.rows)
