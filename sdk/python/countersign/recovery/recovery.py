"""Finish what other processes left: parked transactions that were approved since, and what a crash interrupted.

Rules: a living owner is left alone (its lease says so); before the redemption nothing is fired that no people or policy
released, and what was never submitted ends; after it things roll forward (roll_forward.py); one transaction's error
does not keep the others waiting; doing it again changes nothing. A transaction is fired only from the journal that
staged it, with the tools its module defines, and only if their reviewed manifests are still the ones it was staged
with. A record that is not as the SDK wrote it, or cannot be read, is left as it is, for a person to look at.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from countersign import tracing
from countersign.commit.attempt import MAX_ERROR
from countersign.commit.commit import Commit
from countersign.commit.plan import Plan, plan_from_journal
from countersign.commit.reconciliation import (
    adopt_redemption,
    fetch_transaction,
    flush_outbox,
    is_same_list,
    report_to_restored_service,
)
from countersign.commit.review import CommitOptions, record_service_state, review_pending_error
from countersign.contract.states import TxnState
from countersign.contract.wire import TransactionView
from countersign.errors import (
    UNNAMED,
    AlreadyRedeemed,
    CountersignError,
    Denied,
    FireError,
    JournalError,
    OutcomeUnknown,
    ReleaseRefused,
    ReviewPending,
    ServiceRefused,
    ServiceUnavailable,
    ToolRaised,
    WorkerStopping,
)
from countersign.errors.base import describe_lease_owner
from countersign.errors.execution import error_location
from countersign.journal import Lease, LocalTxn, TransactionRecord
from countersign.journal.states import OPEN_TXN
from countersign.journal.verification import find_damage
from countersign.live.sessions import has_no_arguments, undo_orphaned_sessions
from countersign.live.work import LiveWork
from countersign.recovery.prior_run import settle_live_only
from countersign.recovery.roll_forward import RollForward
from countersign.runtime import Engine, Runtime, default_runtime
from countersign.texts import storable, text_of
from countersign.tools.context import require_no_probe
from countersign.waiting import run_sync

log: Final = logging.getLogger("countersign")


def describe_recovery_error(engine: Engine, error: Exception) -> str:
    """The text of an error of ours, without the advice to resume. Of any other, which may quote the values that it
    refuses (a database does), the kind and place, and its text where no unfinished transaction has secrets: what an
    adapter finishes may be another's.
    """
    if isinstance(error, ToolRaised) or has_no_arguments(error):
        return error.briefly if isinstance(error, OutcomeUnknown) else str(error)
    text = "" if engine.journal.transactions.unfinished_has_secrets() else _one_line(error)
    return f"{type(error).__name__}{text and f': {text}'} (at {error_location(error)})"


def record_note(engine: Engine, lease: Lease, note: str | None) -> None:
    """Write it to the transaction, where it is not there already. A journal that does not take it keeps nobody else
    up.
    """
    journal = engine.journal.transactions
    try:
        if journal.require(lease.txn).note != note:
            journal.note(lease, note)
    except JournalError as error:
        log.warning("%s: the journal takes no note of it: %s", lease.txn[:12], error)


def _one_line(error: Exception) -> str:
    """In one line. An OSError without the file's name, which may be of another transaction."""
    text = storable(error.strerror or "") if isinstance(error, OSError) else text_of(error)
    return " ".join(text.split())[:MAX_ERROR]


_NEVER_SENT: Final = "its process ended before it was submitted; run it again"
_UNSPENT: Final = frozenset({TxnState.REVIEW, TxnState.READY})
_RUN_AGAIN: Final = "it ended before anything was redeemed; run it again under its key"
_NAMELESS: Final = "it ended before anything was redeemed, and without a key no other run can find it again"
_SUPERSEDED: Final = "another list was staged under its key since"
_BY_ANOTHER: Final = "another process has finished it"
_BODY_DIED: Final = "its process ended inside the body"


@dataclass(frozen=True, slots=True)
class RecoveryResult:
    """What recovery found and did with one transaction. Where its record cannot be read, nobody knows where it stands:
    `before` and `after` are None.
    """

    txn: str
    run_key: str
    before: LocalTxn | None
    after: LocalTxn | None
    note: str
    waiting: bool = False  # people are still asked, or somebody else owns it: come back later

    @property
    def needs_attention(self) -> bool:
        """It is not finished, and neither people who are asked nor another owner keep it, but an outcome nobody knows,
        a service that is away, or an error.
        """
        return not self.waiting and (self.after is None or self.after in OPEN_TXN)


async def resume_all(engine: Engine) -> list[RecoveryResult]:
    """Go through the journal once, oldest first, and report what was left over."""
    return [found async for found in resume_each(engine)]


async def resume_each(engine: Engine) -> AsyncIterator[RecoveryResult]:
    """The same, one by one as they are finished; the rest is left alone once the engine is stopping."""
    await _tell_restored(engine)
    for txn in engine.journal.transactions.unfinished():
        if engine.stopping():
            break
        yield await resume_one(engine, txn)
    await flush_outbox(engine)


async def _tell_restored(engine: Engine) -> None:
    """A service that was restored hears what it has forgotten, also where nothing is left to finish."""
    try:
        await report_to_restored_service(engine)
    except (ServiceUnavailable, ServiceRefused) as error:
        log.warning("the service could not be asked whether it was restored: %s", error)


async def resume_one(engine: Engine, txn: str) -> RecoveryResult:
    """Finish one transaction as far as that goes now."""
    try:
        record = engine.journal.transactions.require(txn)
    except JournalError as damaged:
        return RecoveryResult(txn, engine.journal.transactions.key_of(txn), None, None, str(damaged))
    lease = engine.journal.leases.acquire(record.txn)
    if isinstance(lease, str):
        return RecoveryResult(
            record.txn,
            record.run_key,
            record.state,
            record.state,
            f"owned by {describe_lease_owner(lease)}",
            waiting=True,
        )
    try:
        record = engine.journal.transactions.require(record.txn)  # as it is now that it is ours
        if record.state not in OPEN_TXN:
            note = _BY_ANOTHER
        else:
            note = find_damage(engine.journal.database, txn) or await _traced(engine, lease, record)
        waiting = False
    except ReviewPending as pending:
        note, waiting = str(pending), True
        if record.state is not LocalTxn.STOPPED:
            record_note(engine, lease, None)  # what kept it up before is over
    except WorkerStopping as stopping:
        note, waiting = str(stopping), True
    except Exception as error:  # noqa: BLE001 - an adapter may raise anything, and the transactions after this one wait
        note = describe_recovery_error(engine, error)
        waiting = isinstance(error, FireError) and error.only_reviews_remain
        if not isinstance(error, CountersignError):
            log.error("%s could not be finished: %s", record.txn[:12], note)
        if not isinstance(error, OutcomeUnknown):  # who found it out has left word of what is not known
            record_note(engine, lease, note)
    finally:
        engine.journal.leases.release(lease)
    after = engine.journal.transactions.require(record.txn).state
    return RecoveryResult(record.txn, record.run_key, record.state, after, note, waiting)


async def _traced(engine: Engine, lease: Lease, record: TransactionRecord) -> str:
    """In the trace of the agent that staged it, wherever this process runs and whenever."""
    begun = engine.journal.traces.find(record.txn) if tracing.enabled() else None
    with tracing.resumed_span("countersign resume", begun, txn=record.txn, before=record.state.value) as tell:
        try:
            return await _finish(engine, lease, record)
        finally:
            if tracing.enabled():
                tell(state=engine.journal.transactions.require(record.txn).state.value)


async def _finish(engine: Engine, lease: Lease, record: TransactionRecord) -> str:
    if record.staging is None:
        undo_orphaned_sessions(engine, record.txn)
        engine.journal.transactions.abort_all(lease, _BODY_DIED)
        return _BODY_DIED
    plan = plan_from_journal(record, engine.journal, engine.registry)
    if not plan.calls:
        return settle_live_only(engine, lease, plan)
    if record.redeemed:
        await RollForward(engine, lease, plan, LiveWork(record.txn)).run()
        return "finished"
    return await _before_redemption(engine, lease, record, plan)


async def _before_redemption(engine: Engine, lease: Lease, record: TransactionRecord, plan: Plan) -> str:
    """Only what was parked is fired from here: the rest is for its own program to run again, and stays open for as long
    as people are asked or have agreed.
    """
    asked_at = engine.clock.monotonic()
    view = await fetch_transaction(engine, plan.txn)
    if view is not None and await adopt_redemption(engine, lease, plan, view):
        await RollForward(engine, lease, plan, LiveWork(plan.txn)).run()
        return "finished"
    undo_orphaned_sessions(engine, plan.txn)
    if view is None or not is_same_list(view, plan):
        note = _NEVER_SENT if view is None else _SUPERSEDED
        engine.journal.transactions.end(lease, LocalTxn.ENDED, note)
        return note
    if view.state in _UNSPENT:
        if not record.parked:
            return _left_to_its_program(engine, lease, record, view)
        await _require_unchanged(engine, plan)
    try:
        takes = engine.journal.edits.of(plan.txn)
        terms = CommitOptions(accept_edits=takes, keep_approved=True)
        await Commit(engine, lease, plan, LiveWork(plan.txn), terms).go_on(view, asked_at)
    except (Denied, AlreadyRedeemed) as ended:
        engine.journal.transactions.end(lease, LocalTxn.ENDED, str(ended))
        return str(ended)
    return "fired"


def _left_to_its_program(
    engine: Engine, lease: Lease, record: TransactionRecord, view: TransactionView
) -> str:
    """What was staged beside live effects only the body can bring back, and of a step that died as it was submitted
    nobody was told that it is parked. It stays open for the sake of the people who were asked: where nobody was, or no
    other run can find it again, it ends, and another run is decided anew.

    Raises:
        ReviewPending: people are still asked.
    """
    if record.run_key.startswith(UNNAMED) or all(one.review is None for one in view.effects):
        note = _NAMELESS if record.run_key.startswith(UNNAMED) else _RUN_AGAIN
        engine.journal.transactions.end(lease, LocalTxn.ENDED, note)
        return note
    stopped = record.state is LocalTxn.STOPPED  # and stays so: its last request may still be on its way
    if not stopped and (record.state.value, record.rev) != (view.state.value, view.rev):
        record_service_state(engine, lease, view)
    if view.state is TxnState.REVIEW:
        raise review_pending_error(view, record.run_key, parked=False)
    note = f"it is approved, and only its own program can fire it: run it again under key {record.run_key!r}"
    record_note(engine, lease, note)
    return note


async def _require_unchanged(engine: Engine, plan: Plan) -> None:
    """The tool that would fire must be the tool that was reviewed (design section 3, tool_digest)."""
    for call in plan.calls:
        now = await engine.manifests.of(call.tool, engine.service)
        if now.digest != call.effect.tool_digest:
            raise ReleaseRefused(
                plan.txn,
                f"the reviewed manifest of {call.tool.name!r} has changed since it was staged",
                advice="Run it again under its key: it is decided anew, by what the manifest says now.",
            )


def resume(runtime: Runtime | None = None) -> list[RecoveryResult]:
    """Finish what can be finished, on this thread. Import the modules that define the tools first.

    Transactions with async tools need `resume_async`.
    """
    require_no_probe("resumes transactions")
    chosen = runtime or default_runtime()
    return run_sync(resume_all(chosen.engine(chosen.sync_waits())))


async def resume_async(runtime: Runtime | None = None) -> list[RecoveryResult]:
    """Finish what can be finished, on the event loop; plain and async tools alike."""
    require_no_probe("resumes transactions")
    chosen = runtime or default_runtime()
    waits = chosen.async_waits()
    async with waits.opened():
        return await resume_all(chosen.engine(waits))
