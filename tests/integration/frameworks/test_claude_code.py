"""Both gates with the real Claude Code, which the package carries; its model is a script on loopback."""

from __future__ import annotations

import pytest

from tests.integration.frameworks.conftest import Shop

pytestmark = pytest.mark.long


@pytest.fixture(params=["claude_code:server", "claude_code:hook"])
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_calls_are_released_and_denied_and_the_model_reads_it(shop: Shop) -> None:
    done = shop.run("start", 4_200, 600_000)
    assert (done["heard"][0], done["said"]) == ("refunded 4200 for o-1", "Done.")
    assert "Refunds above 5,000.00 are not made here." in done["heard"][1]
    assert shop.paid == [4_200]


def test_a_reviewed_call_fires_once_in_another_run_of_the_agent(shop: Shop) -> None:
    waits = shop.run("start", 90_000)
    assert "not done yet: refund waits for finance" in waits["heard"][0]
    assert shop.review(shop.run("start", 90_000)) == shop.review(waits)
    shop.approve(waits)
    assert shop.run("start", 90_000)["heard"] == ["refunded 90000 for o-1"]
    shop.run("start", 90_000)
    assert shop.paid == [90_000]


def test_an_edit_of_the_reviewer_is_what_happens(shop: Shop) -> None:
    waits = shop.run("start", 90_000, accept_edits=True)
    shop.people["maya"].propose(shop.review(waits), {"amount_cents": "60000"}, "half of it was delivered")
    shop.approve(shop.run("start", 90_000, accept_edits=True), by="tomas")
    done = shop.run("start", 90_000, accept_edits=True)
    assert "a reviewer changed" in done["whole"] and shop.paid == [60_000]
