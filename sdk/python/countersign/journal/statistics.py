"""Counting a journal: how transactions and effects stand, and how long people took.

What people took is read from the chain: from the line that says an effect is before people to the one that says it is
no longer. Both are the times at which this journal learned it, so an answer given while nobody asked counts until
somebody did.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from statistics import median
from typing import Any, Final

import orjson

from countersign.errors import JournalError
from countersign.journal.database import Database
from countersign.journal.queries import COMPENSATE_LANE, FILTER_CONDITION, TransactionFilter
from countersign.journal.states import LocalState

_S: Final = LocalState
ACTED: Final = frozenset({_S.FIRED, _S.COMPENSATING, _S.COMPENSATED, _S.COMPENSATION_FAILED, _S.KEPT})
"""States of an effect that did happen, whatever became of it later."""

_ANSWERED: Final = frozenset({_S.RELEASED.value, _S.REDEEMED.value, _S.DENIED.value})
_MILLISECONDS: Final = 1000


def count(database: Database, wanted: TransactionFilter) -> dict[str, Any]:
    """Counts per state and per tool, of the lists in force of the transactions somebody wants.

    Raises:
        JournalError: a line of the chain cannot be read.
    """
    states = database.rows(
        "SELECT CASE WHEN t.parked <> 0 THEN 'parked' ELSE t.state END AS state, count(*) AS n "  # noqa: S608 - ours
        f"FROM transactions t WHERE {FILTER_CONDITION} GROUP BY 1 ORDER BY 1",
        wanted.parameters,
    )
    tools: defaultdict[str, Counter[str]] = defaultdict(Counter)
    compensations = 0
    for row in database.rows(
        "SELECT e.tool, e.lane, e.state, count(*) AS n FROM transactions t JOIN effects e "  # noqa: S608 - ours
        f"ON e.txn = t.txn AND e.staging = coalesce(t.staging, t.stagings) WHERE {FILTER_CONDITION} GROUP BY 1, 2, 3",
        wanted.parameters,
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
        "people": _review_waits(list(_waits(database, wanted))),
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


def _waits(database: Database, wanted: TransactionFilter) -> Iterator[float | None]:
    """Of every effect that people were asked about: how long, or None while they are or if it ended otherwise."""
    asked: dict[tuple[Any, ...], int] = {}
    for row in database.rows(
        "SELECT c.txn, c.body FROM transactions t JOIN chain c ON c.txn = t.txn "  # noqa: S608 - ours
        f"WHERE c.kind IN ('seen', 'redeemed') AND {FILTER_CONDITION} ORDER BY c.id",
        wanted.parameters,
    ):
        for at, (_, *place), state in _states(row["body"]):  # a rerun stages the same list once more
            call = (row["txn"], *place)
            if state == _S.REVIEW.value:
                asked.setdefault(call, at)
            elif call in asked:
                since = asked.pop(call)
                yield (at - since) / _MILLISECONDS if state in _ANSWERED else None
    yield from (None for _ in asked)


def _states(body: bytes) -> Iterator[tuple[int, list[Any], str]]:
    try:
        line = orjson.loads(body)
        for table, key, says in line["rows"]:
            if table == "effects" and "state" in says:
                yield line["at"], key, says["state"]
    except (ValueError, KeyError, TypeError) as error:
        raise JournalError(
            "a line of the journal's chain cannot be read; `countersign journal verify` says which"
        ) from error
