"""Every framework keeps the same promises: a released call fires once, and only the service releases it."""

from __future__ import annotations

import pytest

from tests.integration.frameworks.conftest import Shop

pytestmark = pytest.mark.long

FRAMEWORKS = (
    "langgraph",
    "openai_agents",
    "pydantic_ai",
    "crewai",
    "claude_tools:server",
    "claude_tools:hook",
)


# A permission is given once, and what another program did with it is not recorded.
FINDING_RESULTS = pytest.mark.parametrize(
    "framework", [one for one in FRAMEWORKS if one != "claude_tools:hook"]
)


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_released_call_fires_once_and_the_model_reads_its_result(shop: Shop) -> None:
    done = shop.run("start", 4_200)
    assert (done["heard"], done["said"], done["pending"]) == (["refunded 4200 for o-1"], "Done.", [])
    assert shop.paid == [4_200]


def test_the_model_reads_why_a_call_was_denied_and_nothing_fires(shop: Shop) -> None:
    done = shop.run("start", 600_000)
    (heard,) = done["heard"]
    assert "Refunds above 5,000.00 are not made here." in heard and "never-huge" in heard
    assert (shop.paid, done["pending"]) == ([], [])


def test_a_reviewed_call_fires_once_after_a_restart_of_the_agent(shop: Shop) -> None:
    waits = shop.run("start", 90_000)
    assert waits["pending"][0]["state"] == "pending"
    shop.approve(waits)
    done = shop.run("resume", 90_000)
    assert (done["heard"][-1:], done["said"], shop.paid) == (["refunded 90000 for o-1"], "Done.", [90_000])


def test_what_the_framework_resumes_with_approves_nothing(shop: Shop) -> None:
    waits = shop.run("start", 90_000)
    for answer in ("approved", {"state": "released", "approved": True}):
        again = shop.run("resume", 90_000, answer=answer)
        assert shop.review(again) == shop.review(waits)
    assert shop.paid == []
    shop.approve(waits)
    assert (shop.run("resume", 90_000, answer="denied")["said"], shop.paid) == ("Done.", [90_000])


def test_the_model_reads_why_a_person_denied_a_reviewed_call(shop: Shop) -> None:
    waits = shop.run("start", 90_000)
    shop.people["maya"].deny(shop.review(waits), "the parcel did arrive")
    done = shop.run("resume", 90_000)
    assert "the parcel did arrive" in done["heard"][-1] and "denied" in done["heard"][-1]
    assert shop.paid == []


def test_an_edit_of_the_reviewer_fires_once_and_the_model_reads_it(shop: Shop) -> None:
    waits = shop.run("start", 90_000, accept_edits=True)
    less = {"amount_cents": "60000"}
    shop.people["maya"].propose(shop.review(waits), less, "half of it was delivered")
    again = shop.run("resume", 90_000, accept_edits=True)
    shop.approve(again, by="tomas")
    done = shop.run("resume", 90_000, accept_edits=True)
    assert "a reviewer changed" in done["heard"][-1] and '{"amount_cents":60000}' in done["heard"][-1]
    assert shop.paid == [60_000]


@FINDING_RESULTS
def test_a_call_that_fired_before_the_agent_died_is_not_repeated(shop: Shop) -> None:
    """The agent starts again from nothing, and its model makes the same call with the same id."""
    shop.run("start", 4_200)
    again = shop.run("start", 4_200)
    assert (again["heard"][-1:], shop.paid) == (["refunded 4200 for o-1"], [4_200])


@FINDING_RESULTS
def test_two_calls_of_one_message_are_decided_each_on_its_own(shop: Shop) -> None:
    waits = shop.run("start", 4_200, 90_000)
    assert shop.paid == [4_200]
    shop.approve(waits)
    done = shop.run("resume", 4_200, 90_000)
    assert sorted(done["heard"][-2:]) == ["refunded 4200 for o-1", "refunded 90000 for o-2"]
    assert shop.paid == [4_200, 90_000]
