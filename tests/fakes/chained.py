"""A journal that has seen everything: fired, taken back, denied, parked, unknown, settled, live, noted, reported again.

For tests that damage it afterwards: one of each kind of row, in every table, written by the SDK itself.
"""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

from countersign import Denied, EffectFailed, NotDone, OutcomeUnknown, ReviewPending, resume, transaction
from countersign.adapters import SQLiteAdapter
from countersign.contract import EffectState
from countersign.journal.location import JournalLocation
from countersign.journal.meta import Outbox
from countersign.journal.spending import BudgetHold
from countersign.llm.budgets import day_of
from tests.fakes.desk import charge_tools, failing_tool, make_desk, note_tool, notes_database, refund_tool


def eventful_journal(folder: Path, place: JournalLocation | None = None) -> Path:
    """Make one in this folder, and leave it closed with everything in the one file; or make it at this place."""
    desk = make_desk(folder, **({} if place is None else {"journal_path": place}))
    refund, charge = refund_tool(desk), charge_tools(desk)
    database = SQLiteAdapter(notes_database(folder))
    note = note_tool(desk, database)
    mailbox_full = failing_tool(desk, NotDone("mailbox full"), acts=False)
    slow = failing_tool(desk, TimeoutError("slow"), name="slow")
    runtime = desk.runtime

    def attempt(key: str, *calls: object) -> str:
        with transaction(key, runtime=runtime, accept_edits=key == "parked") as txn:
            for call in calls:
                assert callable(call)
                call()
        return txn.txn

    def raising(key: str, meets: type[Exception], *calls: object) -> None:
        try:
            attempt(key, *calls)
        except meets:
            return
        raise AssertionError(f"{key} did not raise {meets.__name__}")

    attempt("fired", lambda: note("o-1", "hello"), lambda: refund("o-1", 100), lambda: refund("o-2", 200))
    raising("taken back", EffectFailed, lambda: charge("o-1", 100), lambda: mailbox_full("o-1"))
    raising("denied", Denied, lambda: note("o-2", "gone"), lambda: refund("o-1", 900_000))
    raising("parked", ReviewPending, lambda: refund("o-7", 90_000))
    raising("unknown", OutcomeUnknown, lambda: slow("o-1"))
    raising("settled by a person", OutcomeUnknown, lambda: slow("o-2"))
    unknown = runtime.journal.transactions.find("settled by a person")[0]
    effect = runtime.journal.transactions.effects(unknown)[0].effect_id
    desk.service.settle(unknown.txn, effect, EffectState.FIRED)
    resume(runtime)
    raising("body", ZeroDivisionError, lambda: refund("o-1", 1), lambda: 1 / 0)
    runtime.journal.edits.note(unknown.txn, [{"person": "p", "reason": "half arrived"}])
    runtime.journal.traces.keep(unknown.txn, "00-1-2-01")
    spending = runtime.journal.spending
    for call_id, run in (("c-1", "fired"), ("c-2", None)):
        period = run or day_of(desk.clock.wall()).isoformat()
        hold = BudgetHold("support", "tokens", "day" if run is None else "run", "", 1000, period, 100)
        hold = replace(hold, budget=f"support/{hold.per}")
        assert spending.reserve(call_id, run, "some-model", [hold]) is None
    spending.settle("c-1", {"provider": "anthropic", "all_tokens": 80}, {"support/run": 80})
    spending.doubt("c-2", "the line was cut")
    spending.record("c-3", None, "some-model", {"all_tokens": 5}, [replace(hold, amount=5)])
    outbox: Outbox = runtime.journal.outbox
    outbox.requeue(desk.clock.wall() - 1)
    outbox.refused(outbox.pending()[:1], "it knows better")
    runtime.close()
    if place is not None:
        return folder
    path = folder / "journal.db"
    with_all = sqlite3.connect(path)
    with_all.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with_all.close()
    return path
