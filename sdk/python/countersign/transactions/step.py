"""One journaled transaction being staged and committed: lease, list, placeholders and live sessions.

`transaction()` has one of these; with independent=True, one for every staged effect. Rules: a call is journaled before
its placeholder is returned; a redeemed transaction is never submitted again, its results come from the journal; an
error before the redemption leaves live effects undone and the lease free.
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
from countersign.concurrency import run_sync
from countersign.contract import names
from countersign.contract.wire import Claimed
from countersign.errors import JournalError, ReviewPending, ServiceUnavailable, TransactionBusy
from countersign.journal import Journal, Lease, LocalState, LocalTxn, StagedRow
from countersign.live.calls import ALL_LOST, LiveCallRequest, LiveEffectRun, require_released
from countersign.live.isolation import Serialize, lock_resources
from countersign.live.work import LiveWork, undo_orphaned_sessions
from countersign.recovery.roll_forward import journaled_results
from countersign.runtime import Engine
from countersign.texts import text_of
from countersign.tools.definition import Tool
from countersign.tools.placeholder import Placeholder
from countersign.transactions.call_list import (
    CallList,
    commit_live_only,
    finish_prior_run,
    load_prior_record,
    log_cleanup_errors,
    require_live_work_kept,
    require_same_live_calls,
    withdraw_earlier,
)

log: Final = logging.getLogger("countersign")

_LEASE_POLL_SECONDS: Final = 0.05


class Step:
    """One run of one run key (or of one independent effect of it)."""

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
        """Acquire the transaction's lease. A second run of the same key waits briefly for the first.

        Raises:
            TransactionBusy: a living process owns it.
            JournalError, AlreadyRedeemed: the record of an earlier run is damaged, or a person has closed it.
        """
        agent, journal = engine.settings.agent, engine.journal
        waited, until = 0.0, engine.settings.lease_wait_seconds if patient else 0.0
        while True:
            with journal.database.unit(durable=False):  # row, lease and list are created in one commit
                journal.transactions.open(txn=txn, agent=agent, run_key=run_key, independent=independent)
                lease = journal.leases.acquire(txn)
                if isinstance(lease, Lease):
                    require_resumable(journal, txn)
                    return cls(journal, lease, agent=agent, run_key=run_key, independent=independent)
            if waited >= until:
                raise TransactionBusy(run_key, lease, waited)
            await engine.executor.sleep(_LEASE_POLL_SECONDS)
            waited += _LEASE_POLL_SECONDS

    @property
    def calls(self) -> tuple[StagedCall, ...]:
        """The staged calls, in order."""
        return self._list.calls

    @property
    def ran(self) -> tuple[StagedRow, ...]:
        """The live effects in effect so far, in order."""
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
        """Journal one call and return its placeholder. `secret`: pointers to secret arguments, None if not known
        yet.
        """
        effect_id = names.effect_id(txn=self.txn, call_key=call_key)
        return self._list.stage(StagedCall(tool, raw, n, call_key, effect_id, group, secret))

    def end_block(self, start: int, calls: Sequence[StagedCall] | None) -> None:
        """A parallel block has ended; its calls from `start` on take this order, if one is given."""
        self._live.end_block()
        if calls is None:
            return
        try:
            self._list.order(start, calls)
        except JournalError as error:
            self._live.mark_lost(str(error))

    async def serialize(self, engine: Engine, policy: Serialize) -> None:
        """Wait until the resources are locked for this transaction.

        Raises:
            ResourceBusy: another transaction holds one for too long; this step has ended then.
        """
        try:
            self._live.claimed = await lock_resources(engine, self._lease, policy)
        except BaseException as error:
            self.abort(f"{type(error).__name__} before it began")
            raise

    async def require_released(self, engine: Engine, call: LiveCallRequest, claimed: Claimed | None) -> None:
        """Evaluate the policy for a live call that requires it, before anything is journaled or run.

        Raises:
            Stopped, WorldError: it may not run (live/calls.py).
        """
        await require_released(engine, call, run_key=self.run_key, txn=self.txn, claimed=claimed, noted=True)

    def begin_live(self, tool: Tool, raw: bytes, call_key: str, secret: tuple[str, ...]) -> Callable[[], Any]:
        """Journal one live effect and return the function that runs it."""
        if tool.adapter is None:
            raise AssertionError("registration refuses a live tool without an adapter")
        args = tool.signature.retype(raw)
        row = self._list.run(tool, raw, call_key, secret)
        if secret:
            self._live.mark_secret(tool)
        call, running = LiveCall(tool.name, args, row.effect_id), LiveEffectRun(row, tool.adapter.name)
        return functools.partial(
            running.run,
            functools.partial(self._run_live, tool, call),
            functools.partial(self._record_undone, tool),
            functools.partial(self._list.keep, row, tool),
            awaited=tool.is_async,
        )

    def _run_live(self, tool: Tool, call: LiveCall) -> Any:
        return self._live.run(tool, call)

    def _record_undone(self, tool: Tool, rows: Sequence[StagedRow], error: BaseException) -> None:
        """Record rolled-back live effects. If that fails, the transaction must not commit: they would count as kept."""
        if self._pid != os.getpid():
            return  # a fork inside the effect: its rows belong to the parent
        why = f"{tool.name} raised {describe_block_error(error, has_secrets=self._list.live_has_secrets)}"
        try:
            self._list.drop_undone(rows, why)
        except BaseException as error:
            self._live.mark_lost(
                f"{why}, and that could not be journaled: {text_of(error) or type(error).__name__}"
            )
            if not isinstance(error, Exception):
                raise

    @contextmanager
    def savepoint(self, engine: Engine) -> Iterator[None]:
        """A block that is rolled back if it raises. The journal keeps the calls it made; `engine` reads the
        manifests, blocking, to find their secrets.

        Raises:
            NotStageable: an adapter has no savepoints, or a live effect is running.
            SavepointLost, SessionLost: a live effect could not be rolled back alone.
        """
        staged, live = len(self._list.calls), self._list.live
        try:
            with self._live.savepoint():
                yield
        except ALL_LOST:
            raise  # the state is unknown, so nothing is recorded before all of it is undone
        except BaseException as error:
            if self._pid == os.getpid():
                self._roll_back(engine, staged, live, error)
            raise

    def _roll_back(self, engine: Engine, staged: int, live: int, raised: BaseException) -> None:
        """Remove the block's calls from the list. If the journal fails, the transaction must not commit."""
        try:
            try:
                run_sync(self.learn_secrets(engine))
            finally:
                self._list.roll_back(staged, live, f"the inner block raised {self._described(raised)}")
        except BaseException as error:
            self._live.mark_lost(text_of(error) or type(error).__name__)
            raise

    @property
    def has_secrets(self) -> bool:
        """Whether an error of the block may quote a secret argument, as far as known."""
        return self._list.has_secrets

    async def learn_secrets(self, engine: Engine) -> None:
        """Read the manifests of the calls, so that the journal can keep calls that are not submitted."""
        await self._list.learn_secrets(engine)

    def undo_live(self) -> None:
        """Undo the live effects, before anything else is waited for."""
        self._live.undo()

    def abort(self, note: str) -> None:
        """Roll everything back and release the lease."""
        with self._ending(), self._undone_live():
            try:
                self._forget(note)
            finally:
                with log_cleanup_errors(self.txn):
                    self._journal.leases.release(self._lease)

    def drop(self) -> None:
        """End a step whose ending was interrupted."""
        if self._ended:
            return
        log.warning("transaction %s was interrupted while ending; it is ended now", self.txn[:12])
        try:
            if not self._in_force:
                self._forget("it was interrupted before it was submitted")
            self._end()
        except Exception as error:  # noqa: BLE001 - the caller gets the interrupt; recovery handles this
            log.warning("transaction %s could not be ended: %s", self.txn[:12], text_of(error))

    async def commit(self, engine: Engine, terms: CommitOptions) -> None:
        """Commit the staged calls and set the placeholders.

        Raises:
            CountersignError: as in commit/commit.py and commit/finalizer.py; placeholders then hold what is known.
        """
        why: str | None = None
        with tracing.span("countersign transaction", txn=self.txn, effects=len(self._list.calls)) as tell:
            try:
                results = await self._commit(engine, terms)
                self._list.settle(results, submitted=self._in_force)
            except BaseException as error:
                if not isinstance(error, Exception):
                    # On disk first: recovery must not begin later what the caller believes did not happen.
                    with log_cleanup_errors(self.txn):
                        self._journal.transactions.stop(
                            self._lease, f"its program was stopped ({type(error).__name__})"
                        )
                elif not isinstance(error, ReviewPending | ServiceUnavailable):
                    await self.learn_secrets(engine)  # manifests of planned calls are cached
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
        """The transaction's state in the journal."""
        return self._journal.transactions.require(self.txn).state

    async def _commit(self, engine: Engine, terms: CommitOptions) -> dict[str, object]:
        self._live.end_block()
        self._live.require_whole()
        if not self._list.live:
            self._live.undo()  # effects that raised were rolled back, so an empty session decides nothing
        if self._live.claimed and not self._live:
            # so that no other transaction waits for it while people decide
            self._journal.resource_locks.drop(self._lease)
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
            undo_orphaned_sessions(engine, self.txn)  # sessions of dead runs; this run's own are not touched
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
        await flush_outbox(engine)  # earlier outcomes are reported before a new submission
        plan = replace(plan, attempt_id=attempt_id)
        return await Commit(engine, self._lease, plan, self._live, terms).run()

    async def _plan(self, engine: Engine) -> Plan:
        """The frozen list."""
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
        """Close sessions, mark live rows as undone unless maybe committed, release the lease. `why`: of a failure."""
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
        """Mark the step as ended, also after an error, but not after an interrupt."""
        try:
            yield
        except Exception:
            self._ended = True
            raise
        self._ended = True

    @contextmanager
    def _undone_live(self) -> Iterator[None]:
        """Undo the live effects first. What could not be undone stays `live` in the journal, for recovery."""
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
