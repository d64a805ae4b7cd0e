"""Messages that are gone, and messages Slack refuses for what they say."""

from __future__ import annotations

import pytest

from policy_service.workflow.slack.sending import LATE_FAILURES
from tests.fakes.slack_faults import CutAfter, Fault, NotOk
from tests.integration.slack.office import POST, UPDATE, Office

pytestmark = pytest.mark.anyio

GONE, REFUSED = NotOk("message_not_found"), NotOk("invalid_blocks")


async def denied_after(office: Office, *faults: Fault) -> list[str]:
    """The cards once one is denied whose updates fail so."""
    maya = await office.world.person("maya")
    view = await office.pay()
    await office.quiet()
    office.faults.on.next(UPDATE, *faults)
    await maya.vote(view, "deny", reason="no")
    await office.quiet()
    return await office.cards()


async def test_a_message_somebody_deleted_is_posted_anew_once(office: Office) -> None:
    cards = await denied_after(office, GONE)
    assert ["Denied" in card for card in cards] == [False, True], "this Slack deletes nothing by itself"


async def test_a_message_that_is_gone_again_and_again_is_not_posted_for_ever(office: Office) -> None:
    cards = await denied_after(office, *[GONE] * 20)
    assert (await office.standing()).waiting == 0
    assert len(cards) <= 3
    office.faults.on.lift()


async def test_a_thread_that_is_gone_has_its_card_posted_anew_and_loses_no_line(office: Office) -> None:
    maya = await office.world.person("maya")
    view = await office.pay()
    await office.quiet()
    office.faults.on.next(POST, NotOk("thread_not_found"))
    for text in ("one", "two"):
        await office.comment(maya, view, text)
        await office.quiet()
    assert len(await office.cards()) == 2
    (line,) = await office.thread()
    assert line.endswith("two"), "the new card is newer than the first comment, which the page has"


@pytest.mark.parametrize("error", ["invalid_blocks", "msg_too_long"])
async def test_blocks_that_are_refused_leave_a_bare_card_that_leads_to_the_page(
    office: Office, error: str
) -> None:
    office.faults.on.next(POST, NotOk(error))
    office.faults.on.next(UPDATE, NotOk(error))
    view, card = await office.asked(quiet=True)
    assert office.faults.on.left() == 0, "what is drawn anew is tried in full, and is bare again"
    assert "'approve'" not in str(card["blocks"])
    assert view["effects"][0]["review"]["review_id"] in str(card["blocks"])
    assert (await office.standing()).dead == 0


async def test_what_is_refused_altogether_is_said_for_a_day_holds_up_nothing_and_is_looked_for_first(
    office: Office,
) -> None:
    """One of its attempts may have arrived, for all that anybody knows weeks later."""
    office.faults.on.next(POST, *[REFUSED] * 4)
    await office.pay()
    await office.quiet()
    await office.pay(501, "b", "acct-2")
    await office.quiet()
    (card,) = await office.cards()
    assert "acct-2" in card
    assert "set aside" in await office.finding()
    assert (await office.standing()).failures < LATE_FAILURES
    office.world.clock.pass_(hours=23)
    assert await office.finding() != ""
    office.world.clock.pass_(hours=2)
    assert await office.finding() == ""
    assert office.calls("conversations.history") == []
    assert await office.retried() == 2
    await office.quiet()
    assert len(await office.cards()) == 2
    assert office.calls("conversations.history") != []


async def test_a_card_found_again_and_then_refused_is_not_posted_again(office: Office) -> None:
    """It was posted, nobody heard so, and Slack refuses what is to be shown now: it stands there all the same."""
    maya = await office.world.person("maya")
    office.faults.on.next(POST, CutAfter())
    office.faults.on.next(UPDATE, REFUSED, REFUSED)
    view = await office.pay()
    await office.quiet()
    assert office.faults.on.left() == 0
    await maya.vote(view, "deny", reason="no")
    await office.quiet()
    (card,) = await office.cards()
    assert "Denied" in card
