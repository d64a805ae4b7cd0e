"""Deciding in Slack, from the message to the spent release, against the third-party Slack."""

from __future__ import annotations

import pytest

from tests.integration.slack.conftest import APPROVALS, Office, until, words

pytestmark = pytest.mark.anyio


async def test_a_payment_is_asked_about_and_approved_by_a_press(office: Office) -> None:
    dana = await office.link("maya")
    view = await office.pay(500, "a")
    card = await office.card()
    assert "acct-1" in words(card)

    await office.slack.click(APPROVALS, card["ts"], dana, "approve")

    async def released() -> bool | None:
        return await office.state(view) == "released" or None

    await until(released)
    shown = await office.shows("Approved and released")
    assert "Approve " not in words(shown)
