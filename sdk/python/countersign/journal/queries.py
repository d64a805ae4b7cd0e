"""Queries for transactions and effects, and statistics. Every row is verified when it is read (records.py).

Review times are read from the chain: from the line in which an effect entered review to the line in which it left it.
Both are the times at which this journal learned of it, so a decision counts from when it was noticed.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median
from typing import Any, Final

import orjson

from countersign.errors import JournalError, JournalSealed, MisuseError
from countersign.journal.database import Database, Row
from countersign.journal.records import (
    COMPENSATE_LANE,
    LIVE_LANE,
    STAGED_LANE,
    TransactionRecord,
    effect_record,
)
from countersign.journal.sealed_values import MARK
from countersign.journal.shown import ShownEffect, UnreadableEffect, shown_effect
from countersign.journal.states import LocalState, LocalTxn
from countersign.journal.transactions import TransactionRows

PARKED: Final = "parked"
_AGO: Final = re.compile(r"([0-9]{1,6})([mhd])")
_SECONDS: Final = {"m": 60, "h": 3600, "d": 86_400}
STATES: Final = (
    frozenset({PARKED}) | {state.value for state in LocalTxn} | {state.value for state in LocalState}
)
"""The states to filter by: of the transaction as `list` shows it, or of one of its effects."""

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
    """A filter for transactions; None matches all. The times are of the last change, half open."""

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
        """The values of the condition's named parameters."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def parse_time(text: str | None, now: float) -> float | None:
    """Parse a time as a person types it: ISO 8601, UTC by default, or an age (`2h`).

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


_ALL: Final = 2**63 - 1  # larger than any count


class TransactionQueries(TransactionRows):
    """Queries for the tables `transactions` and `effects`, for people and recovery."""

    def find(self, name: str) -> list[TransactionRecord]:
        """Transactions by run key, id, or prefix of an id."""
        return [self.require(txn) for txn in self.found_ids(name)]

    def found_ids(self, name: str) -> list[str]:
        """Their ids, including unreadable ones. The empty prefix matches none."""
        rows = self._database.rows(
            "SELECT txn FROM transactions "
            "WHERE :name <> '' AND (run_key = :name OR substr(txn, 1, length(:name)) = :name) ORDER BY txn",
            {"name": name},
        )
        return [row["txn"] for row in rows]

    def key_of(self, txn: str) -> str:
        """The run key of a transaction whose other columns may be unreadable. Empty if the key is too.

        Raises:
            JournalError: the journal is unavailable, which is no problem of one transaction.
        """
        self._database.row("SELECT 1")
        with suppress(JournalError):
            row = self._database.row("SELECT run_key FROM transactions WHERE txn = ?", (txn,))
            return "" if row is None else str(row["run_key"])
        return ""

    def newest_ids(self, limit: int) -> list[str]:
        """Ids of the latest transactions, newest first, including unreadable ones."""
        rows = self._database.rows(
            "SELECT txn FROM transactions ORDER BY updated_at DESC, txn LIMIT ?", (limit,)
        )
        return [row["txn"] for row in rows]

    def matching_ids(self, criteria: TransactionFilter, limit: int | None = None) -> list[str]:
        """Ids of the matching transactions, newest first; all of them without a `limit`."""
        rows = self._database.rows(
            f"SELECT t.txn FROM transactions t WHERE {FILTER_CONDITION} "  # noqa: S608 - constant text, values are bound
            "ORDER BY t.updated_at DESC, t.txn LIMIT :limit",
            {**criteria.parameters, "limit": _ALL if limit is None else limit},
        )
        return [row["txn"] for row in rows]

    def unfinished(self) -> list[str]:
        """Ids of unfinished transactions, oldest first, including unreadable ones: one of them must not block the
        others.
        """
        rows = self._database.rows(
            "SELECT txn FROM transactions WHERE state NOT IN ('settled', 'ended') AND state <> 'closed' "
            "ORDER BY created_at, txn"
        )
        return [row["txn"] for row in rows]

    def shown(self, record: TransactionRecord, lane: str = STAGED_LANE) -> tuple[ShownEffect, ...]:
        """The same for people, without a key: sealed values are hidden. Every row is verified as far as the keys
        allow; `countersign journal verify` needs none.
        """
        return tuple(self._shown(row, record.agent) for row in self._rows(record, lane))

    def _shown(self, row: Row, agent: str) -> ShownEffect:
        with suppress(JournalSealed):
            effect_record(row, agent, self._seals)
        return shown_effect(row)

    def shown_each(self, record: TransactionRecord, lane: str) -> list[ShownEffect | UnreadableEffect]:
        """The same row by row, so that an unreadable row hides no other.

        Raises:
            JournalError: the journal is unavailable.
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
        """For people: calls of other lists of this key that are not in the last list, each from the last list that
        held it.

        Raises:
            JournalError: the journal is unavailable.
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
        """The live effects of the list in force, which are kept or undone with it. Not those that raised."""
        return tuple(row for row in self.shown(record, LIVE_LANE) if row.error is None)

    def unfinished_has_secrets(self) -> bool:
        """Whether an unfinished transaction has sealed values, in any list."""
        found = self._database.row(
            "SELECT 1 FROM transactions t JOIN effects e ON e.txn = t.txn "
            "WHERE t.state NOT IN ('settled', 'ended') AND t.state <> 'closed' AND substr(e.args, 1, ?) = ? LIMIT 1",
            (len(MARK), MARK),
        )
        return found is not None


_S: Final = LocalState
ACTED: Final = frozenset({_S.FIRED, _S.COMPENSATING, _S.COMPENSATED, _S.COMPENSATION_FAILED, _S.KEPT})
"""States of an effect that happened, even if it was compensated later."""

_ANSWERED: Final = frozenset({_S.RELEASED.value, _S.REDEEMED.value, _S.DENIED.value})
_MILLISECONDS: Final = 1000


def count(database: Database, criteria: TransactionFilter) -> dict[str, Any]:
    """Counts per state and per tool, over the lists in force of the matching transactions.

    Raises:
        JournalError: a line of the chain cannot be read.
    """
    states = database.rows(
        "SELECT CASE WHEN t.parked <> 0 THEN 'parked' ELSE t.state END AS state, count(*) AS n "  # noqa: S608 - ours
        f"FROM transactions t WHERE {FILTER_CONDITION} GROUP BY 1 ORDER BY 1",
        criteria.parameters,
    )
    tools: defaultdict[str, Counter[str]] = defaultdict(Counter)
    compensations = 0
    for row in database.rows(
        "SELECT e.tool, e.lane, e.state, count(*) AS n FROM transactions t JOIN effects e "  # noqa: S608 - ours
        f"ON e.txn = t.txn AND e.staging = coalesce(t.staging, t.stagings) WHERE {FILTER_CONDITION} GROUP BY 1, 2, 3",
        criteria.parameters,
    ):
        if row["lane"] == COMPENSATE_LANE:
            compensations += row["n"]
        else:
            tools[row["tool"]][row["state"]] += row["n"]
    total = sum(tools.values(), Counter[str]())
    return {
        "transactions": {row["state"]: row["n"] for row in states},
        "effects": _by_name(total) | {"compensations": compensations},
        "tools": [{"tool": tool} | _by_name(tools[tool]) for tool in sorted(tools)],
        "people": _review_waits(list(_waits(database, criteria))),
    }


def _by_name(counts: Counter[str]) -> dict[str, Any]:
    return {
        "called": counts.total(),
        "fired": sum(counts[state.value] for state in ACTED),
        "unknown": counts[_S.UNKNOWN.value] + counts[_S.FIRING.value],
        "compensated": counts[_S.COMPENSATED.value],
        "states": dict(sorted(counts.items())),
    }


def _review_waits(waits: list[float | None]) -> dict[str, Any]:
    answered = [one for one in waits if one is not None]
    return {
        "asked": len(waits),
        "answered": len(answered),
        "median_seconds": median(answered) if answered else None,
        "longest_seconds": max(answered, default=None),
    }


def _waits(database: Database, criteria: TransactionFilter) -> Iterator[float | None]:
    """For every reviewed effect: how long it waited, or None if it still does or ended otherwise."""
    pending: dict[tuple[Any, ...], int] = {}
    for row in database.rows(
        "SELECT c.txn, c.body FROM transactions t JOIN chain c ON c.txn = t.txn "  # noqa: S608 - ours
        f"WHERE c.kind IN ('seen', 'redeemed') AND {FILTER_CONDITION} ORDER BY c.id",
        criteria.parameters,
    ):
        for at, (_, *place), state in _states(row["body"]):  # a rerun stages the same list again
            call = (row["txn"], *place)
            if state == _S.REVIEW.value:
                pending.setdefault(call, at)
            elif call in pending:
                since = pending.pop(call)
                yield (at - since) / _MILLISECONDS if state in _ANSWERED else None
    yield from (None for _ in pending)


def _states(body: bytes) -> Iterator[tuple[int, list[Any], str]]:
    try:
        line = orjson.loads(body)
        for table, key, says in line["rows"]:
            if table == "effects" and "state" in says:
                yield line["at"], key, says["state"]
    except (ValueError, KeyError, TypeError) as error:
        raise JournalError(
            "a line of the journal's chain cannot be read; `countersign journal verify` shows which"
        ) from error
