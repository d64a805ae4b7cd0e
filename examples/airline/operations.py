"""What the airline's API does to its database, call by call, checking only what that API checks.

The API refuses what it cannot carry out (no such flight, no seats, a payment that does not add up) and
nothing else: it knows no rule of the rule book, which is why the rules live in a policy. A refusal is
`RefusedError`, raised before anything was written. Every function runs in one unit of work of its caller.
"""

import sqlite3
from typing import Any

from examples.airline.database import add_payments, write_passengers, write_segments

INSURANCE_PRICE = 30  # dollars for each passenger
BAG_PRICE = 50  # dollars for each bag that is not free
# The API numbers new bookings and certificates from these short lists; a recorded run names what it got.
BOOKING_IDS = ("HATHAT", "HATHAU", "HATHAV")
CERTIFICATE_IDS = ("certificate_3221322", "certificate_3221323", "certificate_3221324")

Row = dict[str, Any]


class RefusedError(Exception):
    """The airline's API said no; nothing has changed."""


def book(db: sqlite3.Connection, order: Row) -> Row:
    """A new reservation, paid in full by methods of the customer's profile."""
    _require_customer(db, order["user_id"])
    people = len(order["passengers"])
    flights = [_priced(db, flight, order["cabin"], people) for flight in order["flights"]]
    price = people * sum(flight["price"] for flight in flights) + BAG_PRICE * int(order["nonfree_baggages"])
    if order["insurance"] == "yes":
        price += INSURANCE_PRICE * people
    _require_paid(db, order["user_id"], order["payment_methods"], price)
    key = _unused(db, "SELECT 1 FROM reservations WHERE reservation_id = ?", BOOKING_IDS)
    for payment in order["payment_methods"]:
        _spend(db, order["user_id"], payment["payment_id"], payment["amount"])
    _insert_reservation(db, key, order)
    write_segments(db, key, flights)
    write_passengers(db, key, order["passengers"])
    add_payments(db, key, order["payment_methods"])
    return reservation(db, key)


def change_flights(db: sqlite3.Connection, key: str, cabin: str, flights: list[Row], payment_id: str) -> Row:
    """Other flights, another cabin, or both. A segment kept in its cabin keeps its price."""
    old = reservation(db, key)
    people = len(old["passengers"])
    kept = {(f["flight_number"], f["date"]): f for f in old["flights"]} if cabin == old["cabin"] else {}
    new = [kept.get((f["flight_number"], f["date"])) or _priced(db, f, cabin, people) for f in flights]
    difference = people * (sum(f["price"] for f in new) - sum(f["price"] for f in old["flights"]))
    _charge(db, old, payment_id, difference)
    write_segments(db, key, new)
    db.execute(
        "UPDATE reservations SET cabin = ?, changed_at = (SELECT now FROM clock) WHERE reservation_id = ?",
        (cabin, key),
    )
    return reservation(db, key)


def change_baggages(db: sqlite3.Connection, key: str, total: int, nonfree: int, payment_id: str) -> Row:
    """Other numbers of bags; bags that were not paid before are paid now."""
    old = reservation(db, key)
    _charge(db, old, payment_id, BAG_PRICE * max(0, nonfree - int(old["nonfree_baggages"])))
    db.execute(
        "UPDATE reservations SET total_baggages = ?, nonfree_baggages = ? WHERE reservation_id = ?",
        (total, nonfree, key),
    )
    return reservation(db, key)


def change_passengers(db: sqlite3.Connection, key: str, passengers: list[Row]) -> Row:
    """Other passengers, as many as there were."""
    old = reservation(db, key)
    if len(passengers) != len(old["passengers"]):
        raise RefusedError(
            f"reservation {key} has {len(old['passengers'])} passengers, not {len(passengers)}"
        )
    write_passengers(db, key, passengers)
    return reservation(db, key)


def cancel(db: sqlite3.Connection, key: str) -> Row:
    """Cancel the whole reservation and pay everything back to where it came from."""
    paid = reservation(db, key)["payment_history"]
    add_payments(db, key, [{**payment, "amount": -payment["amount"]} for payment in paid])
    db.execute(
        "UPDATE reservations SET status = 'cancelled', changed_at = (SELECT now FROM clock) "
        "WHERE reservation_id = ?",
        (key,),
    )
    return reservation(db, key)


def send_certificate(db: sqlite3.Connection, user_id: str, amount: int) -> Row:
    """A new travel certificate in the customer's profile."""
    _require_customer(db, user_id)
    owned = "SELECT 1 FROM payment_methods WHERE payment_id = ? AND user_id = ?"
    key = _unused(db, owned, CERTIFICATE_IDS, user_id)
    db.execute(
        "INSERT INTO payment_methods VALUES (?, ?, 'certificate', ?, (SELECT now FROM clock))",
        (user_id, key, amount),
    )
    return {"user_id": user_id, "payment_id": key, "amount": amount}


def reservation(db: sqlite3.Connection, key: str) -> Row:
    """A reservation as the API shows it."""
    row = db.execute("SELECT * FROM reservations WHERE reservation_id = ?", (key,)).fetchone()
    if row is None:
        raise RefusedError(f"reservation {key!r} not found")
    parts = {"flights": "segments", "passengers": "passengers", "payment_history": "payments"}
    return {**dict(row), **{name: _parts(db, table, key) for name, table in parts.items()}}


def _parts(db: sqlite3.Connection, table: str, key: str) -> list[Row]:
    order = "leg" if table == "segments" else "position"
    sql = f"SELECT * FROM {table} WHERE reservation_id = ? ORDER BY {order}"  # noqa: S608 our own names
    rows = [dict(row) for row in db.execute(sql, (key,))]
    return [{name: row[name] for name in row if name not in (order, "reservation_id")} for row in rows]


def _require_customer(db: sqlite3.Connection, user_id: str) -> None:
    if db.execute("SELECT 1 FROM customers WHERE user_id = ?", (user_id,)).fetchone() is None:
        raise RefusedError(f"customer {user_id!r} not found")


def _priced(db: sqlite3.Connection, flight: Row, cabin: str, people: int) -> Row:
    """A flight on a date with its route and today's price, when it has seats for all of them."""
    number, date = flight["flight_number"], flight["date"]
    row = db.execute(
        "SELECT flight_number, date, origin, destination, price, seats FROM flight_days "
        "JOIN flights USING (flight_number) JOIN fares USING (flight_number, date) "
        "WHERE flight_number = ? AND date = ? AND cabin = ? AND status = 'available'",
        (number, date, cabin),
    ).fetchone()
    if row is None:
        raise RefusedError(f"flight {number} on {date} is not available")
    if row["seats"] < people:
        raise RefusedError(f"flight {number} on {date} has {row['seats']} {cabin} seats left, not {people}")
    return {name: row[name] for name in ("flight_number", "date", "origin", "destination", "price")}


def _require_paid(db: sqlite3.Connection, user_id: str, payments: list[Row], price: int) -> None:
    for payment in payments:
        method = _method(db, user_id, payment["payment_id"])
        if method["amount"] is not None and method["amount"] < payment["amount"]:
            raise RefusedError(f"{payment['payment_id']} holds {method['amount']}, not {payment['amount']}")
    paid = sum(payment["amount"] for payment in payments)
    if paid != price:
        raise RefusedError(f"the payments add up to {paid}, the price is {price}")


def _method(db: sqlite3.Connection, user_id: str, payment_id: str) -> Row:
    row = db.execute(
        "SELECT * FROM payment_methods WHERE user_id = ? AND payment_id = ?", (user_id, payment_id)
    ).fetchone()
    if row is None:
        raise RefusedError(f"payment method {payment_id!r} is not in the profile of {user_id}")
    return dict(row)


def _charge(db: sqlite3.Connection, owner: Row, payment_id: str, amount: int) -> None:
    """Take (or, when negative, give back) the difference of a change and note it on the reservation."""
    method = _method(db, owner["user_id"], payment_id)
    if method["source"] == "certificate":
        raise RefusedError(f"{payment_id} is a certificate, which cannot pay for a change")
    if method["amount"] is not None and method["amount"] < amount:
        raise RefusedError(f"{payment_id} holds {method['amount']}, not {amount}")
    _spend(db, owner["user_id"], payment_id, amount)
    if amount:
        add_payments(db, owner["reservation_id"], [{"payment_id": payment_id, "amount": amount}])


def _spend(db: sqlite3.Connection, user_id: str, payment_id: str, amount: int) -> None:
    """A gift card keeps its rest; a certificate is gone; a credit card is none of our business."""
    where = "WHERE user_id = ? AND payment_id = ?"
    db.execute(
        f"UPDATE payment_methods SET amount = amount - ? {where} AND source = 'gift_card'",  # noqa: S608 no input
        (amount, user_id, payment_id),
    )
    db.execute(
        f"DELETE FROM payment_methods {where} AND source = 'certificate'",  # noqa: S608 no input
        (user_id, payment_id),
    )


def _unused(db: sqlite3.Connection, taken: str, names: tuple[str, ...], *more: str) -> str:
    for name in names:
        if db.execute(taken, (name, *more)).fetchone() is None:
            return name
    raise RefusedError(f"the airline numbers at most {len(names)} of these a day")


def _insert_reservation(db: sqlite3.Connection, key: str, order: Row) -> None:
    db.execute(
        "INSERT INTO reservations (reservation_id, user_id, origin, destination, flight_type, cabin, "
        "insurance, total_baggages, nonfree_baggages, created_at) "
        "VALUES (:key, :user_id, :origin, :destination, :flight_type, :cabin, :insurance, :total_baggages, "
        ":nonfree_baggages, (SELECT now FROM clock))",
        {**{k: v for k, v in order.items() if not isinstance(v, list)}, "key": key},
    )
