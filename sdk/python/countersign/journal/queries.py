"""Reading transactions and effects from the journal: every row is checked on the way (records.py)."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from countersign.errors import JournalError, JournalSealed, MisuseError
from countersign.journal.database import Database, Row
from countersign.journal.records import (
    EffectRecord,
    ShownEffect,
    TransactionRecord,
    UnreadableEffect,
    effect_record,
    shown_effect,
    transaction_record,
)
from countersign.journal.sealing import MARK, Seals
from countersign.journal.states import LocalState, LocalTxn

PARKED: Final = "parked"
_AGO: Final = re.compile(r"([0-9]{1,6})([mhd])")
_SECONDS: Final = {"m": 60, "h": 3600, "d": 86_400}
STATES: Final = (
    frozenset({PARKED}) | {state.value for state in LocalTxn} | {state.value for state in LocalState}
)
"""What may be asked for: a state of the transaction as `list` tells it, or of one of its effects."""

FILTER_CONDITION: Final = """
(CASE WHEN t.parked <> 0 THEN 'parked' ELSE t.state END = :state OR :state IS NULL
    OR EXISTS (SELECT 1 FROM effects e WHERE e.txn = t.txn AND e.staging = coalesce(t.staging, t.stagings)
        AND e.state = :state))
AND (EXISTS (SELECT 1 FROM effects e WHERE e.txn = t.txn AND e.tool = :tool
    AND e.staging = coalesce(t.staging, e.staging)) OR :tool IS NULL)
AND (t.agent = :agent OR :agent IS NULL)
AND (replace(lower(t.run_key), lower(:text), '') <> lower(t.run_key) OR :text IS NULL OR :text = '')
AND (t.updated_at >= :since OR :since IS NULL)
AND (t.updated_at < :until OR :until IS NULL)
"""
"""The condition on a row `t` of `transactions`; its names are `Wanted.parameters`. Each is compared before it is asked
whether it was said at all: so PostgreSQL knows its type.
"""


@dataclass(frozen=True, slots=True)
class TransactionFilter:
    """What to look for; what is None is not asked. The time is of the last change, and half open."""

    state: str | None = None
    tool: str | None = None
    agent: str | None = None
    text: str | None = None
    since: float | None = None
    until: float | None = None

    def __post_init__(self) -> None:
        if self.state is not None and self.state not in STATES:
            raise MisuseError(f"there is no state {self.state!r}; there are {', '.join(sorted(STATES))}")

    @property
    def parameters(self) -> dict[str, str | float | None]:
        """As the condition names them."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def parse_time(text: str | None, now: float) -> float | None:
    """A time as a person types it: a day or a time by ISO 8601, UTC where no zone is said, or how long ago (`2h`).

    Raises:
        MisuseError: it is no such time.
    """
    if text is None:
        return None
    if ago := _AGO.fullmatch(text):
        return now - int(ago[1]) * _SECONDS[ago[2]]
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise MisuseError(
            f"{text!r} is no time; write it like 2026-11-23 or 2026-11-23T08:00:00Z, or how long ago, like 2h or 7d"
        ) from error
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()


STAGED_LANE: Final = "staged"
LIVE_LANE: Final = "live"
COMPENSATE_LANE: Final = "compensate"
_ALL: Final = 2**63 - 1  # more than there are


class TransactionQueries:
    """Questions to the tables `transactions` and `effects`."""

    def __init__(self, database: Database, seals: Seals) -> None:
        self._database = database
        self._seals = seals

    def get(self, txn: str) -> TransactionRecord | None:
        """One transaction."""
        row = self._database.row("SELECT * FROM transactions WHERE txn = ?", (txn,))
        return None if row is None else transaction_record(row)

    def require(self, txn: str) -> TransactionRecord:
        """One transaction that must be there.

        Raises:
            JournalError: it is not.
        """
        found = self.get(txn)
        if found is None:
            raise JournalError(f"the journal has no transaction {txn[:12]}")
        return found

    def find(self, name: str) -> list[TransactionRecord]:
        """Transactions by run key, by id, or by the beginning of an id."""
        return [self.require(txn) for txn in self.found_ids(name)]

    def found_ids(self, name: str) -> list[str]:
        """The same by id, also of those that cannot be read. Nothing is the beginning of none."""
        rows = self._database.rows(
            "SELECT txn FROM transactions "
            "WHERE :name <> '' AND (run_key = :name OR substr(txn, 1, length(:name)) = :name) ORDER BY txn",
            {"name": name},
        )
        return [row["txn"] for row in rows]

    def key_of(self, txn: str) -> str:
        """The run key of a transaction whose row may hold nothing else that can be read; nothing where not even that.

        Raises:
            JournalError: the journal is away, which is no trouble of one transaction.
        """
        self._database.row("SELECT 1")
        with suppress(JournalError):
            row = self._database.row("SELECT run_key FROM transactions WHERE txn = ?", (txn,))
            return "" if row is None else str(row["run_key"])
        return ""

    def newest_ids(self, limit: int) -> list[str]:
        """The latest transactions by id, newest first: one that cannot be read hides no other."""
        rows = self._database.rows(
            "SELECT txn FROM transactions ORDER BY updated_at DESC, txn LIMIT ?", (limit,)
        )
        return [row["txn"] for row in rows]

    def matching_ids(self, wanted: TransactionFilter, limit: int | None = None) -> list[str]:
        """The transactions somebody looks for by id, newest first; all of them unless `limit` says how many."""
        rows = self._database.rows(
            f"SELECT t.txn FROM transactions t WHERE {FILTER_CONDITION} "  # noqa: S608 - text of ours, values are bound
            "ORDER BY t.updated_at DESC, t.txn LIMIT :limit",
            {**wanted.parameters, "limit": _ALL if limit is None else limit},
        )
        return [row["txn"] for row in rows]

    def unfinished(self) -> list[str]:
        """Transactions that somebody still has to finish, by id, oldest first: one that cannot be read keeps no other
        from being finished.
        """
        rows = self._database.rows(
            "SELECT txn FROM transactions WHERE state NOT IN ('settled', 'ended') AND state <> 'closed' "
            "ORDER BY created_at, txn"
        )
        return [row["txn"] for row in rows]

    def effects(self, record: TransactionRecord, lane: str = STAGED_LANE) -> tuple[EffectRecord, ...]:
        """The effects of the list in force, in order.

        Raises:
            JournalSealed: something of them is sealed under a key that is not here.
        """
        return tuple(effect_record(row, record.agent, self._seals) for row in self._rows(record, lane))

    def shown(self, record: TransactionRecord, lane: str = STAGED_LANE) -> tuple[ShownEffect, ...]:
        """The same for people, who need no key: what is sealed is hidden. Every row is checked as far as keys are here;
        `countersign journal verify` needs none.
        """
        return tuple(self._shown(row, record.agent) for row in self._rows(record, lane))

    def _shown(self, row: Row, agent: str) -> ShownEffect:
        with suppress(JournalSealed):
            effect_record(row, agent, self._seals)
        return shown_effect(row)

    def shown_each(self, record: TransactionRecord, lane: str) -> list[ShownEffect | UnreadableEffect]:
        """The same row by row: one that cannot be read hides no other.

        Raises:
            JournalError: the journal is away.
        """
        with suppress(JournalError):
            return [*self.shown(record, lane)]
        rows = self._database.rows(
            "SELECT seq FROM effects WHERE txn = ? AND staging = ? AND lane = ? ORDER BY seq",
            (record.txn, record.staging, lane),
        )
        return [self._shown_or_not(record, lane, row["seq"]) for row in rows]

    def _shown_or_not(self, record: TransactionRecord, lane: str, seq: int) -> ShownEffect | UnreadableEffect:
        try:
            (row,) = self._database.rows(
                "SELECT * FROM effects WHERE txn = ? AND staging = ? AND lane = ? AND seq = ?",
                (record.txn, record.staging, lane, seq),
            )
            return self._shown(row, record.agent)
        except JournalError as error:
            return UnreadableEffect(lane, seq, str(error))

    def dropped(self, record: TransactionRecord) -> list[ShownEffect | UnreadableEffect]:
        """For people: the calls that other lists of this key held, and the last one does not. Each as it was in the
        last list that held it.

        Raises:
            JournalError: the journal is away.
        """
        rows = self._database.rows(
            "SELECT staging, lane, seq FROM effects e WHERE txn = :txn AND staging <> :last AND staging = "
            "(SELECT max(staging) FROM effects o WHERE o.txn = e.txn AND o.effect_id = e.effect_id) "
            "AND effect_id NOT IN (SELECT effect_id FROM effects WHERE txn = :txn AND staging = :last) "
            "ORDER BY staging, lane DESC, seq",
            {"txn": record.txn, "last": record.last_list},
        )
        return [
            self._shown_or_not(replace(record, staging=row["staging"]), row["lane"], row["seq"])
            for row in rows
        ]

    def live(self, record: TransactionRecord) -> tuple[ShownEffect, ...]:
        """The live effects of the list in force, which are kept or undone with it: one that raised is none of them."""
        return tuple(row for row in self.shown(record, LIVE_LANE) if row.error is None)

    def _rows(self, record: TransactionRecord, lane: str) -> list[Row]:
        return self._database.rows(
            "SELECT * FROM effects WHERE txn = ? AND staging = ? AND lane = ? ORDER BY seq",
            (record.txn, record.staging, lane),
        )

    def live_tools(self, txn: str) -> tuple[str, ...]:
        """The tools whose effects under this key were neither kept nor undone, in whichever list: a process died. Those
        of effects that raised as well: nothing of them stands, but a session may that they had opened.
        """
        rows = self._database.rows(
            "SELECT DISTINCT tool FROM effects WHERE txn = ? AND lane = ? AND (state = ? OR error IS NOT NULL) "
            "ORDER BY tool",
            (txn, LIVE_LANE, LocalState.LIVE.value),
        )
        return tuple(row["tool"] for row in rows)

    def unfinished_has_secrets(self) -> bool:
        """Whether a call of a transaction that somebody still has to finish has something sealed, in whichever list."""
        found = self._database.row(
            "SELECT 1 FROM transactions t JOIN effects e ON e.txn = t.txn "
            "WHERE t.state NOT IN ('settled', 'ended') AND t.state <> 'closed' AND substr(e.args, 1, ?) = ? LIMIT 1",
            (len(MARK), MARK),
        )
        return found is not None

    def state_of(self, txn: str, staging: int, effect_id: str) -> LocalState | None:
        """Where one effect stands."""
        row = self._database.row(
            "SELECT state FROM effects WHERE txn = ? AND staging = ? AND effect_id = ?",
            (txn, staging, effect_id),
        )
        return None if row is None else LocalState(row["state"])
