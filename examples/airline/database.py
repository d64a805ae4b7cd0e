"""The airline's database: one SQLite file at one path, loaded from JSON and put back in place between runs.

One run at a time: a reset rewrites the file while others have it open, which the policy service's readers
survive (they see the whole old or the whole new state) and a second run would not. It decides nothing.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from examples.airline import data

NOW = "2024-05-15T15:00:00"  # the domain's clock (EST), given by the rule book
BUSY_SECONDS = 5.0

Row = dict[str, Any]


class AirlineDatabase:
    """The database file, and the pristine copy in memory it is reset from."""

    def __init__(self, path: Path, source: Path) -> None:
        self.path = path
        self._pristine = sqlite3.connect(":memory:")
        load(self._pristine, source)
        self.reset()

    def reset(self) -> None:
        """Put the file back to the state before any run, in one SQLite transaction."""
        with closing(sqlite3.connect(self.path, timeout=BUSY_SECONDS)) as target:
            # The file is scratch: a power cut loses nothing that the JSON does not hold.
            target.execute("PRAGMA synchronous = OFF")
            self._pristine.backup(target)

    def close(self) -> None:
        self._pristine.close()


@contextmanager
def unit_of_work(path: Path) -> Iterator[sqlite3.Connection]:
    """One write to the database: everything is committed at the end, or nothing when the body raises."""
    with closing(sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


def load(connection: sqlite3.Connection, source: Path) -> None:
    """Fill an empty database from the JSON files of the data folder."""
    connection.executescript((Path(__file__).parent / "schema.sql").read_text())
    connection.execute("INSERT INTO clock VALUES (?)", (NOW,))
    for flight in data.table(source, "flights").values():
        _load_flight(connection, flight)
    for user_id, customer in data.table(source, "users").items():
        _load_customer(connection, user_id, customer)
    for reservation in data.table(source, "reservations").values():
        _load_reservation(connection, reservation)
    connection.commit()


def _load_flight(connection: sqlite3.Connection, row: Row) -> None:
    number = row["flight_number"]
    departs, arrives = row["scheduled_departure_time_est"], row["scheduled_arrival_time_est"]
    connection.execute(
        "INSERT INTO flights VALUES (?, ?, ?, ?, ?)",
        (number, row["origin"], row["destination"], departs, arrives),
    )
    days, fares = [], []
    for date, day in row["dates"].items():
        arrival = day.get("actual_arrival_time_est") or day.get("estimated_arrival_time_est")
        days.append((number, date, day["status"], _moment(date, arrives), arrival))
        prices = day.get("prices", {})
        fares += [
            (number, date, cabin, seats, prices[cabin])
            for cabin, seats in day.get("available_seats", {}).items()
        ]
    connection.executemany("INSERT INTO flight_days VALUES (?, ?, ?, ?, ?)", days)
    connection.executemany("INSERT INTO fares VALUES (?, ?, ?, ?, ?)", fares)


def _moment(date: str, time_of_day: str) -> str:
    """The schedule's "03:00:00+1" on a date, as a moment on the next day."""
    time, _, days = time_of_day.partition("+")
    moment = datetime.fromisoformat(f"{date}T{time}") + timedelta(days=int(days or 0))
    return moment.isoformat()


def _load_customer(connection: sqlite3.Connection, user_id: str, row: Row) -> None:
    name = row["name"]
    connection.execute(
        "INSERT INTO customers VALUES (?, ?, ?, ?, ?, ?)",
        (user_id, name["first_name"], name["last_name"], row["email"], row["dob"], row["membership"]),
    )
    connection.executemany(
        "INSERT INTO payment_methods VALUES (?, ?, ?, ?, NULL)",
        [
            (user_id, payment_id, method["source"], method.get("amount"))
            for payment_id, method in row["payment_methods"].items()
        ],
    )


def _load_reservation(connection: sqlite3.Connection, row: Row) -> None:
    key = row["reservation_id"]
    columns = (
        "reservation_id, user_id, origin, destination, flight_type, cabin, insurance, total_baggages, "
        "nonfree_baggages, created_at"
    )
    names = columns.split(", ")
    connection.execute(
        f"INSERT INTO reservations ({columns}) VALUES ({', '.join('?' * len(names))})",  # noqa: S608 our own names
        [row[name] for name in names],
    )
    write_segments(connection, key, row["flights"])
    write_passengers(connection, key, row["passengers"])
    add_payments(connection, key, row["payment_history"])


def write_segments(connection: sqlite3.Connection, reservation_id: str, flights: list[Row]) -> None:
    """The flights of a reservation, instead of those it had."""
    connection.execute("DELETE FROM segments WHERE reservation_id = ?", (reservation_id,))
    connection.executemany(
        "INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (reservation_id, leg, f["flight_number"], f["date"], f["origin"], f["destination"], f["price"])
            for leg, f in enumerate(flights)
        ],
    )


def write_passengers(connection: sqlite3.Connection, reservation_id: str, passengers: list[Row]) -> None:
    """The passengers of a reservation, instead of those it had."""
    connection.execute("DELETE FROM passengers WHERE reservation_id = ?", (reservation_id,))
    connection.executemany(
        "INSERT INTO passengers VALUES (?, ?, ?, ?, ?)",
        [
            (reservation_id, position, p["first_name"], p["last_name"], p["dob"])
            for position, p in enumerate(passengers)
        ],
    )


def add_payments(connection: sqlite3.Connection, reservation_id: str, payments: list[Row]) -> None:
    """Payments after those already made; a negative amount is money paid back."""
    row = connection.execute("SELECT COUNT(*) FROM payments WHERE reservation_id = ?", (reservation_id,))
    (count,) = row.fetchone()
    connection.executemany(
        "INSERT INTO payments VALUES (?, ?, ?, ?)",
        [(reservation_id, count + n, p["payment_id"], p["amount"]) for n, p in enumerate(payments)],
    )
