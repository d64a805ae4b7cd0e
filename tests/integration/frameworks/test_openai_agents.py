"""The OpenAI Agents SDK's own ways: approvals in the state of a run, and arguments that are no JSON."""

from __future__ import annotations

import json

import pytest

from tests.integration.frameworks.conftest import Shop

pytestmark = pytest.mark.long


@pytest.fixture
def framework() -> str:
    return "openai_agents"


def test_an_approval_in_the_state_fires_nothing_and_raises(shop: Shop) -> None:
    waits = shop.run("start", 90_000)
    ended = shop.process({"step": "resume", "key": shop.key, "calls": [], "blindly": True})
    assert ended.returncode == 1 and "not done yet: refund waits for finance" in ended.stderr
    assert shop.paid == []
    shop.approve(waits)  # the kept state still works
    assert (shop.run("resume", 90_000)["heard"], shop.paid) == (["refunded 90000 for o-1"], [90_000])


@pytest.mark.parametrize("raw", ["{", "[]", '{"order_id": NaN, "amount_cents": 1}'])
def test_the_model_reads_that_its_arguments_are_no_json(shop: Shop, raw: str) -> None:
    shop.run("start", 4_200, raw=raw)
    done = shop.run("resume", 4_200)
    (heard,) = done["heard"]
    assert heard.startswith("not done: the arguments") and shop.paid == []


def test_a_name_that_is_given_twice_is_read_alike_at_every_step(shop: Shop) -> None:
    raw = json.dumps({"order_id": "o-1", "amount_cents": 4_200})
    twice = raw.replace("}", ', "amount_cents": 100}')
    assert (shop.run("start", 1, raw=twice)["heard"], shop.paid) == (["refunded 100 for o-1"], [100])
