"""Before somebody is told that what a key asks for was not done: what is open under it is taken back, what was done is
found.

Whoever hears "not done" may ask for the same under another key. Rules: it is not said of what has fired or was kept, of
what nobody knows, nor of what may fire yet. What is open is withdrawn rather than waited for: it belongs to calls that
can no longer be made as they were, so nobody could fire it but a worker, behind the back of whoever asked again. The
service hears of that first; where it does not answer, or says that the list was redeemed, nothing is told as not done.
"""

from __future__ import annotations

from typing import Final, NoReturn

from countersign.commit.commit import states_of
from countersign.commit.plan import plan_from_journal
from countersign.commit.reconciliation import look
from countersign.commit.review import note_where_it_stands
from countersign.contract import names
from countersign.contract.codes import ErrorCode
from countersign.contract.states import TxnState
from countersign.engine import Engine
from countersign.errors import AlreadyRedeemed, Denied, OutcomeUnknown, ServiceRefused, TransactionBusy
from countersign.journal import Lease, LocalTxn, TransactionRecord
from countersign.journal.moves import IN_DOUBT, OPEN_TXN
from countersign.live.sessions import undo_remains
from countersign.recovery.prior_run import EarlierRun, earlier_run, is_spent, require_to_go_on
from countersign.recovery.roll_forward import settle_live_only

_WHY: Final = "its agent ran it again, could not ask for the same, and was told that it was not done"


async def withdraw(engine: Engine, run_key: str) -> EarlierRun | None:
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
        require_to_go_on(engine.journal, txn)
        record = engine.journal.transactions.require(txn)
        if record.staging is None:
            return None
        if not is_spent(record) and record.state is not LocalTxn.ENDED:
            record = await _take_back(engine, lease, record)
        return _finished(engine, record) if is_spent(record) else None
    finally:
        engine.journal.leases.release(lease)


async def denied_before(engine: Engine, record: TransactionRecord) -> Denied | None:
    """Why an earlier run was stopped that did nothing, as the service holds it; None where it does not.

    Raises:
        ServiceUnavailable, ServiceRefused: it does not say.
    """
    view = await look(engine, record.txn)
    denied = None if view is None or view.state is not TxnState.ENDED else Denied.of(view, record.run_key)
    return denied if denied is not None and denied.reasons else None


async def _take_back(engine: Engine, lease: Lease, record: TransactionRecord) -> TransactionRecord:
    if engine.journal.transactions.effects(record):
        await _withdraw(engine, lease, record)
    else:
        settle_live_only(engine, lease, plan_from_journal(record, engine.journal, engine.registry))
    return engine.journal.transactions.require(record.txn)


async def _withdraw(engine: Engine, lease: Lease, record: TransactionRecord) -> None:
    undo_remains(engine, record.txn)
    try:
        view = await engine.service.withdraw(record.txn, _WHY)
    except ServiceRefused as refused:
        if refused.problem_code == ErrorCode.ALREADY_REDEEMED:
            await _raise_redeemed(engine, record)
        if not refused.is_not_there:
            raise
    else:
        note_where_it_stands(engine, lease, view)
    engine.journal.transactions.end(lease, LocalTxn.ENDED, _WHY)


async def _raise_redeemed(engine: Engine, record: TransactionRecord) -> NoReturn:
    """By us, with the answer lost, which `resume` goes on with; or by somebody else."""
    view = await look(engine, record.txn)
    states = [] if view is None else states_of(view)
    if view is not None and view.attempt_id not in {None, record.attempt_id}:
        raise AlreadyRedeemed.elsewhere(record.run_key, record.txn, states)
    raise AlreadyRedeemed(record.run_key, record.txn, ", ".join(states) or "not told", finished=False)


def _finished(engine: Engine, record: TransactionRecord) -> EarlierRun:
    rows = engine.journal.transactions.effects(record)
    if doubtful := [row for row in rows if row.state in IN_DOUBT]:
        outcomes = {row.label: row.state.value for row in rows}
        told = [row.label for row in doubtful]
        why, url = doubtful[0].error or "", engine.settings.tasks_url
        raise OutcomeUnknown(record.run_key, record.txn, told, outcomes, why, tasks_url=url)
    if record.state in OPEN_TXN:
        note = record.note or ""
        raise AlreadyRedeemed(record.run_key, record.txn, record.state.value, note, finished=False)
    return earlier_run(engine.journal, record)
