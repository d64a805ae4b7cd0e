"""Presses that come twice, late, swapped, by two ways, or whose answer is lost: each decision exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from policy_service.storage.core import find
from policy_service.storage.tables import VoteRow
from tests.counterparts.slack import SlackServer
from tests.fakes.payments import Payments
from tests.fakes.slack_deliveries import BothWays, Held, Manner, Twice, Unheard
from tests.fakes.slack_faults import SlackFaults
from tests.integration.slack.office import APPROVALS, Office, opened, until, words
from tests.unit.storage.databases import BOTH

pytestmark = pytest.mark.anyio

REASON = {"reason": {"text": "not this one"}}


@pytest.fixture
async def both_ways(
    tmp_path: Path,
    slack_and_faults: tuple[SlackServer, SlackFaults],
    bundle: Payments,
    database: dict[str, str],
) -> AsyncIterator[Office]:
    """A service that listens by HTTP and by Socket Mode."""
    slack, faults = slack_and_faults
    async with opened(tmp_path, slack, faults, bundle.path, ways=("signing", "app"), **database) as started:

        async def connected() -> bool | None:
            return await slack.is_connected() or None

        await until(connected)
        yield started


async def votes(office: Office) -> list[tuple[str, str]]:
    """Every vote there is: by whom, and what."""
    rows = await office.world.service.db.read(lambda conn: find(conn, VoteRow))
    return [(row.sub, row.verdict) for row in rows]


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
    assert len(await votes(office)) == 1


@pytest.mark.parametrize("manner", [Twice(), Twice(together=True), Unheard()], ids=str)
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


async def test_a_press_whose_answer_was_lost_may_be_pressed_again(office: Office) -> None:
    """The second is another press of the same person: they are told that it is decided, and nothing changes."""
    dana = await office.link("maya")
    view = await office.pay(500, "a")
    card = await office.card()
    pressed = next(
        one
        for block in card["blocks"]
        for one in block.get("elements", [])
        if one.get("action_id") == "approve"
    )
    action = {
        "type": "button",
        **{key: pressed[key] for key in ("action_id", "value", "text")},
        "block_id": "b",
    }
    office.faults.deliveries.how.next("interactive", Unheard())
    await office.slack.click(APPROVALS, card["ts"], dana, action)
    await office.slack.click(APPROVALS, card["ts"], dana, action)
    await decided(office, view, "released")


async def test_one_press_by_http_and_by_socket_decides_once(both_ways: Office) -> None:
    office = both_ways
    dana = await office.link("maya")
    view = await office.pay(500, "a")
    card = await office.card()
    office.faults.deliveries.how.next("interactive", BothWays())
    await office.slack.click(APPROVALS, card["ts"], dana, "approve")
    await decided(office, view, "released")


async def test_a_replay_days_later_decides_nothing(office: Office) -> None:
    dana = await office.link("maya")
    view = await office.pay(500, "a")
    card = await office.card()
    await office.slack.click(APPROVALS, card["ts"], dana, "approve")
    await decided(office, view, "released")
    kept = office.faults.deliveries.last("interactive")
    await office.pay(500, "b")
    office.world.clock.pass_(days=8)
    await office.faults.deliveries.send(kept, at=office.faults.clock())
    assert len(await votes(office)) == 1


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
    cast = await votes(office)
    assert len(cast) == len(set(cast)) <= 2
    shown = await office.card()
    assert ("Denied" if swapped else "Approved") in words(shown)


@pytest.mark.parametrize("engine", BOTH)
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
    assert sorted(await votes(office)) == [("maya", "approve"), ("tomas", "approve")]
