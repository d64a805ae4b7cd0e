"""Pydantic AI's own ways: other arguments in an approval."""

from __future__ import annotations

import pytest

from tests.integration.frameworks.conftest import Shop

pytestmark = pytest.mark.long


@pytest.fixture
def framework() -> str:
    return "pydantic_ai"


def test_an_approval_with_other_arguments_is_another_request(shop: Shop) -> None:
    waits = shop.run("start", 90_000)
    shop.approve(waits)
    again = shop.run("resume", 90_000, override={"order_id": "o-1", "amount_cents": 95_000})
    assert shop.review(again) != shop.review(waits)
    assert shop.paid == []


def test_a_refused_call_is_marked_as_failed(shop: Shop) -> None:
    shop.run("start", 600_000)
    assert '"outcome":"failed"' in (shop.folder / "messages.json").read_text()
