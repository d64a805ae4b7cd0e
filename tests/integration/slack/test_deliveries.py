"""Presses that come twice, late, swapped, by two ways, or whose answer is lost: each decision exactly once."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.slack_deliveries import Held, Manner, Twice, Unheard
from tests.integration.slack.attacking import value_of
from tests.integration.slack.office import APPROVALS, Office, until, words

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("each_press_is_answered")]

MAYA = ("maya", "approve", False)
TWICE = Twice(together=True)


async def test_a_payment_is_asked_about_and_approved_by_a_press_which_comes_again(office: Office) -> None:
    dana = await office.link("maya")
    manners: list[Manner] = [TWICE, Unheard()]
    for manner in manners:
        view, card = await office.asked(500, str(manner))
        assert "acct-1" in words(card)
        office.faults.deliveries.how.next("interactive", manner)
        await office.slack.click(APPROVALS, card["ts"], dana, "approve")
        await office.becomes(view, "released")
        assert "Approve " not in words(await office.shows("Approved and released"))
        await office.quiet()
        assert [kind for kind, _ in await office.world.log(view["txn"])].count("vote_recorded") == 1
    assert await office.votes() == [MAYA, MAYA]
    assert await office.slack.ephemerals(APPROVALS, dana) == [], "a repeat is no news to anybody"


async def test_a_press_for_a_form_that_comes_twice_at_once_opens_one(office: Office) -> None:
    """The trigger serves once: a second call would fail, and whoever has the form before them would be told so."""
    dana = await office.link("maya")
    _, card = await office.asked()
    for does in ("deny", "ask"):
        office.faults.calls.clear()
        office.faults.deliveries.how.next("interactive", TWICE)
        await office.slack.click(APPROVALS, card["ts"], dana, does)
        await office.quiet()
        assert len(office.calls("views.open")) == 1, does
    assert await office.slack.ephemerals(APPROVALS, dana) == []


@pytest.mark.parametrize("swapped", [False, True])
async def test_an_approval_and_a_denial_that_overtake_each_other_are_counted_as_they_come(
    office: Office, swapped: bool
) -> None:
    """Two people press; whichever arrives first settles it, and the other is told."""
    dana, felix = await office.link("maya"), await office.link("tomas")
    view, card = await office.asked()
    await office.slack.click(APPROVALS, card["ts"], felix, "deny")
    (form,) = await until(office.slack.modals)  # it opens after the press was answered
    office.faults.deliveries.how.next("interactive", Held(), Held())
    await office.slack.click(APPROVALS, card["ts"], dana, "approve")
    (block,) = [one for one in form["blocks"] if one["type"] == "input"]
    said = {block["block_id"]: {block["element"]["action_id"]: "not this one"}}
    await office.slack.submit_view(felix, said)
    held = [one for one in office.faults.deliveries.kept if not one.answers]
    assert len(held) == 2
    for delivery in reversed(held) if swapped else held:
        await office.faults.deliveries.send(delivery, at=office.faults.clock())
    await office.quiet()
    assert await office.state(view) == ("denied" if swapped else "released")
    cast = await office.votes()
    assert len(cast) == len(set(cast)) <= 2
    assert ("Denied" if swapped else "Approved") in words(await office.card())


async def test_many_presses_at_once_are_one_vote_for_each_person(office: Office) -> None:
    dana, felix = await office.link("maya"), await office.link("tomas")
    view, card = await office.asked(5_000)
    office.faults.deliveries.how.next("interactive", *[TWICE] * 4)
    presses = (
        office.slack.click(APPROVALS, card["ts"], who, "approve") for who in (dana, felix, dana, felix)
    )
    await asyncio.gather(*presses)
    await office.becomes(view, "released")
    assert sorted(await office.votes()) == [MAYA, ("tomas", "approve", False)]


async def test_an_approval_that_is_repeated_is_told_as_recorded_already(office: Office) -> None:
    dana, felix = await office.link("maya"), await office.link("tomas")
    _, card = await office.asked(5_000)
    await office.pressed(dana, card)
    assert await office.answers() == []
    await office.pressed(dana, card)
    await office.told(dana, "Your approval is recorded already, and it waits for others.")
    assert "recorded already" in await office.sent(dana, "approve", value_of(card))
    await office.pressed(felix, card)
    await office.pressed(dana, card)
    await office.told(dana, "Your approval is recorded already, and it was approved.")
    assert [vote for vote in await office.votes() if not vote[2]] == [MAYA, ("tomas", "approve", False)]


async def test_a_reason_longer_than_any_channel_takes_is_refused(office: Office) -> None:
    dana = await office.link("maya")
    _, card = await office.asked(5_000)
    for kind in ("approve", "deny", "ask"):
        assert "4,000 characters at most" in await office.sent(dana, kind, value_of(card), "x" * 4_001), kind
    assert await office.nothing_said()
    for kind in ("ask", "approve", "deny"):
        assert await office.sent(dana, kind, value_of(card), "x" * 4_000) == "", kind
    assert await office.votes() == [MAYA, ("maya", "deny", False)]
