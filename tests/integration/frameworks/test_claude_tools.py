"""The Claude Agent SDK's own ways: permissions are given once, a failing hook blocks, other tools are left alone."""

from __future__ import annotations

import pytest

from tests.integration.frameworks.conftest import Shop

pytestmark = pytest.mark.long
CALL = {"order_id": "o-1", "amount_cents": 4_200, "currency": "USD"}


@pytest.fixture
def framework() -> str:
    return "claude_tools:hook"


def test_an_equal_call_is_allowed_once_in_a_run_and_over_a_restart(shop: Shop) -> None:
    first = shop.run("start", 1, calls=[CALL, CALL])
    again = shop.run("start", 4_200)
    assert first["heard"][0] == "refunded 4200 for o-1"
    assert ["not allowed again" in one for one in (first["heard"][1], again["heard"][0])] == [True, True]
    assert shop.paid == [4_200]


def test_each_repetition_that_the_tool_permits_is_decided_anew(shop: Shop) -> None:
    done = shop.run("start", 1, calls=[CALL, CALL], repeat=True)
    assert done["heard"] == ["refunded 4200 for o-1"] * 2
    large = CALL | {"amount_cents": 90_000}
    waits = shop.run("start", 1, calls=[large], repeat=True)
    shop.approve(waits)
    second = shop.run("start", 1, calls=[large, large], repeat=True)
    assert second["heard"][0] == "refunded 90000 for o-1" and second["heard"][1].startswith("not done yet")
    assert shop.review(second) != shop.review(waits)
    assert shop.paid == [4_200, 4_200, 90_000]


def test_two_calls_of_one_message_are_permitted_each_on_its_own(shop: Shop) -> None:
    waits = shop.run("start", 4_200, 90_000)
    assert waits["heard"][0] == "refunded 4200 for o-1" and waits["heard"][1].startswith("not done yet")
    assert shop.paid == [4_200]


def test_a_call_with_an_unknown_argument_is_denied(shop: Shop) -> None:
    done = shop.run("start", 1, calls=[CALL | {"run_in_background": True}])
    assert "run_in_background" in done["heard"][0] and shop.paid == []


def test_an_unavailable_service_denies_and_a_tool_without_a_gate_is_left_alone(shop: Shop) -> None:
    shop.environment["COUNTERSIGN_URL"] = "http://127.0.0.1:9"
    assert "the operator of this agent has to look" in shop.run("start", 4_200)["heard"][0]
    assert shop.paid == []
    assert shop.run("start", 4_200, tool="mcp__shop__other")["heard"] == ["refunded 4200 for o-1"]


def test_a_program_that_ignores_failing_hooks_is_not_connected_to(shop: Shop) -> None:
    order = {"step": "start", "key": shop.key, "calls": [CALL], "gate": "hook", "honors_failures": False}
    ended = shop.process(order)
    assert ended.returncode == 1 and "on_failure" in ended.stderr and shop.paid == []


@pytest.mark.parametrize("framework", ["claude_tools:server"])
def test_the_server_answers_an_invalid_call_and_an_unavailable_service(shop: Shop) -> None:
    invalid = shop.run("start", 1, calls=[{"order_id": "o-1"}])
    assert "amount_cents" in invalid["heard"][0]
    shop.environment["COUNTERSIGN_URL"] = "http://127.0.0.1:9"
    assert "the operator of this agent has to look" in shop.run("start", 4_200)["heard"][0]
    assert shop.paid == []
