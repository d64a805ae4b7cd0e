"""The airline's read tools: they change nothing and are not asked about.

Only those that look at the database are here. A recorded run's `calculate`, `think` and
`transfer_to_human_agents` touch nothing of the airline's.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from examples.airline import operations

Row = dict[str, Any]

_DIRECT = """
SELECT f.flight_number, d.date, f.origin, f.destination, f.departs, f.arrives
FROM flights AS f JOIN flight_days AS d USING (flight_number)
WHERE f.origin = :origin AND f.destination = :destination AND d.date = :date AND d.status = 'available'
"""
_ONE_STOP = """
SELECT a.flight_number AS first, b.flight_number AS second, a.origin, a.destination AS via, b.destination
FROM flights AS a JOIN flights AS b ON b.origin = a.destination
JOIN flight_days AS x ON x.flight_number = a.flight_number AND x.date = :date AND x.status = 'available'
JOIN flight_days AS y ON y.flight_number = b.flight_number AND y.status = 'available'
    AND y.date = iif(a.arrives LIKE '%+1', date(:date, '+1 day'), :date)
WHERE a.origin = :origin AND b.destination = :destination
    AND substr(a.arrives, 1, 8) <= substr(b.departs, 1, 8)
"""


def read(path: Path, tool: str, args: Row) -> list[Row]:
    """What the tool answers; an unknown tool or id gives no result."""
    function = _READS.get(tool)
    if function is None:
        return []
    with closing(sqlite3.connect(path)) as db:
        db.row_factory = sqlite3.Row
        try:
            return function(db, args)
        except operations.RefusedError:
            return []


def _rows(sql: str) -> Callable[[sqlite3.Connection, Row], list[Row]]:
    return lambda db, args: [dict(row) for row in db.execute(sql, args)]


def _reservation(db: sqlite3.Connection, args: Row) -> list[Row]:
    return [operations.reservation(db, args["reservation_id"])]


_READS: dict[str, Callable[[sqlite3.Connection, Row], list[Row]]] = {
    "get_reservation_details": _reservation,
    "get_user_details": _rows("SELECT * FROM customers WHERE user_id = :user_id"),
    "list_all_airports": _rows("SELECT DISTINCT origin FROM flights ORDER BY origin"),
    "search_direct_flight": _rows(_DIRECT),
    "search_onestop_flight": _rows(_ONE_STOP),
}
