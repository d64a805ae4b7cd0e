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
from countersign.answering import Answering
from countersign.commit import Commit
from countersign.contract.wire import Claimed
from countersign.edits import Judge
from countersign.engine import Engine
from countersign.errors import AlreadyRedeemed, JournalError, SavepointLost, TransactionBusy
from countersign.fire_errors import LiveCommitFailed
from countersign.forward import Forward, results_in_journal
from countersign.isolation import Serialize, claim
from countersign.journal import Journal, Lease, LocalState, LocalTxn, TransactionRecord
from countersign.journal.reading import LIVE_LANE
from countersign.listing import Listing
from countersign.live import CommitFailed, LiveWork
from countersign.lost_redemption import adopt, look
from countersign.placeholder import Placeholder
from countersign.plan import Plan, StagedCall, plan_calls, plan_from_journal
from countersign.remains import undo_remains
from countersign.reporting import flush
from countersign.tool import Tool

log: Final = logging.getLogger("countersign")

_MAYBE_REDEEMED: Final = frozenset({LocalTxn.FROZEN, LocalTxn.READY})
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
        self._list = Listing(journal, lease)
        self._live = LiveWork(lease.txn)
        self._in_force = False  # the list was frozen, or an earlier run's was found redeemed

    @classmethod
    async def open(
        cls, engine: Engine, *, txn: str, run_key: str, independent: bool, patient: bool = True
    ) -> Step:
        """Take the transaction's lease; a second run of the same key waits a little for the first.

        Raises:
            TransactionBusy: somebody alive owns it.
        """
        agent, journal = engine.settings.agent, engine.journal
        waited, until = 0.0, engine.settings.lease_wait_seconds if patient else 0.0
        while True:
            with journal.database.unit(durable=False):  # the row, its lease and its list begin in one commit
                journal.transactions.open(txn=txn, agent=agent, run_key=run_key, independent=independent)
                lease = journal.leases.acquire(txn)
                if isinstance(lease, Lease):
                    return cls(journal, lease, agent=agent, run_key=run_key, independent=independent)
            if waited >= until:
                raise TransactionBusy(run_key, lease, waited)
            await engine.waits.sleep(_LEASE_POLL_SECONDS)
            waited += _LEASE_POLL_SECONDS

    @property
    def calls(self) -> tuple[StagedCall, ...]:
        """The staged calls, in order."""
        return self._list.calls

    def stage(self, tool: Tool, raw: bytes, n: int, call_key: str, group: int = 0) -> Placeholder[Any]:
        """Write one call down and answer its placeholder."""
        return self._list.stage(tool, raw, n, call_key, group)

    def order(self, start: int, calls: Sequence[StagedCall]) -> None:
        """Let the calls from `start` on stand in this order."""
        self._list.order(start, calls)

    async def serialize(self, engine: Engine, policy: Serialize) -> None:
        """Wait until the resources are this transaction's alone.

        Raises:
            ResourceBusy: somebody else keeps one for too long; this step has ended then.
        """
        try:
            self._live.claimed = await claim(engine, self._lease, policy)
        except BaseException as error:
            self.abort(f"{type(error).__name__} before it began")
            raise

    def begin_live(self, tool: Tool, raw: bytes, call_key: str) -> Callable[[], Any]:
        """Write one live effect down and answer how to run it."""
        effect_id = self._list.run(tool, raw, call_key)
        call = LiveCall(tool.name, tool.signature.retype(raw), effect_id)
        return functools.partial(self._live.run, tool, call)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A block that leaves nothing of itself if it raises.

        Raises:
            NotStageable: an adapter has no savepoints, or a live effect is running.
            SavepointLost: a live effect could not be taken back alone.
        """
        staged, live = len(self._list.calls), self._list.live
        try:
            with self._live.savepoint():
                yield
        except SavepointLost:
            raise  # nobody knows what stands, so nothing is noted before all of it is undone
        except BaseException:
            if self._pid == os.getpid():
                self._list.take_back(staged, live)
            raise

    def abort(self, note: str) -> None:
        """The body raised: nothing of it stands."""
        with self._undone_live(), self._no_journal_trouble():
            self._journal.transactions.abort(self._lease, self._list.staging, note)
            self._journal.leases.release(self._lease)

    async def commit(
        self,
        engine: Engine,
        *,
        wait: float,
        claimed: Claimed | None,
        accept_edits: Judge = False,
        answering: Answering | None = None,
    ) -> None:
        """Commit what was staged and settle the placeholders.

        Raises:
            CountersignError: as commit.py and settling.py say; placeholders then tell what is known.
        """
        with tracing.span("countersign transaction", txn=self.txn, effects=len(self._list.calls)) as tell:
            try:
                results = await self._commit(engine, wait, claimed, accept_edits, answering)
                self._settle(results)
            except BaseException as error:
                if not self._in_force:
                    self._forget(f"{type(error).__name__} before it was submitted")
                self._settle({})
                raise
            finally:
                self._end()
                if tracing.enabled():
                    with self._no_journal_trouble():
                        tell(state=self.state().value, replayed=self.replayed)

    def state(self) -> LocalTxn:
        """Where the transaction stands in the journal."""
        return self._journal.transactions.require(self.txn).state

    async def _commit(
        self,
        engine: Engine,
        wait: float,
        claimed: Claimed | None,
        accept_edits: Judge,
        answering: Answering | None,
    ) -> dict[str, object]:
        self._live.require_whole()
        if self._live.claimed and not self._live:
            self._journal.claims.drop(self._lease)  # nobody waits for it while people decide
        plan = Plan(
            agent=self._agent,
            run_key=self.run_key,
            txn=self.txn,
            independent=self._independent,
            calls=await plan_calls(
                self._list.calls,
                agent=self._agent,
                txn=self.txn,
                manifests=engine.manifests,
                registry=engine.registry,
                service=engine.service,
            ),
            staging=self._list.staging,
            live=self._list.live,
        )
        earlier = await self._earlier(engine)
        if earlier.redeemed:
            self._in_force = True
            return await self._replay(engine, earlier, plan)
        if earlier.landed or earlier.state is LocalTxn.UNSETTLED:
            return self._landed_before(earlier, plan)
        if not self._list.is_first:
            undo_remains(engine, self.txn)  # of runs that died; this one's own sessions are not touched
        attempt_id = self._journal.transactions.freeze(
            self._lease, self._list.staging, plan.effects, txn_digest=plan.txn_digest, live=plan.live
        )
        self._in_force = True
        self._journal.traces.keep(self.txn, tracing.here())
        self._journal.edits.keep(self.txn, every=accept_edits is True)
        if not plan.calls:
            return await self._commit_live_only(engine, earlier, attempt_id)
        await flush(engine)  # what an earlier run still owes is told before anything new is asked
        plan = replace(plan, attempt_id=attempt_id)
        commit = Commit(
            engine,
            self._lease,
            plan,
            self._live,
            wait=wait,
            claimed=claimed,
            accept_edits=accept_edits,
            answering=answering,
        )
        return await commit.run()

    async def _earlier(self, engine: Engine) -> TransactionRecord:
        """The record of earlier runs; a redemption whose answer was lost is found now, before its list is
        replaced.
        """
        record = self._journal.transactions.require(self.txn)
        if record.staging is None or record.redeemed or record.state not in _MAYBE_REDEEMED:
            return record
        view = await look(engine, self.txn)
        before = plan_from_journal(record, self._journal, engine.registry)
        if view is not None:
            await adopt(engine, self._lease, before, view)
        elif before.live and not before.calls:
            Forward(engine, self._lease, before, LiveWork(self.txn)).settle_live_only()
        return self._journal.transactions.require(self.txn)

    def _landed_before(self, earlier: TransactionRecord, plan: Plan) -> dict[str, object]:
        """Live work alone was committed under this key, so this step has been done, as with a redemption."""
        self._in_force = True
        rows = self._journal.transactions.effects(earlier, LIVE_LANE)
        same = not plan.calls and sorted(row.call_key for row in rows) == sorted(self._list.live_keys)
        if not (earlier.landed and same):
            why = "another list of calls was committed" if earlier.landed else earlier.note or ""
            raise AlreadyRedeemed(self.run_key, self.txn, earlier.state.value, why)
        self._live.undo()
        self.replayed = True
        return {}

    async def _replay(self, engine: Engine, earlier: TransactionRecord, plan: Plan) -> dict[str, object]:
        """This key was redeemed before: bring that to its end if need be, and answer what it answered."""
        before = plan_from_journal(earlier, self._journal, engine.registry)
        if before.list_key != plan.list_key:
            raise AlreadyRedeemed(
                self.run_key, self.txn, earlier.state.value, "another list of calls was committed"
            )
        if earlier.state in {LocalTxn.REDEEMED, LocalTxn.UNSETTLED}:
            return await Forward(engine, self._lease, before, self._live).run() | self._known(engine, before)
        self._live.undo()
        return self._known(engine, before)

    def _known(self, engine: Engine, before: Plan) -> dict[str, object]:
        self.replayed = True
        return results_in_journal(engine, before)

    async def _commit_live_only(
        self, engine: Engine, earlier: TransactionRecord, attempt_id: str
    ) -> dict[str, object]:
        if earlier.state in {LocalTxn.REVIEW, LocalTxn.READY}:
            await engine.service.withdraw(self.txn, "its rerun staged nothing")
        self._live.verify_unmoved()
        self._live.prepare(attempt_id)
        try:
            self._live.commit(attempt_id)
        except CommitFailed as failed:
            state = LocalTxn.UNSETTLED if failed.committed else LocalTxn.ENDED
            self._journal.transactions.end(self._lease, state, str(failed))
            raise LiveCommitFailed(
                self.run_key, self.txn, failed.adapter, str(failed), {}, committed=failed.committed
            ) from failed.__cause__
        self._journal.transactions.end_live(self._lease, self._list.staging, LocalState.KEPT)
        self._journal.transactions.end(self._lease, LocalTxn.SETTLED)
        return {}

    def _settle(self, results: dict[str, object]) -> None:
        """Tell every placeholder what the journal says of its effect; nothing more is claimed."""
        try:
            record = self._journal.transactions.require(self.txn)
            rows = self._journal.transactions.effects(record) if record.staging is not None else ()
        except JournalError:
            rows = ()
        for row in rows:
            self._list.settle(row.effect_id, row.state.value, results.get(row.effect_id), row.error)

    def _end(self) -> None:
        """Whatever happened: no session stays open, no live row stays undecided, the lease is free."""
        with self._undone_live():
            try:
                with self._journal.database.unit(durable=False):
                    self._journal.transactions.end_live(self._lease, self._list.staging, LocalState.UNDONE)
                    self._journal.leases.release(self._lease)
            except JournalError as error:
                self._warn(error)
                with self._no_journal_trouble():
                    self._journal.leases.release(self._lease)

    @contextmanager
    def _undone_live(self) -> Iterator[None]:
        """Where the adapters can be made to undo. What could not be undone stays live in the journal, for recovery."""
        try:
            self._live.undo()
        except BaseException:
            with self._no_journal_trouble():
                self._journal.leases.release(self._lease)
            raise
        yield

    def _forget(self, note: str) -> None:
        with self._no_journal_trouble():
            self._journal.transactions.abort(self._lease, self._list.staging, note)

    @contextmanager
    def _no_journal_trouble(self) -> Iterator[None]:
        """Tidying up must not hide how the transaction ended; what could not be written, recovery finds out."""
        try:
            yield
        except JournalError as error:
            self._warn(error)

    def _warn(self, error: JournalError) -> None:
        log.warning("transaction %s could not be tidied up in the journal: %s", self.txn[:12], error)
