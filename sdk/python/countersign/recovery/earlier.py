"""What an earlier run of a key asked for and did, as the journal has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from countersign.contract import names
from countersign.errors import AlreadyRedeemed, JournalSealed
from countersign.journal import EffectRecord, Journal, LocalState, LocalTxn, TransactionRecord
from countersign.journal.reading import LIVE_LANE

_NOTHING: Final = frozenset({LocalState.FAILED, LocalState.UNUSED})


@dataclass(frozen=True, slots=True)
class EarlierRun:
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


def earlier_run(journal: Journal, record: TransactionRecord) -> EarlierRun:
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
    return EarlierRun(record, rows, live, well, reads)


def is_spent(record: TransactionRecord) -> bool:
    """Whether something of it was done, or may have been."""
    return record.redeemed or record.landed or record.state is LocalTxn.UNSETTLED


def is_passed(journal: Journal, agent: str, run_key: str, later: Iterable[str]) -> bool:
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
