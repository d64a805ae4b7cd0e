"""CrewAI's own ways: the failures in a task's output, a crew in an event loop, and calls without lasting ids."""

from __future__ import annotations

import pytest

from tests.integration.frameworks.conftest import Shop

pytestmark = pytest.mark.long


@pytest.fixture
def framework() -> str:
    return "crewai"


def test_the_model_reads_that_a_call_waits_and_the_program_finds_the_review(shop: Shop) -> None:
    waits = shop.run("start", 90_000, 600_000, 4_200)
    assert waits["heard"][0].startswith("not done yet: refund waits for finance until ")
    assert "do not try other arguments" in waits["heard"][0]
    assert (sorted(waits["codes"]), waits["said"]) == (["not_done", "review_pending"], "Done.")
    assert (shop.paid, shop.review(waits)) == ([4_200], waits["pending"][0]["reviews"][0]["url"])


def test_a_default_that_the_model_gives_later_is_the_same_call(shop: Shop) -> None:
    waits = shop.run("start", 90_000)
    calls = [{"currency": "USD", "amount_cents": 90_000, "order_id": "o-1"}]
    again = shop.run("start", 90_000, calls=calls)
    assert shop.review(again) == shop.review(waits)
    shop.approve(waits)
    for given in (calls, [{"order_id": "o-1", "amount_cents": 90_000}]):
        assert shop.run("start", 1, calls=given)["heard"] == ["refunded 90000 for o-1"]
    assert shop.paid == [90_000]


def test_an_invalid_call_is_answered_by_the_gated_tool(shop: Shop) -> None:
    done = shop.run("start", 1, calls=[{"order_id": "o-1", "amount_cents": "many"}, {"order_id": "o-1"}])
    assert ["amount_cents" in one for one in done["heard"]] == [True, True]
    assert (done["codes"], shop.paid) == (["not_done", "not_done"], [])


def test_a_crew_in_an_event_loop_fires_once(shop: Shop) -> None:
    done = shop.run("start", 4_200, **{"async": True})
    assert (done["heard"], shop.paid) == (["refunded 4200 for o-1"], [4_200])


def test_an_error_that_no_model_can_handle_reaches_log_and_output(shop: Shop) -> None:
    shop.environment["COUNTERSIGN_URL"] = "http://127.0.0.1:9"
    shop.environment["COUNTERSIGN_JOURNAL"] = str(shop.folder / "other.db")
    done = shop.run("start", 4_200)
    assert done["codes"] == ["service_unavailable"]
    assert "the operator of this agent has to look" in done["heard"][0]
    assert shop.paid == []
