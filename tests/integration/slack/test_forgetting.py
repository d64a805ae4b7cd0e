"""What the Slack channel forgets, and when; what it still needs it keeps."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from policy_service.storage import outbox
from policy_service.storage.core import Row
from policy_service.storage.database import Tx
from policy_service.storage.slack_lanes import lane_of
from policy_service.storage.slack_tables import SlackCardRow, SlackDeliveryRow, SlackPlaceRow
from policy_service.workflow.due.sweep import forget_what_is_over
from policy_service.workflow.slack.forgetting import CARDS_KEPT, DELIVERIES_KEPT, forget_slack
from policy_service.workflow.slack.owing import CARD, OFFERED_FOR, want_place
from tests.fakes.slack_faults import CutAfter, CutBefore
from tests.integration.slack.office import APPROVALS, Office, words

pytestmark = pytest.mark.anyio


async def kept(office: Office, row: type[Row], **where: Any) -> int:
    """How many rows there are after a sweep."""
    await forget_what_is_over(office.world.service.ctx)
    return len(await office.find(row, **where))


async def test_a_press_is_remembered_for_a_day_and_a_place_while_it_is_used(office: Office) -> None:
    """Where the only answer to a press was lost, nothing says when the place was last used."""
    _, card = await office.asked()
    office.faults.on.next("chat.postEphemeral", CutAfter())
    await office.slack.click(APPROVALS, card["ts"], "U0SAM", "approve")
    await office.quiet()
    assert office.faults.on.left() == 0
    assert await kept(office, SlackPlaceRow, place="@U0SAM") == 0
    assert await kept(office, SlackPlaceRow, place="#approvals") == 1
    (delivery,) = await office.find(SlackDeliveryRow)
    office.world.clock.stop_at(delivery.at + DELIVERIES_KEPT)
    office.world.clock.pass_(seconds=-1)
    assert await kept(office, SlackDeliveryRow) == 1
    office.world.clock.pass_(seconds=2)
    assert await kept(office, SlackDeliveryRow) == 0


async def test_a_card_is_kept_until_its_review_was_settled_long_ago(office: Office) -> None:
    maya = await office.world.person("maya")
    first, _ = await office.pay(), await office.pay(501, "b", "acct-2")
    await office.quiet()
    assert (await maya.vote(first, "deny", reason="no")).status_code == 200
    await office.quiet()
    office.world.clock.pass_(seconds=CARDS_KEPT.total_seconds() - 60)
    assert await kept(office, SlackCardRow) == 2
    office.world.clock.pass_(seconds=61)
    assert await kept(office, SlackCardRow) == 1, "the other one still waits for an answer"
    assert await kept(office, SlackPlaceRow, place="#approvals") == 1


async def test_a_digest_is_kept_as_long_as_what_it_holds_and_a_place_as_long_as_it_is_used(
    own_office: Office,
) -> None:
    office = own_office
    office.faults.on.always("*", CutBefore())
    for n in range(12):
        await office.pay(500 + n, f"run-{n}", f"acct-{n}")
    await office.tried("conversations.list")
    office.faults.on.lift()
    await office.quiet(step_s=20)
    assert await kept(office, SlackCardRow, kind="digest") == 1
    office.world.clock.pass_(days=2)
    await office.world.sweep()
    await office.quiet(step_s=20)
    office.world.clock.pass_(seconds=CARDS_KEPT.total_seconds() + 3_600)
    assert await kept(office, SlackCardRow) == 0
    assert await kept(office, SlackPlaceRow) == 0
    await office.pay(900, "later", "acct-later")
    await office.quiet()
    assert "acct-later" in words(await office.card())


@pytest.mark.parametrize("first", ["wanted", "forgotten"])
async def test_a_place_that_is_wanted_while_it_is_forgotten_is_there(office: Office, first: str) -> None:
    """Whichever of the two units looks first: the other one looks before that one has committed."""
    place, db = "#long-ago", office.world.service.db

    def want(tx: Tx) -> None:
        want_place(tx, place)
        until = tx.now + OFFERED_FOR
        outbox.put_once(tx, "slk_new", CARD, {"card_id": "none"}, lane=lane_of(place), give_up_at=until)
        time.sleep(0.2 if first == "wanted" else 0)

    def forget(tx: Tx) -> None:
        forget_slack(tx)
        time.sleep(0.2 if first == "forgotten" else 0)

    await db.write(lambda tx: want_place(tx, place))
    units = [want, forget] if first == "wanted" else [forget, want]
    began = asyncio.create_task(db.write(units[0]))
    await asyncio.sleep(0.1)
    await asyncio.gather(began, db.write(units[1]))
    assert len(await office.find(SlackPlaceRow, place=place)) == 1
