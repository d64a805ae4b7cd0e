"""LangGraph's own ways: a graph in an event loop, and the JSON of an interrupt."""

from __future__ import annotations

import pytest

from tests.integration.frameworks.conftest import Shop

pytestmark = pytest.mark.long


@pytest.fixture
def framework() -> str:
    return "langgraph"


def test_a_graph_in_an_event_loop_waits_and_goes_on(shop: Shop) -> None:
    waits = shop.run("start", 90_000, 4_200, **{"async": True})
    assert shop.paid == [4_200]
    assert shop.run("resume", 90_000, 4_200, **{"async": True})["pending"] == waits["pending"]
    shop.approve(waits)
    done = shop.run("resume", 90_000, 4_200, **{"async": True})
    assert done["heard"] == ["refunded 90000 for o-1", "refunded 4200 for o-2"]
    assert shop.paid == [4_200, 90_000]


def test_the_interrupt_names_what_is_pending_and_who_decides(shop: Shop) -> None:
    (payload,) = shop.run("start", 90_000)["pending"]
    assert payload["key"] == f"{shop.key}/call_0"
    assert payload["message"].startswith("not done yet: refund waits for finance")
    assert (payload["proposals"], payload["questions"]) == ([], [])
    shop.people["maya"].ask(shop.review({"pending": [payload]}), "was it broken?")
    (asked,) = shop.run("resume", 90_000)["pending"]
    assert "was it broken?" in asked["questions"][0]
