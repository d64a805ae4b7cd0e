"""Presses that come twice, late, swapped, by two ways, or whose answer is lost: each decision exactly once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.counterparts.slack import SlackServer
from tests.fakes.slack_deliveries import Held, Manner, Twice, Unheard
from tests.integration.slack.attacking import Attacker
from tests.integration.slack.office import APPROVALS, Office, until, words

pytestmark = pytest.mark.anyio

REASON = {"reason": {"text": "not this one"}}


async def some_modals(slack: SlackServer) -> list[dict[str, Any]] | None:
    """The open forms, once there is one."""
    return await slack.modals() or None


async def decided(office: Office, view: dict[str, Any], state: str) -> None:
    """Wait until it is, and see that the log tells one vote."""

    async def there() -> bool | None:
        return await office.state(view) == state or None

    await until(there)
    await office.quiet()
    lines = await office.world.log(view["txn"])
    assert [kind for kind, _ in lines].count("vote_recorded") == 1
    assert len(await Attacker(office).votes()) == 1


@pytest.mark.parametrize("manner", [Twice(together=True), Unheard()], ids=str)
async def test_a_press_that_comes_again_decides_once(office: Office, manner: Manner) -> None:
    dana = await office.link("maya")
    view = await office.pay(500, "a")
    card = await office.card()
    office.faults.deliveries.how.next("interactive", manner)
    await office.slack.click(APPROVALS, card["ts"], dana, "approve")
    await decided(office, view, "released")
    assert await office.slack.ephemerals(APPROVALS, dana) == [], "a repeat is no news to anybody"


@pytest.mark.parametrize("does", ["deny", "ask"])
async def test_a_press_for_a_form_that_comes_twice_at_once_opens_one(office: Office, does: str) -> None:
    """The trigger serves once: a second call would fail, and whoever has the form before them would be told so."""
    dana = await office.link("maya")
    await office.pay(500, "a")
    card = await office.card()
    office.faults.deliveries.how.next("interactive", Twice(together=True))
    await office.slack.click(APPROVALS, card["ts"], dana, does)
    await office.quiet()
    assert len([call for call in office.faults.calls if call.method == "views.open"]) == 1
    assert await office.slack.ephemerals(APPROVALS, dana) == []


@pytest.mark.parametrize("swapped", [False, True], ids=["as they were pressed", "swapped"])
async def test_an_approval_and_a_denial_that_overtake_each_other_are_counted_as_they_come(
    office: Office, swapped: bool
) -> None:
    """Two people press; whichever arrives first settles it, and the other is told."""
    dana, felix = await office.link("maya"), await office.link("tomas")
    view = await office.pay(500, "a")
    card = await office.card()
    await office.slack.click(APPROVALS, card["ts"], felix, "deny")
    (form,) = await until(lambda: some_modals(office.slack))  # it opens after the press was answered
    office.faults.deliveries.how.next("interactive", Held(), Held())
    await office.slack.click(APPROVALS, card["ts"], dana, "approve")
    (block,) = [one for one in form["blocks"] if one["type"] == "input"]
    await office.slack.submit_view(
        felix, {block["block_id"]: {block["element"]["action_id"]: "not this one"}}
    )
    held = [one for one in office.faults.deliveries.kept if not one.answers]
    assert len(held) == 2
    for delivery in reversed(held) if swapped else held:
        await office.faults.deliveries.send(delivery, at=office.faults.clock())
    await office.quiet()
    assert await office.state(view) == ("denied" if swapped else "released")
    cast = await Attacker(office).votes()
    assert len(cast) == len(set(cast)) <= 2
    shown = await office.card()
    assert ("Denied" if swapped else "Approved") in words(shown)


async def test_many_presses_at_once_are_one_vote_for_each_person(office: Office) -> None:
    dana, felix = await office.link("maya"), await office.link("tomas")
    view = await office.pay(5_000, "a")
    card = await office.card()
    office.faults.deliveries.how.next("interactive", *[Twice(together=True)] * 4)
    await asyncio.gather(
        *(office.slack.click(APPROVALS, card["ts"], who, "approve") for who in (dana, felix, dana, felix))
    )

    async def released() -> bool | None:
        return await office.state(view) == "released" or None

    await until(released)
    assert sorted(await Attacker(office).votes()) == [("maya", "approve", False), ("tomas", "approve", False)]
