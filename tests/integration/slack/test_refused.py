"""Messages that are gone, and messages Slack refuses for what they say."""

from __future__ import annotations

import pytest

from policy_service.workflow.slack.sending import LATE_FAILURES
from tests.fakes.slack_faults import CutAfter, NotOk
from tests.integration.slack.office import APPROVALS, Office, words
from tests.integration.slack.test_outage import finding

pytestmark = pytest.mark.anyio

POST, UPDATE = "chat.postMessage", "chat.update"


async def test_a_message_somebody_deleted_is_posted_anew_once(office: Office) -> None:
    maya = await office.world.person("maya")
    view = await office.pay(500, "a")
    await office.quiet()
    office.faults.on.next(UPDATE, NotOk("message_not_found"))
    await maya.vote(view, "deny", reason="no")
    await office.quiet()
    cards = await office.slack.messages(APPROVALS)
    assert len(cards) == 2, "the first is still here, since this Slack deletes nothing by itself"
    assert "Denied" in words(cards[1])
    assert "Denied" not in words(cards[0])


async def test_a_message_that_is_gone_again_and_again_is_not_posted_for_ever(office: Office) -> None:
    maya = await office.world.person("maya")
    view = await office.pay(500, "a")
    await office.quiet()
    office.faults.on.always(UPDATE, NotOk("message_not_found"))
    await office.comment(maya, view, "one")
    await maya.vote(view, "deny", reason="no")
    await office.quiet()
    assert (await office.standing()).waiting == 0
    assert len(await office.slack.messages(APPROVALS)) <= 3


async def test_a_thread_that_is_gone_has_its_card_posted_anew_and_loses_no_line(office: Office) -> None:
    maya = await office.world.person("maya")
    view = await office.pay(500, "a")
    await office.quiet()
    office.faults.on.next(POST, NotOk("thread_not_found"))
    await office.comment(maya, view, "one")
    await office.quiet()
    await office.comment(maya, view, "two")
    await office.quiet()
    assert len(await office.slack.messages(APPROVALS)) == 2
    (line,) = await office.thread()
    assert line.endswith("two"), "the new card is newer than the first comment, which the page has"


@pytest.mark.parametrize("error", ["invalid_blocks", "msg_too_long"])
async def test_blocks_that_are_refused_leave_a_bare_card_that_leads_to_the_page(
    office: Office, error: str
) -> None:
    office.faults.on.next(POST, NotOk(error))
    office.faults.on.next(UPDATE, NotOk(error))
    view = await office.pay(500, "a")
    await office.quiet()
    assert office.faults.on.left() == 0, "what is drawn anew is tried in full, and is bare again"
    (card,) = await office.slack.messages(APPROVALS)
    assert "Approve" not in [one["text"]["text"] for block in card["blocks"] for one in block.get("elements", [])
                             if one.get("type") == "button"]  # fmt: skip
    assert view["effects"][0]["review"]["review_id"] in str(card["blocks"])
    assert (await office.standing()).dead == 0


async def test_what_is_refused_altogether_is_set_aside_aloud_and_holds_up_nothing(office: Office) -> None:
    office.faults.on.next(POST, NotOk("invalid_blocks"), NotOk("invalid_blocks"))
    office.faults.on.next(POST, NotOk("invalid_blocks"), NotOk("invalid_blocks"))
    await office.pay(500, "a")
    await office.quiet()
    await office.pay(501, "b", "acct-2")
    await office.quiet()
    (card,) = await office.slack.messages(APPROVALS)
    assert "acct-2" in words(card)
    told = await finding(office)
    assert told is not None
    assert "set aside" in told["wrong"]
    assert (await office.standing()).failures < LATE_FAILURES


async def test_a_card_found_again_and_then_refused_is_not_posted_again(office: Office) -> None:
    """It was posted, nobody heard so, and Slack refuses what is to be shown now: it stands there all the same."""
    maya = await office.world.person("maya")
    office.faults.on.next(POST, CutAfter())
    office.faults.on.next(UPDATE, NotOk("invalid_blocks"), NotOk("invalid_blocks"))
    view = await office.pay(500, "a")
    await office.quiet()
    assert office.faults.on.left() == 0
    await maya.vote(view, "deny", reason="no")
    await office.quiet()
    (card,) = await office.slack.messages(APPROVALS)
    assert "Denied" in words(card)


async def test_what_was_set_aside_is_said_for_a_day(office: Office) -> None:
    office.faults.on.next(POST, *[NotOk("invalid_blocks")] * 4)
    await office.pay(500, "a")
    await office.quiet()
    office.world.clock.pass_(hours=23)
    assert await finding(office) is not None
    office.world.clock.pass_(hours=2)
    assert await finding(office) is None
