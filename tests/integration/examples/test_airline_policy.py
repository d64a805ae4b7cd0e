"""The airline's rule book, rule by rule: the bundle and its queries, asked about a small airline.

Every case is one call on one state of the database, and names the policies that decided it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from countersign.contract import Verdict, canonicalize
from examples.airline import operations
from examples.airline.database import AirlineDatabase, unit_of_work
from policy_service.domain.decision import Decision
from policy_service.domain.question import AgentPrincipal, Question
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
    return decide(bundle.rules, Question(agent, tool, digest, args, facts, NOW))


def determining(decision: Decision) -> set[str]:
    if decision.outcome is Verdict.REVIEW:
        return {gate.policy_id for gate in decision.gates}
    return set(decision.policies)


@dataclass(frozen=True)
class Case:
    """Arguments that differ from those of a call that is released, and what is then decided."""

    outcome: Verdict
    policies: set[str]
    change: dict[str, Any] = field(default_factory=dict)
    setup: str = ""  # SQL run on the airline's database before


def released(*policies: str, setup: str = "", **change: Any) -> Case:
    return Case(Verdict.RELEASE, set(policies), change, setup)


def reviewed(*gates: str, setup: str = "", **change: Any) -> Case:
    return Case(Verdict.REVIEW, set(gates), change, setup)


def denied(*policies: str, setup: str = "", **change: Any) -> Case:
    return Case(Verdict.DENY, set(policies), change, setup)


def paid(*payments: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"payment_id": method, "amount": amount} for method, amount in payments]


def card(amount: int, number: int = 1) -> list[dict[str, Any]]:
    return paid((f"credit_card_{number}", amount))


def on(*legs: tuple[str, int]) -> list[dict[str, str]]:
    return [{"flight_number": number, "date": f"2024-05-{day}"} for number, day in legs]


BOOKING: dict[str, Any] = {
    "user_id": "regular_1",
    "origin": "JFK",
    "destination": "SEA",
    "flight_type": "one_way",
    "cabin": "economy",
    "flights": on(("HAT001", 17)),
    "passengers": [ANA, BO],
    "payment_methods": card(200),
    "total_baggages": 2,
    "nonfree_baggages": 0,
    "insurance": "no",
}
GOLD: dict[str, Any] = {"user_id": "gold_1", "payment_methods": card(200, 9)}
ROOMY = "UPDATE fares SET seats = 9"
UNAVAILABLE = ("book-available-flights", "book-paid-in-full")
BOOKINGS = {
    "a booking that keeps every rule": released("book"),
    "insurance that is not paid": denied("book-paid-in-full", insurance="yes"),
    "there and back": released(
        "book",
        flight_type="round_trip",
        flights=on(("HAT001", 17), ("HAT002", 18)),
        payment_methods=card(400),
    ),
    "five passengers": released("book", setup=ROOMY, passengers=[ANA] * 5, payment_methods=card(500)),
    "six passengers": denied(
        "book-five-passengers", setup=ROOMY, passengers=[ANA] * 6, payment_methods=card(600)
    ),
    "more passengers than seats": denied(*UNAVAILABLE, passengers=[ANA] * 3, payment_methods=card(300)),
    "a flight nobody knows": denied(*UNAVAILABLE, "book-one-trip", flights=on(("HAT999", 17))),
    "flights that do not meet": denied(
        "book-one-trip", flights=on(("HAT003", 17), ("HAT002", 17)), payment_methods=card(400)
    ),
    "back before there": denied(
        "book-one-trip",
        flight_type="round_trip",
        flights=on(("HAT001", 18), ("HAT002", 17)),
        payment_methods=card(400),
    ),
    "a card of somebody else": denied("book-own-payment-methods", payment_methods=card(200, 9)),
    "two certificates": denied(
        "book-payment-counts", payment_methods=paid(("certificate_1", 100), ("certificate_2", 100))
    ),
    "two credit cards": denied(
        "book-payment-counts", payment_methods=paid(("credit_card_1", 100), ("credit_card_2", 100))
    ),
    "three gift cards": released(
        "book", payment_methods=paid(("gift_card_1", 100), ("gift_card_2", 50), ("gift_card_3", 50))
    ),
    "four gift cards": denied(
        "book-payment-counts",
        payment_methods=paid(
            ("gift_card_1", 50), ("gift_card_2", 50), ("gift_card_3", 50), ("gift_card_4", 50)
        ),
    ),
    "one dollar short": denied("book-paid-in-full", payment_methods=card(199)),
    "one dollar too much": denied("book-paid-in-full", payment_methods=card(201)),
    "all that a gift card holds": released(
        "book", payment_methods=paid(("gift_card_1", 120), ("credit_card_1", 80))
    ),
    "more than a gift card holds": denied(
        "book-paid-in-full", payment_methods=paid(("gift_card_1", 121), ("credit_card_1", 79))
    ),
    "a gift card named twice": denied(
        "book-paid-in-full", payment_methods=paid(("gift_card_1", 100), ("gift_card_1", 100))
    ),
    "a bag above the allowance, paid": released(
        "book", total_baggages=3, nonfree_baggages=1, payment_methods=card(250)
    ),
    "a bag above the allowance, free": reviewed("book-waived-bag-fee", total_baggages=3),
    "a bag of the allowance, paid": denied(
        "book-bags-not-overcharged", nonfree_baggages=1, payment_methods=card(250)
    ),
    "a gold member's six bags": released("book", **GOLD, total_baggages=6),
    "a gold member's seventh bag, free": reviewed("book-waived-bag-fee", **GOLD, total_baggages=7),
    "a customer nobody knows": denied("book-own-payment-methods", user_id="nobody", total_baggages=0),
    "the number of a flight that is none": Case(Verdict.DENY, set(), {"flights": on(("'); --", 17))}),
    "a payment below nothing": Case(
        Verdict.DENY, set(), {"payment_methods": paid(("credit_card_1", 300), ("gift_card_1", -100))}
    ),
}


CANCELLED = "UPDATE reservations SET status = 'cancelled'"
FLIGHTS: dict[str, Any] = {
    "reservation_id": "ECON01",
    "cabin": "economy",
    "flights": on(("HAT001", 19)),
    "payment_id": "credit_card_1",
}
SAME = on(("HAT001", 18))
CHANGES = {
    "another day": released("change"),
    "an upgrade": released("change", cabin="business", flights=SAME),
    "a downgrade, paid back to a gift card": released(
        "change", reservation_id="BUSI01", flights=SAME, payment_id="gift_card_1"
    ),
    "another destination": denied("flights-same-trip", flights=on(("HAT003", 18))),
    "a round trip made of one way": denied("flights-same-trip", flights=on(("HAT001", 18), ("HAT002", 19))),
    "one way made of a round trip": denied("flights-same-trip", reservation_id="ROUND1", flights=SAME),
    "a round trip on other days": released(
        "change", reservation_id="ROUND1", flights=on(("HAT001", 18), ("HAT002", 20))
    ),
    "a flight that was flown": denied("flights-available", flights=on(("HAT001", 14))),
    "no seats left": denied("flights-available", setup="UPDATE fares SET seats = 1"),
    "no seats left on the flight that is kept": released(
        "change", setup="UPDATE fares SET seats = 1", flights=SAME
    ),
    "a certificate": denied("change-own-payment-method", payment_id="certificate_1"),
    "a card of somebody else": denied(
        "change-own-payment-method", "change-paid-in-full", payment_id="credit_card_9"
    ),
    "a gift card that holds the difference": released(
        "change",
        flights=on(("HAT003", 17), ("HAT004", 17)),
        payment_id="gift_card_1",
        setup="UPDATE fares SET price = 80",
    ),
    "a gift card that holds one dollar less": denied(
        "change-paid-in-full",
        flights=on(("HAT003", 17), ("HAT004", 17)),
        payment_id="gift_card_1",
        setup="UPDATE fares SET price = 80; UPDATE payment_methods SET amount = 119 WHERE payment_id = 'gift_card_1'",
    ),
    "basic economy to economy on the same flights": released("change", reservation_id="BASIC1", flights=SAME),
    "other flights in basic economy": denied(
        "flights-not-basic-economy", reservation_id="BASIC1", cabin="basic_economy"
    ),
    "other flights and an upgrade from basic economy": reviewed(
        "flights-upgraded-in-the-same-call", reservation_id="BASIC1"
    ),
    "a reservation nobody knows": denied(
        "change-standing-reservation",
        "change-own-payment-method",
        "change-paid-in-full",
        "flights-same-trip",
        reservation_id="NOBODY",
    ),
    "a flown trip moved": reviewed(
        "flights-already-flown", reservation_id="FLOWN1", cabin="business", flights=on(("HAT001", 18))
    ),
}


BAGS: dict[str, Any] = {
    "reservation_id": "INSUR1",
    "total_baggages": 3,
    "nonfree_baggages": 1,
    "payment_id": "credit_card_1",
}
BAGGAGES = {
    "a third bag, paid": released("change"),
    "a third bag, free": reviewed("bags-waived-fee", nonfree_baggages=0),
    "a third bag, paid twice": denied("bags-not-overcharged", nonfree_baggages=2),
    "as many bags as before": released("change", total_baggages=2, nonfree_baggages=0),
    "a bag less": denied("bags-only-added", total_baggages=1, nonfree_baggages=0),
    "a bag paid before stays paid after the upgrade": released(
        "change",
        reservation_id="BASIC1",
        total_baggages=3,
        nonfree_baggages=2,
        setup="UPDATE reservations SET cabin = 'economy' WHERE reservation_id = 'BASIC1'",
    ),
    "a certificate": denied("change-own-payment-method", payment_id="certificate_1"),
    "a reservation that was cancelled": denied("change-standing-reservation", setup=CANCELLED),
}


PASSENGERS = {
    "as many passengers": released("change"),
    "one passenger more": denied("passengers-same-number", passengers=[ANA, BO, ANA]),
    "a reservation nobody knows": denied(
        "change-standing-reservation", "passengers-same-number", reservation_id="NOBODY"
    ),
}


CANCELLATIONS = {
    "business": released("change", reservation_id="BUSI01"),
    "a second within 24 hours of booking": released("change", reservation_id="FRESH1"),
    "exactly 24 hours after booking": reviewed("cancel-outside-the-rules", reservation_id="DAYOLD"),
    "the airline cancelled a flight": released("change", reservation_id="CANCEL"),
    "insured": reviewed("cancel-insured-reason", reservation_id="INSUR1"),
    "no ground": reviewed("cancel-outside-the-rules"),
    "business, flown": reviewed("cancel-flown", reservation_id="FLOWN1"),
    "business, in the air": reviewed("cancel-flown", reservation_id="FLYING"),
    "no ground, and flown": reviewed(
        "cancel-flown",
        "cancel-outside-the-rules",
        reservation_id="FLOWN1",
        setup="UPDATE reservations SET cabin = 'economy'",
    ),
    "a reservation nobody knows": denied("change-standing-reservation", reservation_id="NOBODY"),
}


CHANGED = "UPDATE reservations SET changed_at = created_at WHERE reservation_id = "
SENT = (
    "INSERT INTO payment_methods VALUES ('gold_1', 'certificate_3221322', 'certificate', 100, '2024-05-15')"
)
POOR = "UPDATE customers SET membership = 'regular'"
GESTURES = {
    "a hundred for each passenger of a cancelled flight": released("gesture"),
    "fifty for a delayed flight, before the change": reviewed("gesture-before-the-change", amount=50),
    "fifty for a delayed flight, after the change": released(
        "gesture", amount=50, setup=f"{CHANGED}'DELAY1'"
    ),
    "another amount": denied("gesture-owed", amount=150),
    "a regular member in economy": denied("gesture-owed", setup=POOR),
    "a regular member with insurance": released(
        "gesture", setup=f"{POOR}; UPDATE reservations SET insurance = 'yes'"
    ),
    "nothing went wrong": denied("gesture-owed", user_id="regular_1"),
    "a second certificate": reviewed("gesture-again", setup=SENT),
    "a flight that arrived on time": denied(
        "gesture-owed",
        amount=50,
        setup="UPDATE flight_days SET status = 'landed', arrival = '2024-05-16T12:00:00' WHERE status = 'delayed'",
    ),
    "a flight that arrived a minute late": reviewed(
        "gesture-before-the-change",
        amount=50,
        setup="UPDATE flight_days SET status = 'landed', arrival = '2024-05-16T12:01:00' WHERE status = 'delayed'",
    ),
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
    case = cases[name]
    with unit_of_work(airline.path) as db:
        for statement in filter(None, case.setup.split("; ")):
            db.execute(statement)

    decision = await ask(bundle, tool, args | case.change)

    assert (decision.outcome, determining(decision)) == (case.outcome, case.policies)


async def test_the_agents_word_about_a_reservation_is_not_asked_for(bundle: Bundle) -> None:
    args = {"reservation_id": "ECON01", "cabin": "business", "insured": True}

    decision = await ask(bundle, "cancel_reservation", args)

    assert decision.code == "invalid_args"


async def test_an_agent_in_no_role_may_do_nothing(bundle: Bundle) -> None:
    stranger = AgentPrincipal("stranger")
    for tool, (args, _) in TOOLS.items():
        assert (await ask(bundle, tool, args, stranger)).code == "no_permit"


async def test_without_the_database_everything_is_denied(bundle: Bundle, airline: AirlineDatabase) -> None:
    airline.path.unlink()
    for tool, (args, _) in TOOLS.items():
        assert (await ask(bundle, tool, args)).code == "facts_unavailable"


async def test_a_cancellation_without_a_ground_needs_two_duty_managers(bundle: Bundle) -> None:
    decision = await ask(bundle, "cancel_reservation", {"reservation_id": "ECON01"})

    (gate,) = decision.gates
    assert (gate.groups, gate.quorum, gate.reason) == (frozenset({"duty-managers"}), 2, True)


async def test_a_deny_tells_the_agent_the_rule(bundle: Bundle) -> None:
    decision = await ask(bundle, "send_certificate", {"user_id": "regular_1", "amount": 100})

    assert "Silver or gold member" in decision.reasons[0].text


async def test_an_upgrade_opens_what_the_book_opens_for_the_new_cabin(
    bundle: Bundle, airline: AirlineDatabase
) -> None:
    with unit_of_work(airline.path) as db:
        operations.change_flights(db, "BASIC1", "business", SAME, "credit_card_1")

    cancelled = await ask(bundle, "cancel_reservation", {"reservation_id": "BASIC1"})
    moved = await ask(bundle, "update_reservation_flights", FLIGHTS | {"reservation_id": "BASIC1"})

    assert cancelled.outcome is Verdict.RELEASE
    assert moved.outcome is Verdict.RELEASE


async def test_every_policy_is_noticed_by_some_case(bundle: Bundle) -> None:
    decided = {policy for _, cases in TOOLS.values() for case in cases.values() for policy in case.policies}

    assert set(bundle.policies) == decided
