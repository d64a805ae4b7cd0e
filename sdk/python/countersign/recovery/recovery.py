"""Finish what other processes left: parked transactions approved since, and work that a crash interrupted.

Rules: a transaction with a living owner is left alone (its lease shows that). Before the redemption nothing is fired
without a release, and what was never submitted ends. After it transactions roll forward (roll_forward.py). An error of
one transaction does not block the others. Running it again changes nothing. A transaction is fired only from the
journal that staged it, with the tools its module defines, and only if their reviewed manifests are unchanged. A damaged
or unreadable record is left as it is, for a person to look at.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from countersign import tracing
from countersign.commit.commit import Commit
from countersign.commit.plan import Plan
from countersign.commit.reconciliation import adopt_redemption, fetch_transaction, flush_outbox, is_same_list
from countersign.commit.restored_service import report_to_restored_service
from countersign.commit.review import CommitOptions, record_service_state, review_pending_error
from countersign.commit.tool_errors import MAX_ERROR
from countersign.concurrency import run_sync
from countersign.contract.states import TxnState
from countersign.contract.wire import TransactionView
from countersign.errors import (
    UNNAMED,
    AlreadyRedeemed,
    CountersignError,
    Denied,
    FireError,
    IsolationConflict,
    JournalError,
    OutcomeUnknown,
    OverQuota,
    ReleaseRefused,
    RerunDiffers,
    ReviewPending,
    ServiceRefused,
    ServiceUnavailable,
    ToolRaised,
    TransactionBusy,
    WorkerStopping,
)
from countersign.errors.base import describe_lease_owner
from countersign.errors.execution import error_location
from countersign.journal import Lease, LocalTxn, TransactionRecord
from countersign.journal.chain import find_damage
from countersign.journal.states import OPEN_TXN
from countersign.journal.steps import RecordedStep
from countersign.live.sessions import has_no_arguments
from countersign.live.work import LiveWork, undo_orphaned_sessions
from countersign.process_runtime import default_runtime
from countersign.recovery.prior_run import plan_from_journal, settle_live_only
from countersign.recovery.roll_forward import RollForward
from countersign.runtime import Engine, Runtime
from countersign.texts import storable, text_of
from countersign.tools.context import require_no_probe
from countersign.tools.registered_steps import RegisteredStep

log: Final = logging.getLogger("countersign")


def describe_recovery_error(engine: Engine, error: Exception) -> str:
    """The text of an SDK error, without the advice to resume. For any other error, which may quote values (a
    database does): its type and location, and its text only if no unfinished transaction has secrets, because an
    adapter may finish another transaction's work.
    """
    if isinstance(error, ToolRaised) or has_no_arguments(error):
        return error.briefly if isinstance(error, OutcomeUnknown) else str(error)
    text = "" if engine.journal.transactions.unfinished_has_secrets() else _one_line(error)
    return f"{type(error).__name__}{text and f': {text}'} (at {error_location(error)})"


def record_note(engine: Engine, lease: Lease, note: str | None) -> None:
    """Write the note to the transaction unless it is there already. A journal error is logged and blocks no other
    transaction.
    """
    journal = engine.journal.transactions
    try:
        if journal.require(lease.txn).note != note:
            journal.note(lease, note)
    except JournalError as error:
        log.warning("%s: its note could not be journaled: %s", lease.txn[:12], error)


def _one_line(error: Exception) -> str:
    """The text in one line. An OSError without its file name, which may be another transaction's."""
    text = storable(error.strerror or "") if isinstance(error, OSError) else text_of(error)
    return " ".join(text.split())[:MAX_ERROR]


_NEVER_SENT: Final = "its process ended before it was submitted; run it again"
_GONE: Final = "it ended in the policy service without a redemption, and was archived; take another run key"
_UNSPENT: Final = frozenset({TxnState.REVIEW, TxnState.READY})
_RUN_AGAIN: Final = "it ended before anything was redeemed; run it again under its key"
_NAMELESS: Final = "it ended before anything was redeemed, and without a key no other run can find it again"
_SUPERSEDED: Final = "another list was staged under its key since"
_BY_ANOTHER: Final = "another process has finished it"
_BODY_DIED: Final = "its process ended inside the body"


@dataclass(frozen=True, slots=True)
class RecoveryResult:
    """What recovery found and did with one transaction. `before` and `after` are None if its record cannot be read."""

    txn: str
    run_key: str
    before: LocalTxn | None
    after: LocalTxn | None
    note: str
    waiting: bool = False  # a review is pending, or another process owns it: retry later

    @property
    def needs_attention(self) -> bool:
        """Whether it is unfinished for another reason than a pending review or another owner: an unknown outcome, an
        unavailable service, or an error.
        """
        return not self.waiting and (self.after is None or self.after in OPEN_TXN)


class StepDue(Exception):
    """No error: a transaction is approved, and its registered step must run again. `approved`: tools and call keys."""

    def __init__(
        self, step: RegisteredStep, recorded: RecordedStep, approved: Sequence[tuple[str, str]]
    ) -> None:
        super().__init__(step.name)
        self.step = step
        self.recorded = recorded
        self.approved = approved


async def resume_all(engine: Engine) -> list[RecoveryResult]:
    """Process the journal once, oldest first, then report pending outcomes."""
    return [found async for found in resume_each(engine)]


async def resume_each(engine: Engine) -> AsyncIterator[RecoveryResult]:
    """The same, one by one as they finish; ends early if the engine is stopping."""
    await _tell_restored(engine)
    for txn in engine.journal.transactions.unfinished():
        if engine.stopping():
            break
        yield await resume_one(engine, txn)
    await flush_outbox(engine)


async def _tell_restored(engine: Engine) -> None:
    """Report again to a restored service, even if there is nothing to finish."""
    try:
        await report_to_restored_service(engine)
    except (ServiceUnavailable, ServiceRefused) as error:
        log.warning("could not check whether the service was restored: %s", error)


async def resume_one(engine: Engine, txn: str) -> RecoveryResult:
    """Finish one transaction as far as possible now."""
    try:
        record = engine.journal.transactions.require(txn)
    except JournalError as damaged:
        return RecoveryResult(txn, engine.journal.transactions.key_of(txn), None, None, str(damaged))
    found = await _with_lease(engine, record)
    if isinstance(found, RecoveryResult):
        return found
    return await _with_step(engine, record, found)


async def _with_step(engine: Engine, record: TransactionRecord, due: StepDue) -> RecoveryResult:
    """Run its step again, which takes the lease as any run does. A step that fails for a reason of its own is not run
    again by this process: a worker would repeat it every few seconds.
    """
    waiting = False
    try:
        await due.step.run_again(due.step, engine, record, due.recorded, due.approved)
        note = "fired"
    except (ReviewPending, TransactionBusy, WorkerStopping) as pending:
        note, waiting = str(pending), True
    except (ServiceUnavailable, OverQuota, IsolationConflict) as passing:
        note = describe_recovery_error(engine, passing)
    except Exception as error:  # noqa: BLE001 - as below
        note = describe_recovery_error(engine, error)
        if isinstance(error, RerunDiffers):
            note = (
                f"step {due.step.name!r} stages another list than the approved one: call {error.position} was "
                f"{error.before or 'absent'} and is now {error.now or 'absent'}. Nothing of it was submitted; run it "
                f"under key {record.run_key!r} yourself, and people decide anew"
            )
        due.step.failed[record.txn] = note
        log.error("%s: step %r, run again, ended with: %s", record.txn[:12], due.step.name, note)
        _note_failed_step(engine, record, note)
    after = engine.journal.transactions.require(record.txn).state
    return RecoveryResult(record.txn, record.run_key, record.state, after, note, waiting)


def _note_failed_step(engine: Engine, record: TransactionRecord, note: str) -> None:
    lease = engine.journal.leases.acquire(record.txn)
    if isinstance(lease, str):
        return  # its program runs, and writes what it finds
    try:
        record_note(engine, lease, note)
    finally:
        engine.journal.leases.release(lease)


async def _with_lease(engine: Engine, record: TransactionRecord) -> RecoveryResult | StepDue:
    txn = record.txn
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
        record = engine.journal.transactions.require(record.txn)  # as of the acquired lease
        if record.state not in OPEN_TXN:
            note = _BY_ANOTHER
        else:
            note = find_damage(engine.journal.database, txn) or await _traced(engine, lease, record)
        waiting = False
    except StepDue as due:
        return due
    except ReviewPending as pending:
        note, waiting = str(pending), True
        if record.state is not LocalTxn.STOPPED:
            record_note(engine, lease, None)  # the earlier problem is gone
    except WorkerStopping as stopping:
        note, waiting = str(stopping), True
    except Exception as error:  # noqa: BLE001 - an adapter may raise anything, and must not block the next transactions
        note = describe_recovery_error(engine, error)
        waiting = isinstance(error, FireError) and error.only_reviews_remain
        if not isinstance(error, CountersignError):
            log.error("%s could not be finished: %s", record.txn[:12], note)
        if not isinstance(error, OutcomeUnknown):  # it was noted where the outcome became unknown
            record_note(engine, lease, note)
    finally:
        engine.journal.leases.release(lease)
    after = engine.journal.transactions.require(record.txn).state
    return RecoveryResult(record.txn, record.run_key, record.state, after, note, waiting)


async def _traced(engine: Engine, lease: Lease, record: TransactionRecord) -> str:
    """Run in the trace of the agent that staged the transaction."""
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
    """Fire only what was parked. Other lists are for their own program to run again, and stay open while a review is
    pending or approved.
    """
    asked_at = engine.clock.monotonic()
    try:
        view = await fetch_transaction(engine, plan.txn, plan.run_key)
    except AlreadyRedeemed as archived:
        undo_orphaned_sessions(engine, plan.txn)
        engine.journal.transactions.end(lease, LocalTxn.ENDED, str(archived))
        return str(archived)
    if view is not None and await adopt_redemption(engine, lease, plan, view):
        await RollForward(engine, lease, plan, LiveWork(plan.txn)).run()
        return "finished"
    undo_orphaned_sessions(engine, plan.txn)
    if view is None or not is_same_list(view, plan):
        never_sent = _NEVER_SENT if record.state is LocalTxn.FROZEN else _GONE
        note = never_sent if view is None else _SUPERSEDED
        engine.journal.transactions.end(lease, LocalTxn.ENDED, note)
        return note
    if view.state in _UNSPENT:
        if not record.parked:
            return _leave_to_program(engine, lease, record, view)
        await _require_unchanged(engine, plan)
    try:
        takes = engine.journal.edits.of(plan.txn)
        terms = CommitOptions(accept_edits=takes, keep_approved=True)
        await Commit(engine, lease, plan, LiveWork(plan.txn), terms).go_on(view, asked_at)
    except (Denied, AlreadyRedeemed) as ended:
        engine.journal.transactions.end(lease, LocalTxn.ENDED, str(ended))
        return str(ended)
    return "fired"


def _leave_to_program(engine: Engine, lease: Lease, record: TransactionRecord, view: TransactionView) -> str:
    """Leave the list to its own program: only the body can recreate live effects, and a program that died while
    submitting does not know that its list is parked. With a review it stays open. Without one, or if no other run
    can find it, it ends, and another run is decided anew.

    Raises:
        StepDue: it is approved, and its body is a registered step.
        ReviewPending: the review is pending.
    """
    if record.run_key.startswith(UNNAMED) or all(one.review is None for one in view.effects):
        note = _NAMELESS if record.run_key.startswith(UNNAMED) else _RUN_AGAIN
        engine.journal.transactions.end(lease, LocalTxn.ENDED, note)
        return note
    stopped = record.state is LocalTxn.STOPPED  # and stays so: its last request may still be in flight
    if not stopped and (record.state.value, record.rev) != (view.state.value, view.rev):
        record_service_state(engine, lease, view)
    if view.state is TxnState.REVIEW:
        raise review_pending_error(view, record.run_key, parked=False)
    recorded = engine.journal.steps.of(record.txn)
    step = None if recorded is None else engine.registry.find_step(recorded.name)
    if step is not None and record.txn in step.failed:
        return step.failed[record.txn]
    if recorded is not None and step is not None:
        raise StepDue(step, recorded, [(one.tool, one.call_key) for one in view.effects])
    note = f"it is approved, and only its own program can fire it: run it again under key {record.run_key!r}"
    if recorded is not None:
        note = (
            f"it is approved, and step {recorded.name!r} is not registered here: name the module that defines it with "
            f"--tools, or run it again under key {record.run_key!r}"
        )
    record_note(engine, lease, note)
    return note


async def _require_unchanged(engine: Engine, plan: Plan) -> None:
    """The tool that would fire must be the tool that was reviewed (design section 3, tool_digest).

    Raises:
        ReleaseRefused: a manifest has changed.
    """
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
    return run_sync(resume_all(chosen.engine(chosen.sync_executor())))


async def resume_async(runtime: Runtime | None = None) -> list[RecoveryResult]:
    """Finish what can be finished, on the event loop, with plain and async tools."""
    require_no_probe("resumes transactions")
    chosen = runtime or default_runtime()
    executor = chosen.async_executor()
    async with executor.opened():
        return await resume_all(chosen.engine(executor))
