"""Deciding in Slack, from the message to the spent release, against the third-party Slack."""

from __future__ import annotations

import pytest

from tests.integration.slack.attacking import Attacker, value_of
from tests.integration.slack.office import APPROVALS, Office, until, words

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


async def test_an_approval_that_is_repeated_is_told_as_recorded_already(office: Office) -> None:
    attacker = Attacker(office)
    dana, felix = await office.link("maya"), await office.link("tomas")
    await office.pay(5_000, "two people")
    card = await office.card()
    assert (await attacker.deliver(attacker.press(dana, card))).status == 200
    assert await attacker.answers() == []
    assert (await attacker.deliver(attacker.press(dana, card))).status == 200
    await office.told(dana, "Your approval is recorded already, and it waits for others.")
    form = attacker.form(dana, "approve", value_of(card), "because")
    assert "recorded already" in (await attacker.deliver(form)).json["errors"]["reason"]
    assert (await attacker.deliver(attacker.press(felix, card))).status == 200
    assert (await attacker.deliver(attacker.press(dana, card))).status == 200
    await office.told(dana, "Your approval is recorded already, and it was approved.")
    assert [vote for vote in await attacker.votes() if not vote[2]] == [
        ("maya", "approve", False),
        ("tomas", "approve", False),
    ]


async def test_a_reason_longer_than_any_channel_takes_is_refused(office: Office) -> None:
    attacker = Attacker(office)
    dana = await office.link("maya")
    await office.pay(5_000, "two people")
    value = value_of(await office.card())
    for kind in ("approve", "deny", "ask"):
        refused = (await attacker.deliver(attacker.form(dana, kind, value, "x" * 4_001))).json
        assert "4,000 characters at most" in refused["errors"]["reason"], kind
    assert await attacker.nothing_said()
    for kind in ("ask", "approve", "deny"):
        assert (await attacker.deliver(attacker.form(dana, kind, value, "x" * 4_000))).body == b"", kind
    assert await attacker.votes() == [("maya", "approve", False), ("maya", "deny", False)]
