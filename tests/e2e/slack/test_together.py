"""Several people on one review, in Slack and on the web; and what nobody decided."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import expect

from countersign import Denied, ReviewPending
from tests.e2e.slack.office import LARGE, Workday, approve_on_the_web

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("first", ["slack", "web"])
async def test_two_people_sign_one_in_slack_and_one_on_the_web_in_either_order(
    day: Workday, first: str
) -> None:
    await day.office.link("maya")
    dana = await day.slack_page("dana")
    paying = day.robot.asks("acct-1", LARGE)
    card = await day.card(dana, "acct-1")
    await day.says(dana, card, "0 of 2 approvals by finance")
    tomas = await day.web_page("tomas", await day.review_path("acct-1"))
    if first == "slack":
        await dana.press(card, "Approve")
        await day.says(dana, card, "1 of 2 approvals by finance", "Maya")
        await tomas.reload()
        await expect(tomas.locator(".vote-done")).to_contain_text("Maya")
        assert not paying.done()
        await approve_on_the_web(tomas)
    else:
        await approve_on_the_web(tomas)
        await day.says(dana, card, "1 of 2 approvals by finance", "Tomas")
        assert not paying.done()
        await dana.press(card, "Approve")
    assert await paying == "p-acct-1"
    assert day.robot.paid == [("acct-1", LARGE)]
    told = await day.says(dana, card, "Fired")
    assert "Maya" in told and "Tomas" in told
    await tomas.goto(await day.review_path("acct-1"))
    await expect(tomas.get_by_role("status").filter(has_text="Fired")).to_be_visible()
    votes = await day.votes("acct-1")
    assert sorted(vote["channel"] for vote in votes) == ["slack", "web"]


async def test_the_same_person_in_slack_and_on_the_web_counts_once(day: Workday) -> None:
    await day.office.link("maya")
    await day.office.link("tomas")
    dana = await day.slack_page("dana")
    paying = day.robot.asks("acct-1", LARGE)
    card = await day.card(dana, "acct-1")
    path = await day.review_path("acct-1")
    maya = await day.web_page("maya", path)
    await dana.press(card, "Approve")
    await day.says(dana, card, "1 of 2 approvals by finance")
    await approve_on_the_web(maya)  # a page that was open before
    await maya.goto(path)
    await expect(maya.get_by_role("heading", name="You approved this")).to_be_visible()
    await dana.press(card, "Approve")
    assert "1 of 2 approvals by finance" in await day.says(dana, card, "1 of 2 approvals by finance")
    assert not paying.done() and day.robot.paid == []

    await dana.act_as("felix")
    await dana.press(card, "Approve")
    assert await paying == "p-acct-1"
    assert day.robot.paid == [("acct-1", LARGE)]


async def test_a_review_nobody_answers_says_in_the_channel_that_it_expired(day: Workday) -> None:
    await day.office.link("maya")
    dana = await day.slack_page("dana")
    with pytest.raises(ReviewPending):
        await day.robot.asks("acct-1", wait=0)
    card = await day.card(dana, "acct-1")
    day.office.world.clock.pass_(days=8)
    await day.office.world.sweep()
    await day.says(dana, card, "Expired", "Nothing fired")
    assert await dana.labels(card) == ["Open"]
    await day.thread_says(dana, card, "Expired; nothing fired")
    kinds = [kind for kind, _ in await day.log("acct-1")]
    assert kinds.count("effect_expired") == 1 and day.robot.paid == []


async def test_what_the_agent_takes_back_is_withdrawn_in_the_channel(day: Workday) -> None:
    await day.office.link("maya")
    dana = await day.slack_page("dana")
    paying = day.robot.asks("acct-1")
    card = await day.card(dana, "acct-1")
    await asyncio.to_thread(day.robot.withdraw, "acct-1")
    await day.says(dana, card, "Withdrawn", "Nothing fired")
    assert await dana.labels(card) == ["Open"]
    await day.thread_says(dana, card, "Taken back by its agent")
    with pytest.raises(Denied):
        await paying
    assert day.robot.paid == []
