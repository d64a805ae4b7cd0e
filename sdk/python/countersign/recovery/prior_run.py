"""A prior run of a key: what it did, how a person closes a partly kept one, and how an open one is withdrawn.

Rules for closing: only a transaction that is unsettled for its live work, of which a part was kept and a part lost, or
no adapter can tell. It must not be owned by a living process, nor damaged, nor have staged effects that are unknown or
being compensated (people settle those in the service), nor be one that `resume` can finish. Prepared sessions are
undone first, so that nothing of it commits later, and effects not begun are unused. The record keeps who, when and why,
and stays `closed`. Its key is used up.

Rules for reporting "nothing was done", after which the caller may request the same under another key: never if
something fired or was kept, if an outcome is unknown, or if something may still fire. Open submissions are withdrawn in
the service first, or a worker could still fire them. If the service does not answer, or reports a redemption, "nothing
was done" is not reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NoReturn

from countersign.commit.compensation import is_left_in_archive
from countersign.commit.plan import Plan, PlannedCall, require_resumable
from countersign.commit.reconciliation import fetch_transaction
from countersign.commit.refusals import effect_states
from countersign.commit.review import record_service_state, require_utf8
from countersign.contract import digests
from countersign.contract.codes import ErrorCode
from countersign.contract.states import Outcome, TxnState
from countersign.errors import (
    AlreadyRedeemed,
    Denied,
    JournalError,
    JournalSealed,
    MisuseError,
    OutcomeUnknown,
    ServiceRefused,
    TransactionBusy,
)
from countersign.journal import (
    EffectOutcome,
    EffectRecord,
    Journal,
    Lease,
    LocalState,
    LocalTxn,
    TransactionRecord,
)
from countersign.journal.chain import find_damage
from countersign.journal.records import LIVE_LANE
from countersign.journal.states import IN_DOUBT, OPEN_TXN
from countersign.live.sessions import (
    AdapterCommitError,
    AdapterRecovery,
)
from countersign.live.work import LiveWork, recover_sessions, undo_orphaned_sessions
from countersign.runtime import Engine
from countersign.tools.registry import ToolRegistry

_NOTHING: Final = frozenset({LocalState.FAILED, LocalState.UNUSED})


@dataclass(frozen=True, slots=True)
class PriorRun:
    """A finished run: its staged effects, and by call key the results of its live effects, `kept` or undone; None if
    a result was not kept or its key is not available. `well`: every required effect was done. `reads`: labels of
    effects that change nothing when they fire.
    """

    record: TransactionRecord
    effects: tuple[EffectRecord, ...]
    live: Mapping[str, bytes | None]
    well: bool
    reads: frozenset[str]

    @property
    def kept(self) -> bool:
        """Whether its live effects were kept."""
        return self.record.landed

    @property
    def is_nothing(self) -> bool:
        """Whether nothing of it happened."""
        return not self.kept and all(row.state in _NOTHING for row in self.effects)

    def spent(self) -> AlreadyRedeemed:
        """The error for a program that requests something else under this key."""
        outcomes = {row.label: row.state.value for row in self.effects}
        return AlreadyRedeemed.here(
            self.record.run_key,
            self.record.txn,
            outcomes,
            self.record.state.value,
            well=self.well,
            kept=self.kept,
            reads=self.reads,
        )


def load_prior_run(journal: Journal, record: TransactionRecord) -> PriorRun:
    """Load a finished transaction."""
    rows = journal.transactions.effects(record)
    live: dict[str, bytes | None] = {row.call_key: None for row in journal.transactions.live(record)}
    with suppress(JournalSealed):  # the run is complete without them
        live |= {
            row.call_key: row.result
            for row in journal.transactions.effects(record, LIVE_LANE)
            if row.call_key in live
        }
    well = (record.landed or not live) and all(_lets_go_on(journal, row) for row in rows)
    reads = frozenset(row.label for row in rows if _only_reads(journal, row))
    return PriorRun(record, rows, live, well, reads)


def is_spent(record: TransactionRecord) -> bool:
    """Whether something of it was done, or may have been."""
    return record.redeemed or record.landed or record.state is LocalTxn.UNSETTLED


def is_superseded(journal: Journal, agent: str, run_key: str, later: Iterable[str]) -> bool:
    """Whether nothing was done or is pending under this key, but something is under a later key of its run."""

    def is_there(key: str) -> bool:
        record = journal.transactions.get(digests.txn_id(agent=agent, run_key=key))
        return record is not None and (is_spent(record) or record.state is not LocalTxn.ENDED)

    return any(is_there(key) for key in later) and not is_there(run_key)


def _only_reads(journal: Journal, row: EffectRecord) -> bool:
    effect = row.frozen()
    return effect.compensation is None and journal.manifests.get(row.tool, effect.tool_digest).reads


def _lets_go_on(journal: Journal, row: EffectRecord) -> bool:
    if row.state is not LocalState.FAILED:
        return row.state is LocalState.FIRED
    return journal.manifests.get(row.tool, row.frozen().tool_digest).may_fail


_SHORTEST_ID: Final = 8
_LONGEST: Final = {"by": 200, "why": 2000}  # characters
_DOUBTFUL: Final = IN_DOUBT | {LocalState.COMPENSATING}
_CLOSED: Final = "a person closed its transaction before it was begun"


def close(engine: Engine, beginning: str, *, by: str, why: str) -> TransactionRecord:
    """Close the transaction with that id, or prefix of an id, in the name of `by`. Returns its record afterwards.

    Raises:
        MisuseError: there is none of that id, it need not be closed, or `by` or `why` is missing.
        TransactionBusy: a living process owns it.
        JournalError: its record is damaged.
        RegistrationError: a live tool of it is not registered, so its session cannot be checked.
    """
    said = {name: _require_text(name, text) for name, text in (("by", by), ("why", why))}
    journal, txn = engine.journal, _one(engine.journal, beginning)
    lease = journal.leases.acquire(txn)
    if isinstance(lease, str):
        raise TransactionBusy(journal.transactions.key_of(txn), lease, 0)
    try:
        if damage := find_damage(journal.database, txn):
            raise JournalError(damage)
        record = journal.transactions.require(txn)
        _require_unsettled(engine, record)
        found = recover_sessions(engine, record)
        archived = any(map(is_left_in_archive, journal.transactions.effects(record)))
        if found.can_be_finished is not None and not archived:
            raise MisuseError(
                f"the live effects of {txn[:12]} are not partly kept; `countersign resume --tools "
                "MODULE` finishes it"
            )
        found.undo()
        _mark_remaining_unused(engine, lease, record)
        journal.transactions.close(lease, _closing_note(said, engine.clock.wall(), found.doubt))
    finally:
        journal.leases.release(lease)
    return journal.transactions.require(txn)


def _require_unsettled(engine: Engine, record: TransactionRecord) -> None:
    if record.state is not LocalTxn.UNSETTLED:
        raise MisuseError(
            f"transaction {record.txn[:12]} is {record.state.value}; only one that is unsettled for its live effects "
            "is closed by hand"
        )
    rows = engine.journal.transactions.effects(record)
    if still := [f"{row.label} {row.state.value}" for row in rows if _is_open(row)]:
        raise MisuseError(
            f"of {record.txn[:12]} there is still {', '.join(still)}: people settle that in the service, and "
            "`countersign resume --tools MODULE` goes on with it; close it after that"
        )
    live = engine.journal.transactions.live(record)
    if not any(map(is_left_in_archive, rows)) and not any(row.state is LocalState.LIVE for row in live):
        raise MisuseError(
            f"transaction {record.txn[:12]} is not unsettled for its live effects; people settle it in the service, "
            "and `countersign resume --tools MODULE` takes that over"
        )


def _is_open(row: EffectRecord) -> bool:
    """Whether a staged effect still has to be determined or compensated. A fired one is known, and is not
    compensated while live effects are in doubt.
    """
    failed = row.state is LocalState.COMPENSATION_FAILED and not row.kept_by_person
    return (failed and not is_left_in_archive(row)) or row.state in _DOUBTFUL


def _mark_remaining_unused(engine: Engine, lease: Lease, record: TransactionRecord) -> None:
    """Mark effects that were never begun as unused; the next report informs the service."""
    done = [
        EffectOutcome(row.effect_id, Outcome.UNUSED, record.attempt_id or "", error=_CLOSED)
        for row in engine.journal.transactions.effects(record)
        if row.state is LocalState.REDEEMED
    ]
    if done:
        engine.journal.effect_log.write(lease, record.staging or 0, done)


def _one(journal: Journal, beginning: str) -> str:
    named = journal.transactions.found_ids(beginning) if len(beginning) >= _SHORTEST_ID else []
    found = [txn for txn in named if txn.startswith(beginning)]
    if len(found) != 1:
        raise MisuseError(
            f"{beginning!r} names {'several transactions' if found else 'no transaction'} of this journal; "
            f"`countersign journal show KEY` shows the id, of which {_SHORTEST_ID} characters or more are enough"
        )
    return found[0]


def _require_text(name: str, text: str) -> str:
    message = " ".join(text.split())
    require_utf8(name, message)
    if not 0 < len(message) <= _LONGEST[name]:
        raise MisuseError(f"{name} must have 1 to {_LONGEST[name]} characters")
    return message


def _closing_note(said: dict[str, str], at: float, before: str) -> str:
    moment = datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return f"closed by {said['by']} at {moment}: {said['why']} (before: {before})"


def settle_live_only(engine: Engine, lease: Lease, plan: Plan) -> str:
    """Finish commits that an adapter has begun, undo the rest; returns a note about the result."""
    found = recover_sessions(engine, engine.journal.transactions.require(plan.txn))
    if found.has_landed is None:
        note, state = found.settlement_advice, LocalTxn.UNSETTLED
    elif found.has_landed:
        note, state = _finish(engine, lease, plan, found)
    else:
        found.undo()
        note, state = "its live effects were undone", LocalTxn.ENDED
        engine.journal.transactions.end_live(lease, plan.staging, LocalState.UNDONE)
    engine.journal.transactions.end(lease, state, note)
    return note


def _finish(engine: Engine, lease: Lease, plan: Plan, found: AdapterRecovery) -> tuple[str, LocalTxn]:
    """One adapter has committed, so the others, which had all prepared, commit too."""
    live = LiveWork(plan.txn)
    live.adopt(found)

    def kept() -> None:
        engine.journal.transactions.end_live(lease, plan.staging, LocalState.KEPT)

    try:
        live.commit(plan.attempt_id, kept)
    except AdapterCommitError as failed:
        message = failed.unknown or f"live adapter {failed.adapter!r} could not commit: {failed}"
        return message, LocalTxn.UNSETTLED
    return "its live effects were kept", LocalTxn.SETTLED


_WHY: Final = "its agent ran it again, could not request the same, and was informed that it was not done"


async def withdraw(engine: Engine, run_key: str) -> PriorRun | None:
    """What was done under this key. None if nothing was, and nothing can be done any more except by another run of
    the key.

    Raises:
        OutcomeUnknown: an outcome is unknown.
        AlreadyRedeemed: it is not finished, or a person has closed it.
        TransactionBusy: a living process is running it.
        ServiceUnavailable, ServiceRefused: it could not be withdrawn.
        RegistrationError: a live tool of it is not registered, so its session cannot be checked.
    """
    txn = digests.txn_id(agent=engine.settings.agent, run_key=run_key)
    if engine.journal.transactions.get(txn) is None:
        return None
    lease = engine.journal.leases.acquire(txn)
    if isinstance(lease, str):
        raise TransactionBusy(run_key, lease, 0.0)
    try:
        require_resumable(engine.journal, txn)
        record = engine.journal.transactions.require(txn)
        if record.staging is None:
            return None
        if not is_spent(record) and record.state is not LocalTxn.ENDED:
            record = await _withdraw_open(engine, lease, record)
        return _finished(engine, record) if is_spent(record) else None
    finally:
        engine.journal.leases.release(lease)


async def find_prior_denial(engine: Engine, record: TransactionRecord) -> Denied | None:
    """Why an earlier run that did nothing was denied, as the service holds it. None if it does not.

    Raises:
        AlreadyRedeemed: something was done under its key elsewhere, and is archived.
        ServiceUnavailable, ServiceRefused: the service does not answer.
    """
    view = await fetch_transaction(engine, record.txn, record.run_key)
    denied = None if view is None or view.state is not TxnState.ENDED else Denied.of(view, record.run_key)
    return denied if denied is not None and denied.reasons else None


async def _withdraw_open(engine: Engine, lease: Lease, record: TransactionRecord) -> TransactionRecord:
    if engine.journal.transactions.effects(record):
        await _withdraw(engine, lease, record)
    else:
        settle_live_only(engine, lease, plan_from_journal(record, engine.journal, engine.registry))
    return engine.journal.transactions.require(record.txn)


async def _withdraw(engine: Engine, lease: Lease, record: TransactionRecord) -> None:
    undo_orphaned_sessions(engine, record.txn)
    try:
        view = await engine.service.withdraw(record.txn, _WHY)
    except ServiceRefused as refused:
        if refused.problem_code == ErrorCode.ALREADY_REDEEMED:
            await _raise_redeemed(engine, record)
        if not refused.is_not_found:
            raise
    else:
        record_service_state(engine, lease, view)
    engine.journal.transactions.end(lease, LocalTxn.ENDED, _WHY)


async def _raise_redeemed(engine: Engine, record: TransactionRecord) -> NoReturn:
    """Redeemed by us with the answer lost, which `resume` continues; or by another attempt."""
    view = await fetch_transaction(engine, record.txn, record.run_key)
    states = [] if view is None else effect_states(view)
    if view is not None and view.attempt_id not in {None, record.attempt_id}:
        raise AlreadyRedeemed.elsewhere(record.run_key, record.txn, states)
    raise AlreadyRedeemed(record.run_key, record.txn, ", ".join(states) or "not reported", finished=False)


def _finished(engine: Engine, record: TransactionRecord) -> PriorRun:
    rows = engine.journal.transactions.effects(record)
    if doubtful := [row for row in rows if row.state in IN_DOUBT]:
        outcomes = {row.label: row.state.value for row in rows}
        message = [row.label for row in doubtful]
        why, url = doubtful[0].error or "", engine.settings.tasks_url
        raise OutcomeUnknown(record.run_key, record.txn, message, outcomes, why, tasks_url=url)
    if record.state in OPEN_TXN:
        note = record.note or ""
        raise AlreadyRedeemed(record.run_key, record.txn, record.state.value, note, finished=False)
    return load_prior_run(engine.journal, record)


def plan_from_journal(record: TransactionRecord, journal: Journal, registry: ToolRegistry) -> Plan:
    """The list in force, read from the journal. Every digest is computed again.

    Raises:
        JournalError: the journal is damaged or incomplete.
        RegistrationError: the module that defines a tool was not imported, or now declares it live.
    """
    calls = []
    for row in journal.transactions.effects(record):
        effect = row.frozen()
        tool = registry.require_staged(row.tool, f"transaction {record.run_key!r} was staged with it")
        calls.append(PlannedCall(tool, journal.manifests.get(row.tool, effect.tool_digest), effect))
    return Plan(
        agent=record.agent,
        run_key=record.run_key,
        txn=record.txn,
        independent=record.independent,
        calls=tuple(calls),
        staging=record.staging or 0,
        live=record.live,
        attempt_id=record.attempt_id or "",
    )
