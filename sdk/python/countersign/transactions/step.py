"""One journaled transaction being staged and committed: lease, list and placeholders.

`transaction()` has one of these; with independent=True, one for every staged effect. Rules: a call is journaled before
its placeholder is returned; a redeemed transaction is never submitted again, its results come from the journal; an
error before the redemption leaves live effects undone and the lease free.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, Self

from countersign import tracing
from countersign.commit.commit import Commit
from countersign.commit.live_commit import commit_live_only
from countersign.commit.plan import Plan, PlannedCall, StagedCall, plan_calls, require_resumable
from countersign.commit.reconciliation import flush_outbox
from countersign.commit.review import CommitOptions
from countersign.commit.tool_errors import describe_block_error
from countersign.contract import digests
from countersign.errors import JournalError, ReviewPending, ServiceUnavailable, TransactionBusy
from countersign.journal import Journal, Lease, LocalState, LocalTxn
from countersign.live.work import LiveWork, undo_orphaned_sessions
from countersign.recovery.roll_forward import journaled_results
from countersign.runtime import Engine
from countersign.texts import text_of
from countersign.tools.definition import Tool
from countersign.tools.results import Placeholder
from countersign.transactions.call_list import CallList, log_cleanup_errors
from countersign.transactions.earlier_run import (
    finish_prior_run,
    look_up_redemption,
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
        self._live: LiveWork | None = None  # begun by the first live effect
        self._in_force = False  # the list was frozen, or an earlier run's was found redeemed
        self._ended = False

    @classmethod
    async def open(
        cls, engine: Engine, *, txn: str, run_key: str, independent: bool, patient: bool = True
    ) -> Self:
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
        effect_id = digests.effect_id(txn=self.txn, call_key=call_key)
        return self._list.stage(StagedCall(tool, raw, n, call_key, effect_id, group, secret))

    @property
    def has_secrets(self) -> bool:
        """Whether an error of the block may quote a secret argument, as far as known."""
        return self._list.has_secrets

    async def learn_secrets(self, engine: Engine) -> None:
        """Read the manifests of the calls, so that the journal can keep calls that are not submitted."""
        await self._list.learn_secrets(engine)

    def undo_live(self) -> None:
        """Undo the live effects, before anything else is waited for."""
        if self._live is not None:
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
            CountersignError: as in commit/commit.py and commit/failure.py; placeholders then hold what is known.
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
        if self._live is not None:
            self._end_live(self._live)
        plan = await self._plan(engine)
        earlier = self._journal.transactions.require(self.txn)
        if earlier.staging is not None and not earlier.redeemed and earlier.state in _MAYBE_REDEEMED:
            earlier = await look_up_redemption(engine, self._lease, earlier)
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
            self.undo_live()
            self.replayed = True
            return {}
        if not self._list.is_first and self._journal.transactions.live_tools(self.txn):
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

    def _end_live(self, live: LiveWork) -> None:
        live.end_block()
        live.require_whole()
        if not self._list.live:
            live.undo()  # effects that raised were rolled back, so an empty session decides nothing
        if live.claimed and not live:
            # so that no other transaction waits for it while people decide
            self._journal.resource_locks.drop(self._lease)

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
                    if self._live is not None and not self._live.may_stand:
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
            self.undo_live()
        except BaseException:
            with log_cleanup_errors(self.txn):
                self._journal.leases.release(self._lease)
            raise
        yield

    def _forget(self, note: str) -> None:
        with log_cleanup_errors(self.txn):
            self._journal.transactions.abort(self._lease, self._list.staging, note, self._list.rows)


_MAYBE_REDEEMED: Final = frozenset({LocalTxn.FROZEN, LocalTxn.READY, LocalTxn.STOPPED, LocalTxn.UNSETTLED})
