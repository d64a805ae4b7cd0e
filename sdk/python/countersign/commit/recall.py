"""The proof of a redeemed attempt, for a service that lost it with its database."""

from __future__ import annotations

from countersign.contract.effect import Effect
from countersign.contract.wire import Recall, RecalledCompensation, RecalledEffect
from countersign.journal import Journal
from countersign.journal.records import COMPENSATE_LANE


def build_recall(journal: Journal, attempt_id: str) -> Recall | None:
    """The proof of an attempt for a service that lost it. None if no receipt was ever seen.

    Raises:
        JournalError: the journal is damaged.
    """
    kept = journal.receipts.of(attempt_id)
    if kept is None:
        return None
    record = journal.transactions.require(kept.txn)
    if attempt_id == record.attempt_id:
        rows = journal.transactions.effects(record)
    else:
        undoing = journal.transactions.effects(record, COMPENSATE_LANE)
        rows = tuple(row for row in undoing if row.attempt_id == attempt_id)
    return Recall(
        receipt=kept.token,
        run_key=record.run_key,
        independent=record.independent,
        effects=tuple(_recalled_effect(row.frozen()) for row in rows),
    )


def _recalled_effect(effect: Effect) -> RecalledEffect:
    undo = effect.compensation
    return RecalledEffect(
        seq=effect.seq,
        tool=effect.tool,
        tool_digest=effect.tool_digest,
        resource=effect.resource,
        args=effect.args,
        call_key=effect.call_key,
        compensation=None
        if undo is None
        else RecalledCompensation(tool=undo.tool, tool_digest=undo.tool_digest, map=dict(undo.map)),
    )
