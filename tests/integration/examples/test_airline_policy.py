"""The airline's rule book, rule by rule: the bundle and its queries, asked about a small airline.

Every case is one call on one state of the database, and names the policies that decided it.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from countersign.contract import Verdict, canonicalize
from examples.airline import operations
from examples.airline.database import AirlineDatabase, unit_of_work
from policy_service.domain.policy_request import AgentPrincipal, Decision, PolicyRequest
from policy_service.pap.bundle import Bundle, load_bundle
from policy_service.pdp.engine import decide
from tests.integration.examples import airline_world
from tests.integration.examples.airline_world import ANA, BO

BUNDLE = Path(__file__).parents[3] / "policies/examples/airline"
NOW = datetime(2026, 11, 21, tzinfo=UTC)
AGENT = AgentPrincipal("service-agent", roles=frozenset({"airline-agent"}))

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AirlineDatabase, Bundle]]:
    folder = tmp_path_factory.mktemp("airline")
    database = AirlineDatabase(folder / "airline.sqlite3", airline_world.write(folder / "data"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRLINE_FACTS_URL", f"sqlite:///{database.path}")
        loaded = load_bundle(BUNDLE)
    yield database, loaded
    loaded.close()
    database.close()


@pytest.fixture
def airline(desk: tuple[AirlineDatabase, Bundle]) -> AirlineDatabase:
    desk[0].reset()
    return desk[0]


@pytest.fixture
def bundle(desk: tuple[AirlineDatabase, Bundle], airline: AirlineDatabase) -> Bundle:
    return desk[1]


async def ask(bundle: Bundle, tool: str, args: dict[str, Any], agent: AgentPrincipal = AGENT) -> Decision:
    facts = await bundle.facts_for(tool, args, canonicalize(args), agent=agent.name, now=NOW)
    digest = bundle.manifests[tool].digest
    return decide(bundle.rules, PolicyRequest(agent, tool, digest, args, facts, NOW))


def determining(decision: Decision) -> set[str]:
    if decision.outcome is Verdict.REVIEW:
        return {gate.policy_id for gate in decision.gates}
    return set(decision.policies)


ARGUMENTS = {"pay": "payment_methods", "of": "reservation_id"}  # how the rows below call them
Case = tuple[Verdict, set[str], dict[str, Any], str]


def case(outcome: Verdict, *policies: str, setup: str = "", **change: Any) -> Case:
    """What is decided by which policies; how the arguments differ from a released call's; SQL that is run before."""
    return outcome, set(policies), {ARGUMENTS.get(name, name): one for name, one in change.items()}, setup


released, reviewed, denied = (partial(case, one) for one in (Verdict.RELEASE, Verdict.REVIEW, Verdict.DENY))


def paid(*payments: str) -> list[dict[str, Any]]:
    """Payments as "gift_card_1 100": the method, and the amount."""
    parts = [payment.rpartition(" ") for payment in payments]
    return [{"payment_id": method, "amount": int(amount)} for method, _, amount in parts]


def card(amount: int, number: int = 1) -> list[dict[str, Any]]:
    return paid(f"credit_card_{number} {amount}")


def on(*legs: str) -> list[dict[str, str]]:
    """Flights as "HAT001 17": the number, and the day of May."""
    parts = [leg.rpartition(" ") for leg in legs]
    return [{"flight_number": number, "date": f"2024-05-{day}"} for number, _, day in parts]


BOOKING: dict[str, Any] = {
    "user_id": "regular_1", "origin": "JFK", "destination": "SEA", "flight_type": "one_way", "cabin": "economy",
    "flights": on("HAT001 17"), "passengers": [ANA, BO], "payment_methods": card(200),
    "total_baggages": 2, "nonfree_baggages": 0, "insurance": "no",
}  # fmt: skip
GOLD: dict[str, Any] = {"user_id": "gold_1", "pay": card(200, 9)}
FULL = "UPDATE fares SET seats = 1"
ROOMY = "UPDATE fares SET seats = 9"
UNAVAILABLE = ("book-available-flights", "book-paid-in-full")
BOOKINGS = {
    "a booking that keeps every rule": released("book"),
    "insurance that is not paid": denied("book-paid-in-full", insurance="yes"),
    "there and back": released(
        "book", flight_type="round_trip", flights=on("HAT001 17", "HAT002 18"), pay=card(400)
    ),
    "five passengers": released("book", setup=ROOMY, passengers=[ANA] * 5, pay=card(500)),
    "six passengers": denied("book-five-passengers", setup=ROOMY, passengers=[ANA] * 6, pay=card(600)),
    "more passengers than seats": denied(*UNAVAILABLE, passengers=[ANA] * 3, pay=card(300)),
    "an unknown flight": denied(*UNAVAILABLE, "book-one-trip", flights=on("HAT999 17")),
    "flights that do not meet": denied("book-one-trip", flights=on("HAT003 17", "HAT002 17"), pay=card(400)),
    "back first": denied(
        "book-one-trip", flight_type="round_trip", flights=on("HAT001 18", "HAT002 17"), pay=card(400)
    ),
    "a card of somebody else": denied("book-own-payment-methods", pay=card(200, 9)),
    "two certificates": denied("book-payment-counts", pay=paid("certificate_1 100", "certificate_2 100")),
    "two credit cards": denied("book-payment-counts", pay=paid("credit_card_1 100", "credit_card_2 100")),
    "three gift cards": released("book", pay=paid("gift_card_1 100", "gift_card_2 50", "gift_card_3 50")),
    "four gift cards": denied("book-payment-counts", pay=paid(*(f"gift_card_{n} 50" for n in range(1, 5)))),
    "one dollar short": denied("book-paid-in-full", pay=card(199)),
    "one dollar too much": denied("book-paid-in-full", pay=card(201)),
    "all that a gift card holds": released("book", pay=paid("gift_card_1 120", "credit_card_1 80")),
    "above a gift card": denied("book-paid-in-full", pay=paid("gift_card_1 121", "credit_card_1 79")),
    "a gift card named twice": denied("book-paid-in-full", pay=paid("gift_card_1 100", "gift_card_1 100")),
    "a bag above the allowance, paid": released("book", total_baggages=3, nonfree_baggages=1, pay=card(250)),
    "a bag above the allowance, free": reviewed("book-waived-bag-fee", total_baggages=3),
    "a bag of the allowance, paid": denied("book-bags-not-overcharged", nonfree_baggages=1, pay=card(250)),
    "a gold member's six bags": released("book", **GOLD, total_baggages=6),
    "a gold member's seventh bag, free": reviewed("book-waived-bag-fee", **GOLD, total_baggages=7),
    "an unknown customer": denied("book-own-payment-methods", user_id="unknown", total_baggages=0),
    "the number of a flight that is none": denied(flights=on("'); -- 17")),
    "a payment below nothing": denied(pay=paid("credit_card_1 300", "gift_card_1 -100")),
}


ECONOMY = "UPDATE reservations SET cabin = 'economy'"
CANCELLED = "UPDATE reservations SET status = 'cancelled'"
FLIGHTS: dict[str, Any] = {
    "reservation_id": "ECON01", "cabin": "economy", "flights": on("HAT001 19"),
    "payment_id": "credit_card_1",
}  # fmt: skip
CHEAP = "UPDATE fares SET price = 80"
LESS_ON_IT = "UPDATE payment_methods SET amount = 119 WHERE payment_id = 'gift_card_1'"
SAME, VIA = on("HAT001 18"), on("HAT003 17", "HAT004 17")
UNPAID = ("change-own-payment-method", "change-paid-in-full")
CHANGES = {
    "another day": released("change"),
    "an upgrade": released("change", cabin="business", flights=SAME),
    "paid back to a gift card": released("change", of="BUSI01", flights=SAME, payment_id="gift_card_1"),
    "another destination": denied("flights-same-trip", flights=on("HAT003 18")),
    "a round trip made of one way": denied("flights-same-trip", flights=on("HAT001 18", "HAT002 19")),
    "one way made of a round trip": denied("flights-same-trip", of="ROUND1", flights=SAME),
    "a round trip on other days": released("change", of="ROUND1", flights=on("HAT001 18", "HAT002 20")),
    "a flight that was flown": denied("flights-available", flights=on("HAT001 14")),
    "no seats left": denied("flights-available", setup=FULL),
    "no seats left on the flight that is kept": released("change", setup=FULL, flights=SAME),
    "a certificate": denied("change-own-payment-method", payment_id="certificate_1"),
    "a card of somebody else": denied(*UNPAID, payment_id="credit_card_9"),
    "a gift card that suffices": released("change", flights=VIA, payment_id="gift_card_1", setup=CHEAP),
    "a gift card that holds one dollar less": denied(
        "change-paid-in-full", flights=VIA, payment_id="gift_card_1", setup=f"{CHEAP}; {LESS_ON_IT}"
    ),
    "basic economy to economy on the same flights": released("change", of="BASIC1", flights=SAME),
    "other flights in basic economy": denied("flights-not-basic-economy", of="BASIC1", cabin="basic_economy"),
    "others, upgraded": reviewed("flights-upgraded-in-the-same-call", of="BASIC1"),
    "an unknown reservation": denied(
        "change-standing-reservation", "flights-same-trip", *UNPAID, of="UNKNOWN"
    ),
    "flown": reviewed("flights-already-flown", of="FLOWN1", cabin="business", flights=on("HAT001 18")),
}


BAGS: dict[str, Any] = {
    "reservation_id": "INSUR1", "total_baggages": 3, "nonfree_baggages": 1,
    "payment_id": "credit_card_1",
}  # fmt: skip
BAGGAGES = {
    "a third bag, paid": released("change"),
    "a third bag, free": reviewed("bags-waived-fee", nonfree_baggages=0),
    "a third bag, paid twice": denied("bags-not-overcharged", nonfree_baggages=2),
    "as many bags as before": released("change", total_baggages=2, nonfree_baggages=0),
    "a bag less": denied("bags-only-added", total_baggages=1, nonfree_baggages=0),
    "paid before the upgrade": released(
        "change", of="BASIC1", total_baggages=3, nonfree_baggages=2, setup=ECONOMY
    ),
    "a certificate": denied("change-own-payment-method", payment_id="certificate_1"),
    "a reservation that was cancelled": denied("change-standing-reservation", setup=CANCELLED),
}


PASSENGERS = {
    "as many passengers": released("change"),
    "one passenger more": denied("passengers-same-number", passengers=[ANA, BO, ANA]),
    "an unknown reservation": denied("change-standing-reservation", "passengers-same-number", of="UNKNOWN"),
}


CANCELLATIONS = {
    "business": released("change", of="BUSI01"),
    "a second within 24 hours of booking": released("change", of="FRESH1"),
    "exactly 24 hours after booking": reviewed("cancel-outside-the-rules", of="DAYOLD"),
    "the airline cancelled a flight": released("change", of="CANCEL"),
    "insured": reviewed("cancel-insured-reason", of="INSUR1"),
    "no ground": reviewed("cancel-outside-the-rules"),
    "business, flown": reviewed("cancel-flown", of="FLOWN1"),
    "business, in the air": reviewed("cancel-flown", of="FLYING"),
    "no ground, and flown": reviewed("cancel-flown", "cancel-outside-the-rules", of="FLOWN1", setup=ECONOMY),
    "an unknown reservation": denied("change-standing-reservation", of="UNKNOWN"),
}


CHANGED = "UPDATE reservations SET changed_at = created_at WHERE reservation_id = "
SENT = "INSERT INTO payment_methods VALUES ('gold_1', 'certificate_9', 'certificate', 100, '2024-05-15')"
LANDED = "UPDATE flight_days SET status = 'landed', arrival = '2024-05-16T{}' WHERE status = 'delayed'"
POOR = "UPDATE customers SET membership = 'regular'"
GESTURES = {
    "a hundred for each passenger of a cancelled flight": released("gesture"),
    "fifty, before the change": reviewed("gesture-before-the-change", amount=50),
    "fifty, after the change": released("gesture", amount=50, setup=f"{CHANGED}'DELAY1'"),
    "another amount": denied("gesture-owed", amount=150),
    "a regular member in economy": denied("gesture-owed", setup=POOR),
    "a regular member, insured": released(
        "gesture", setup=f"{POOR}; UPDATE reservations SET insurance = 'yes'"
    ),
    "nothing went wrong": denied("gesture-owed", user_id="regular_1"),
    "a second certificate": reviewed("gesture-again", setup=SENT),
    "arrived on time": denied("gesture-owed", amount=50, setup=LANDED.format("12:00:00")),
    "a minute late": reviewed("gesture-before-the-change", amount=50, setup=LANDED.format("12:01:00")),
}

TOOLS: dict[str, tuple[dict[str, Any], dict[str, Case]]] = {
    "book_reservation": (BOOKING, BOOKINGS),
    "update_reservation_flights": (FLIGHTS, CHANGES),
    "update_reservation_baggages": (BAGS, BAGGAGES),
    "update_reservation_passengers": ({"reservation_id": "ECON01", "passengers": [BO, ANA]}, PASSENGERS),
    "cancel_reservation": ({"reservation_id": "ECON01"}, CANCELLATIONS),
    "send_certificate": ({"user_id": "gold_1", "amount": 200}, GESTURES),
}
ROWS = [(tool, name) for tool, (_, cases) in TOOLS.items() for name in cases]


@pytest.mark.parametrize(("tool", "name"), ROWS, ids=[f"{tool}: {name}" for tool, name in ROWS])
async def test_the_rule_book_decides(bundle: Bundle, airline: AirlineDatabase, tool: str, name: str) -> None:
    args, cases = TOOLS[tool]
    outcome, policies, change, setup = cases[name]
    with unit_of_work(airline.path) as db:
        for statement in filter(None, setup.split("; ")):
            db.execute(statement)

    decision = await ask(bundle, tool, args | change)

    assert (decision.outcome, determining(decision)) == (outcome, policies)


async def test_no_role_and_no_database_are_denied(bundle: Bundle, airline: AirlineDatabase) -> None:
    for tool, (args, _) in TOOLS.items():
        assert (await ask(bundle, tool, args, AgentPrincipal("stranger"))).code == "no_permit"
    airline.path.unlink()
    for tool, (args, _) in TOOLS.items():
        assert (await ask(bundle, tool, args)).code == "facts_unavailable"


async def test_each_policy_decides_some_case(bundle: Bundle) -> None:
    (gate,) = (await ask(bundle, "cancel_reservation", {"reservation_id": "ECON01"})).gates
    assert (gate.groups, gate.quorum, gate.reason) == (frozenset({"duty-managers"}), 2, True)
    denial = await ask(bundle, "send_certificate", {"user_id": "regular_1", "amount": 100})
    assert "Silver or gold member" in denial.reasons[0].text
    invented = {"reservation_id": "ECON01", "cabin": "business", "insured": True}
    assert (await ask(bundle, "cancel_reservation", invented)).code == "invalid_args"
    decided = {
        policy for _, cases in TOOLS.values() for _, policies, *_ in cases.values() for policy in policies
    }
    assert set(bundle.policies) == decided


async def test_an_upgrade_has_the_rules_of_the_new_cabin(bundle: Bundle, airline: AirlineDatabase) -> None:
    with unit_of_work(airline.path) as db:
        operations.change_flights(db, "BASIC1", "business", SAME, "credit_card_1")

    cancelled = await ask(bundle, "cancel_reservation", {"reservation_id": "BASIC1"})
    moved = await ask(bundle, "update_reservation_flights", FLIGHTS | {"reservation_id": "BASIC1"})

    assert cancelled.outcome is Verdict.RELEASE
    assert moved.outcome is Verdict.RELEASE
