"""The airline's write tools, as an agent calls them: each changes the database and cannot be taken back.

Outside a transaction they refuse to run; inside, they run when the service has released exactly these
arguments. What the airline's API refuses raises `NotDone`: it is known not to have happened. The reviewed
descriptions of these tools are the bundle's (`policies/examples/airline/tools`); the SDK asks for them.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Literal

from typing_extensions import TypedDict

from countersign import NotDone, tool
from examples.airline import operations
from examples.airline.database import unit_of_work

DATABASE = "AIRLINE_DATABASE"  # the environment variable that names the database file

Cabin = Literal["basic_economy", "economy", "business"]


class Flight(TypedDict):
    """A flight on a date."""

    flight_number: str
    date: str


class Passenger(TypedDict):
    """Somebody who flies."""

    first_name: str
    last_name: str
    dob: str


class Payment(TypedDict):
    """An amount, in whole dollars, from a method of the customer's profile."""

    payment_id: str
    amount: int


@contextmanager
def airline() -> Iterator[Connection]:
    """One unit of work on the airline's database; what its API refuses has not been done."""
    with unit_of_work(Path(os.environ[DATABASE])) as db:
        try:
            yield db
        except operations.RefusedError as refusal:
            raise NotDone(str(refusal)) from refusal


@tool("book_reservation", resource=("Customer", "user_id"))
def book_reservation(
    user_id: str,
    origin: str,
    destination: str,
    flight_type: Literal["one_way", "round_trip"],
    cabin: Cabin,
    flights: list[Flight],
    passengers: list[Passenger],
    payment_methods: list[Payment],
    total_baggages: int,
    nonfree_baggages: int,
    insurance: Literal["yes", "no"],
) -> dict[str, Any]:
    """Book a reservation."""
    order = {
        "user_id": user_id,
        "origin": origin,
        "destination": destination,
        "flight_type": flight_type,
        "cabin": cabin,
        "flights": flights,
        "passengers": passengers,
        "payment_methods": payment_methods,
        "total_baggages": total_baggages,
        "nonfree_baggages": nonfree_baggages,
        "insurance": insurance,
    }
    with airline() as db:
        return operations.book(db, order)


@tool("update_reservation_flights", resource=("Reservation", "reservation_id"))
def update_reservation_flights(
    reservation_id: str, cabin: Cabin, flights: list[Flight], payment_id: str
) -> dict[str, Any]:
    """Change flights or cabin."""
    wanted = [dict(flight) for flight in flights]
    with airline() as db:
        return operations.change_flights(db, reservation_id, cabin, wanted, payment_id)


@tool("update_reservation_baggages", resource=("Reservation", "reservation_id"))
def update_reservation_baggages(
    reservation_id: str, total_baggages: int, nonfree_baggages: int, payment_id: str
) -> dict[str, Any]:
    """Change checked bags."""
    with airline() as db:
        return operations.change_baggages(db, reservation_id, total_baggages, nonfree_baggages, payment_id)


@tool("update_reservation_passengers", resource=("Reservation", "reservation_id"))
def update_reservation_passengers(reservation_id: str, passengers: list[Passenger]) -> dict[str, Any]:
    """Change passengers."""
    with airline() as db:
        return operations.change_passengers(db, reservation_id, [dict(person) for person in passengers])


@tool("cancel_reservation", resource=("Reservation", "reservation_id"))
def cancel_reservation(reservation_id: str) -> dict[str, Any]:
    """Cancel a reservation."""
    with airline() as db:
        return operations.cancel(db, reservation_id)


@tool("send_certificate", resource=("Customer", "user_id"))
def send_certificate(user_id: str, amount: int) -> dict[str, Any]:
    """Send a travel certificate."""
    with airline() as db:
        return operations.send_certificate(db, user_id, amount)


WRITES: dict[str, Callable[..., object]] = {
    "book_reservation": book_reservation,
    "update_reservation_flights": update_reservation_flights,
    "update_reservation_baggages": update_reservation_baggages,
    "update_reservation_passengers": update_reservation_passengers,
    "cancel_reservation": cancel_reservation,
    "send_certificate": send_certificate,
}
