"""A small airline in the form of the recorded data: four flights a day, three customers, a few reservations.

Days run from 2024-05-14 (flown) over 2024-05-15 (today, the domain's clock is at 15:00) to 2024-05-20.
"""

import json
from pathlib import Path
from typing import Any

CABINS = ("basic_economy", "economy", "business")
PRICES = {"basic_economy": 50, "economy": 100, "business": 400}
DAYS = [f"2024-05-{day}" for day in range(14, 21)]
ANA = {"first_name": "Ana", "last_name": "Lima", "dob": "1980-01-01"}
BO = {"first_name": "Bo", "last_name": "Berg", "dob": "1990-01-01"}


def flight_day(date: str, departs: str, arrives: str) -> dict[str, Any]:
    began = {"actual_departure_time_est": f"{date}T{departs}"}
    if date < "2024-05-15":
        return {"status": "landed", "actual_arrival_time_est": f"{date}T{arrives}"} | began
    if date == "2024-05-15":
        return {"status": "flying", "estimated_arrival_time_est": f"{date}T{arrives}"} | began
    return {"status": "available", "available_seats": dict.fromkeys(CABINS, 2), "prices": dict(PRICES)}


def flight(number: str, origin: str, destination: str, departs: str, arrives: str) -> dict[str, Any]:
    return {
        "flight_number": number, "origin": origin, "destination": destination,
        "scheduled_departure_time_est": departs, "scheduled_arrival_time_est": arrives,
        "dates": {date: flight_day(date, departs, arrives) for date in DAYS},
    }  # fmt: skip


def flights() -> dict[str, Any]:
    rows = [
        flight("HAT001", "JFK", "SEA", "06:00:00", "12:00:00"),
        flight("HAT002", "SEA", "JFK", "13:00:00", "19:00:00"),
        flight("HAT003", "JFK", "ORD", "07:00:00", "09:00:00"),
        flight("HAT004", "ORD", "SEA", "10:00:00", "12:00:00"),
    ]
    table = {row["flight_number"]: row for row in rows}
    table["HAT003"]["dates"]["2024-05-16"] = {"status": "cancelled"}
    table["HAT004"]["dates"]["2024-05-16"] = {
        "status": "delayed", "estimated_departure_time_est": "2024-05-16T11:00:00",
        "estimated_arrival_time_est": "2024-05-16T13:00:00",
    }  # fmt: skip
    return table


def customer(name: str, membership: str, methods: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": {"first_name": name, "last_name": "Test"}, "email": f"{name.lower()}@example.com",
        "dob": "1980-01-01", "membership": membership,
        "payment_methods": {method["id"]: method for method in methods},
    }  # fmt: skip


def method(key: str, amount: int | None = None) -> dict[str, Any]:
    source = key.rpartition("_")[0]
    return {"id": key, "source": source} | ({} if amount is None else {"amount": amount})


def users() -> dict[str, Any]:
    cards = [method("credit_card_1"), method("credit_card_2"), method("gift_card_1", 120)]
    gifts = [method(f"gift_card_{n}", 50) for n in range(2, 6)]
    regular = [*cards, *gifts, method("certificate_1", 250), method("certificate_2", 100)]
    gold = customer("Gil", "gold", [method("credit_card_9")])
    return {"regular_1": customer("Rae", "regular", regular), "gold_1": gold}


def reservation(key: str, user: str, cabin: str, legs: list[tuple[str, str]], **more: Any) -> dict[str, Any]:
    known, price = flights(), PRICES[cabin]
    places = [(known[number]["origin"], known[number]["destination"]) for number, _ in legs]
    segments = [
        {"flight_number": number, "date": date, "origin": origin, "destination": destination, "price": price}
        for (number, date), (origin, destination) in zip(legs, places, strict=True)
    ]
    row = {
        "reservation_id": key, "user_id": user, "flight_type": "one_way", "cabin": cabin,
        "origin": places[0][0], "destination": places[-1][1], "flights": segments, "passengers": [ANA, BO],
        "payment_history": [{"payment_id": "credit_card_1", "amount": 2 * price * len(segments)}],
        "created_at": "2024-05-01T00:00:00", "total_baggages": 2, "nonfree_baggages": 0, "insurance": "no",
    }  # fmt: skip
    return row | more


def reservations() -> dict[str, Any]:
    there, late = [("HAT001", "2024-05-18")], [("HAT004", "2024-05-16")]
    back = [("HAT001", "2024-05-18"), ("HAT002", "2024-05-19")]
    stop = [("HAT003", "2024-05-16"), ("HAT004", "2024-05-17")]
    rows = [
        reservation("ECON01", "regular_1", "economy", there),
        reservation("BASIC1", "regular_1", "basic_economy", there, nonfree_baggages=2),
        reservation("BUSI01", "regular_1", "business", there),
        reservation("INSUR1", "regular_1", "economy", there, insurance="yes"),
        reservation("FRESH1", "regular_1", "basic_economy", there, created_at="2024-05-14T15:00:01"),
        reservation("DAYOLD", "regular_1", "basic_economy", there, created_at="2024-05-14T15:00:00"),
        reservation("FLOWN1", "regular_1", "business", [("HAT001", "2024-05-14")]),
        reservation("FLYING", "regular_1", "business", [("HAT001", "2024-05-15")]),
        reservation("CANCEL", "gold_1", "economy", stop),
        reservation("DELAY1", "gold_1", "economy", late, passengers=[ANA]),
        reservation("ROUND1", "regular_1", "economy", back, destination="SEA", flight_type="round_trip"),
    ]
    return {row["reservation_id"]: row for row in rows}


def write(folder: Path, runs: list[dict[str, Any]] | None = None) -> Path:
    """The data folder: the airline's three tables, and the runs."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {"flights": flights(), "users": users(), "reservations": reservations()}
    for name, table in tables.items():
        (folder / f"{name}.json").write_text(json.dumps(table))
    lines = [json.dumps(run) for run in runs or []]
    (folder / "trajectories.jsonl").write_text("\n".join(lines) + "\n" if lines else "")
    return folder
