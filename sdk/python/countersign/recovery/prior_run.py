"""An earlier run of a key: what it did, how a person closes what it left in part, and how what is open is withdrawn.

Rules for closing: only a transaction that is unsettled for its live work, of which a part stands and another does not,
or no adapter can tell; not one that a living process owns, or whose record is not as the SDK wrote it, or whose staged
effects are unknown or being compensated (people settle those in the service), nor one that `resume` can finish. What an
adapter had prepared of it is undone first, so that nothing of it commits later, and what was not begun is unused. The
record says who, when and why, and stays `closed`. Its key is spent.

Rules for "it was not done", after which the same may be asked for under another key: it is not said of what has fired
or was kept, of what is unknown, nor of what may fire yet. What is open is withdrawn in the service first, or a worker
could still fire it; where the service does not answer, or says that the list was redeemed, it is not said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NoReturn

from countersign.commit.commit import effect_states
from countersign.commit.plan import Plan, plan_from_journal, require_resumable
from countersign.commit.reconciliation import fetch_transaction
from countersign.commit.review import record_service_state, require_utf8
from countersign.contract import names
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
from countersign.journal.queries import LIVE_LANE
from countersign.journal.states import IN_DOUBT, OPEN_TXN
from countersign.journal.verification import find_damage
from countersign.live.sessions import (
    AdapterCommitError,
    AdapterRecovery,
    recover_sessions,
    undo_orphaned_sessions,
)
from countersign.live.work import LiveWork
from countersign.runtime import Engine

_NOTHING: Final = frozenset({LocalState.FAILED, LocalState.UNUSED})


@dataclass(frozen=True, slots=True)
class PriorRun:
    """A run that has come to its end: its staged effects, and by call key what its live ones returned, which were
    `kept` or undone; None where that was not kept, or its key is not here. `well`: all of it was done that had to be.
    `reads`: labels of effects of which nothing stands once they fired.
    """

    record: TransactionRecord
    effects: tuple[EffectRecord, ...]
    live: Mapping[str, bytes | None]
    well: bool
    reads: frozenset[str]

    @property
    def kept(self) -> bool:
        """Whether the live effects stand."""
        return self.record.landed

    @property
    def is_nothing(self) -> bool:
        """Whether none of it has happened."""
        return not self.kept and all(row.state in _NOTHING for row in self.effects)

    def spent(self) -> AlreadyRedeemed:
        """For whoever asks for something else than that."""
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
    """A transaction that has come to its end."""
    rows = journal.transactions.effects(record)
    live: dict[str, bytes | None] = {row.call_key: None for row in journal.transactions.live(record)}
    with suppress(JournalSealed):  # it is no less done for that
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
    """Whether nothing was done under this key and nothing waits, while something was done or waits under a later one of
    its run.
    """

    def is_there(key: str) -> bool:
        record = journal.transactions.get(names.txn_id(agent=agent, run_key=key))
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
    """Close the transaction of that id, or of its beginning, in the name of `by`; its record as it is then.

    Raises:
        MisuseError: there is none of that id, nobody has to close it, or it is not said who does and why.
        TransactionBusy: somebody alive owns it.
        JournalError: its record is not as the SDK wrote it.
        RegistrationError: a tool that ran live in it is not here, so that nobody can look at what it left.
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
        if found.can_be_finished is not None:
            raise MisuseError(
                f"no part of the live effects of {txn[:12]} stands without the others; `countersign resume --tools "
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
    if not any(row.state is LocalState.LIVE for row in engine.journal.transactions.live(record)):
        raise MisuseError(
            f"transaction {record.txn[:12]} is not unsettled for its live effects; people settle it in the service, "
            "and `countersign resume --tools MODULE` takes that over"
        )


def _is_open(row: EffectRecord) -> bool:
    """Whether something is still to be found out or done about a staged effect. What fired is known: it stands, and
    where live effects are in doubt nobody takes it back.
    """
    failed = row.state is LocalState.COMPENSATION_FAILED and not row.left_standing
    return failed or row.state in _DOUBTFUL


def _mark_remaining_unused(engine: Engine, lease: Lease, record: TransactionRecord) -> None:
    """What was never begun stays so; the service is told with the next report."""
    done = [
        EffectOutcome(row.effect_id, Outcome.UNUSED, record.attempt_id or "", error=_CLOSED)
        for row in engine.journal.transactions.effects(record)
        if row.state is LocalState.REDEEMED
    ]
    if done:
        engine.journal.firing.write(lease, record.staging or 0, done)


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
    told = " ".join(text.split())
    require_utf8(name, told)
    if not 0 < len(told) <= _LONGEST[name]:
        raise MisuseError(f"say {name}, in {_LONGEST[name]} characters at most")
    return told


def _closing_note(said: dict[str, str], at: float, before: str) -> str:
    moment = datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return f"closed by {said['by']} at {moment}: {said['why']} (before: {before})"


def settle_live_only(engine: Engine, lease: Lease, plan: Plan) -> str:
    """Finish what an adapter has begun to commit, undo the rest; in words how it ended."""
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
    """One adapter has committed, so the others, which had all prepared, do as well."""
    live = LiveWork(plan.txn)
    live.adopt(found)

    def kept() -> None:
        engine.journal.transactions.end_live(lease, plan.staging, LocalState.KEPT)

    try:
        live.commit(plan.attempt_id, kept)
    except AdapterCommitError as failed:
        told = failed.unknown or f"live adapter {failed.adapter!r} could not commit: {failed}"
        return told, LocalTxn.UNSETTLED
    return "its live effects were kept", LocalTxn.SETTLED


_WHY: Final = "its agent ran it again, could not ask for the same, and was told that it was not done"


async def withdraw(engine: Engine, run_key: str) -> PriorRun | None:
    """What was done under this key. None: nothing of it, and from now on nobody can do it but another run of the key.

    Raises:
        OutcomeUnknown: nobody knows.
        AlreadyRedeemed: it is not finished, or a person has closed it.
        TransactionBusy: somebody alive is doing it.
        ServiceUnavailable, ServiceRefused: it could not be taken back.
        RegistrationError: nor can what its live effects left be looked at, for their tool is not here.
    """
    txn = names.txn_id(agent=engine.settings.agent, run_key=run_key)
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
            record = await _take_back(engine, lease, record)
        return _finished(engine, record) if is_spent(record) else None
    finally:
        engine.journal.leases.release(lease)


async def find_prior_denial(engine: Engine, record: TransactionRecord) -> Denied | None:
    """Why an earlier run was stopped that did nothing, as the service holds it; None where it does not.

    Raises:
        ServiceUnavailable, ServiceRefused: it does not say.
    """
    view = await fetch_transaction(engine, record.txn)
    denied = None if view is None or view.state is not TxnState.ENDED else Denied.of(view, record.run_key)
    return denied if denied is not None and denied.reasons else None


async def _take_back(engine: Engine, lease: Lease, record: TransactionRecord) -> TransactionRecord:
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
    """By us, with the answer lost, which `resume` goes on with; or by somebody else."""
    view = await fetch_transaction(engine, record.txn)
    states = [] if view is None else effect_states(view)
    if view is not None and view.attempt_id not in {None, record.attempt_id}:
        raise AlreadyRedeemed.elsewhere(record.run_key, record.txn, states)
    raise AlreadyRedeemed(record.run_key, record.txn, ", ".join(states) or "not told", finished=False)


def _finished(engine: Engine, record: TransactionRecord) -> PriorRun:
    rows = engine.journal.transactions.effects(record)
    if doubtful := [row for row in rows if row.state in IN_DOUBT]:
        outcomes = {row.label: row.state.value for row in rows}
        told = [row.label for row in doubtful]
        why, url = doubtful[0].error or "", engine.settings.tasks_url
        raise OutcomeUnknown(record.run_key, record.txn, told, outcomes, why, tasks_url=url)
    if record.state in OPEN_TXN:
        note = record.note or ""
        raise AlreadyRedeemed(record.run_key, record.txn, record.state.value, note, finished=False)
    return load_prior_run(engine.journal, record)
