"""The airline's API on its database: what it does, what it refuses, and that a refusal changes nothing."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from examples.airline import operations
from examples.airline.database import AirlineDatabase, unit_of_work
from examples.airline.operations import RefusedError
from tests.integration.examples.airline_world import ANA, BO

FLIGHT = [{"flight_number": "HAT001", "date": "2024-05-18"}]
ORDER: dict[str, Any] = {
    "user_id": "regular_1", "origin": "JFK", "destination": "SEA", "flight_type": "one_way", "cabin": "economy",
    "flights": [{"flight_number": "HAT001", "date": "2024-05-17"}], "passengers": [ANA, BO],
    "payment_methods": [
        {"payment_id": "gift_card_1", "amount": 100}, {"payment_id": "certificate_1", "amount": 210},
    ],
    "total_baggages": 3, "nonfree_baggages": 1, "insurance": "yes",
}  # fmt: skip


def methods(airline: AirlineDatabase, user: str = "regular_1") -> dict[str, int | None]:
    with closing(sqlite3.connect(airline.path)) as db:
        sql = "SELECT payment_id, amount FROM payment_methods WHERE user_id = ?"
        return dict(db.execute(sql, (user,)).fetchall())


def test_a_booking_is_paid_and_stored(airline: AirlineDatabase) -> None:
    with unit_of_work(airline.path) as db:
        booked = operations.book(db, ORDER)

    assert (booked["reservation_id"], booked["created_at"]) == ("HATHAT", "2024-05-15T15:00:00")
    assert [f["price"] for f in booked["flights"]] == [100]
    assert booked["payment_history"] == ORDER["payment_methods"]
    left = methods(airline)
    assert left["gift_card_1"] == 20 and "certificate_1" not in left


def on(number: str, day: int) -> dict[str, Any]:
    return {"flights": [{"flight_number": number, "date": f"2024-05-{day}"}]}


def paid(method: str, amount: int) -> dict[str, Any]:
    return {"payment_methods": [{"payment_id": method, "amount": amount}]}


def test_the_fourth_booking_of_a_day_is_refused(airline: AirlineDatabase) -> None:
    order = ORDER | paid("credit_card_1", 310)
    with unit_of_work(airline.path) as db:
        ids = [operations.book(db, order)["reservation_id"] for _ in range(3)]
        assert ids == list(operations.BOOKING_IDS)
        with pytest.raises(RefusedError, match="at most 3"):
            operations.book(db, order)


def test_what_a_change_costs_is_paid_and_what_it_saves_is_paid_back(airline: AirlineDatabase) -> None:
    """A segment that is kept keeps its price, and bags paid before are not paid again."""
    with unit_of_work(airline.path) as db:
        more = operations.change_baggages(db, "BASIC1", 3, 3, "gift_card_1")
        operations.change_flights(db, "BUSI01", "economy", FLIGHT, "gift_card_1")
        cancelled = operations.cancel(db, "ECON01")
        sent, again = (operations.send_certificate(db, "gold_1", amount) for amount in (100, 50))
        db.execute("UPDATE fares SET price = 130")
        flights = [*FLIGHT, {"flight_number": "HAT002", "date": "2024-05-20"}]
        changed = operations.change_flights(db, "ROUND1", "economy", flights, "credit_card_1")

    assert more["payment_history"][-1] == {"payment_id": "gift_card_1", "amount": 50}
    assert methods(airline)["gift_card_1"] == 120 - 50 + 2 * 300
    history = [payment["amount"] for payment in cancelled["payment_history"]]
    assert (cancelled["status"], history) == ("cancelled", [200, -200])
    assert sent["payment_id"] != again["payment_id"]
    assert methods(airline, "gold_1")["certificate_3221322"] == 100
    assert [f["price"] for f in changed["flights"]] == [100, 130]
    assert changed["payment_history"][-1] == {"payment_id": "credit_card_1", "amount": 2 * 30}
    assert changed["changed_at"] == "2024-05-15T15:00:00"


def booking(**change: Any) -> tuple[Callable[..., object], tuple[Any, ...]]:
    return operations.book, (ORDER | change,)


UPGRADE = ("ECON01", "business", FLIGHT)
BAGS = ("ECON01", 3, 1)
REFUSED: list[tuple[tuple[Callable[..., object], tuple[Any, ...]], str]] = [
    (booking(user_id="unknown"), "customer 'unknown' not found"),
    (booking(**on("HAT999", 17)), "not available"),
    (booking(**on("HAT001", 15)), "not available"),  # in the air
    (booking(passengers=[ANA, BO, ANA]), "2 economy seats left, not 3"),
    (booking(**paid("credit_card_1", 309)), "add up to 309, the price is 310"),
    (booking(**paid("credit_card_9", 310)), "not in the profile"),
    (booking(**paid("gift_card_1", 310)), "holds 120, not 310"),
    ((operations.cancel, ("UNKNOWN",)), "'UNKNOWN' not found"),
    ((operations.change_flights, (*UPGRADE, "certificate_1")), "cannot pay for a change"),
    ((operations.change_flights, (*UPGRADE, "gift_card_1")), "holds 120, not 600"),
    ((operations.change_baggages, (*BAGS, "credit_card_9")), "not in the profile"),
    ((operations.change_passengers, ("ECON01", [ANA])), "has 2 passengers, not 1"),
    ((operations.send_certificate, ("unknown", 50)), "'unknown' not found"),
]


def test_what_the_airline_cannot_do_is_refused_and_nothing_changes(airline: AirlineDatabase) -> None:
    before = methods(airline)
    for (change, args), sentence in REFUSED:
        with pytest.raises(RefusedError, match=sentence), unit_of_work(airline.path) as db:
            change(db, *args)
    assert methods(airline) == before
