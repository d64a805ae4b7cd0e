"""Deciding in the page of Slack: an agent of the SDK waits, a browser presses, the effect fires or does not.

Each path is walked over HTTP and over Socket Mode: to the agent and to the person there is no difference.
"""

from __future__ import annotations

import re

import pytest
from playwright.async_api import expect

from countersign import Denied, Question
from tests.e2e.slack.office import BOTH_WAYS, LARGE, Workday

pytestmark = [pytest.mark.anyio, BOTH_WAYS]


async def test_a_press_on_approve_fires_the_effect_once_and_the_message_tells_it(day: Workday) -> None:
    await day.office.link("maya")
    dana = await day.slack_page("dana")
    paying = day.robot.asks("acct-1")
    card = await day.card(dana, "acct-1")
    await day.says(dana, card, "Pay 500 to acct-1", '"amount": 500', "0 of 1 approvals by finance")
    assert await dana.labels(card) == ["Approve", "Deny…", "Ask…", "Edit on the web", "Open"]
    assert day.robot.paid == []

    await dana.press(card, "Approve")
    assert await paying == "p-acct-1"
    assert day.robot.paid == [("acct-1", 500)]
    told = await day.says(dana, card, "Approved by Maya", "Fired")
    assert told.count("Pay 500 to acct-1") == 1
    assert await dana.labels(card) == ["Open"]
    story = await day.thread_says(dana, card, "Fired")
    assert [re.split("[:·]", line)[0].strip() for line in story] == ["Voted to approve", "Released", "Fired"]
    assert len(await day.votes("acct-1")) == 1


@pytest.mark.long
async def test_a_denial_wants_a_reason_and_the_agent_and_the_channel_read_it(day: Workday) -> None:
    await day.office.link("maya")
    dana = await day.slack_page("dana")
    paying = day.robot.asks("acct-1")
    card = await day.card(dana, "acct-1")
    await dana.press(card, "Deny")
    await dana.modal()
    for empty in ("", "   "):
        await dana.submit({"Why not": empty})
        assert "write why" in (await dana.errors())[0]
    assert not paying.done() and await day.votes("acct-1") == []

    await dana.submit({"Why not": "this account was closed in May"})
    await dana.expect_no_modal()
    with pytest.raises(Denied, match="this account was closed in May"):
        await paying
    assert day.robot.paid == []
    await day.says(dana, card, "Denied by Maya", "this account was closed in May", "Nothing fired")
    assert await dana.labels(card) == ["Open"]
    assert len(await day.votes("acct-1")) == 1


@pytest.mark.long
async def test_a_question_is_answered_by_the_agent_in_the_thread_and_nothing_is_decided(
    day: Workday,
) -> None:
    await day.office.link("maya")
    heard: list[Question] = []

    def answer(question: Question) -> str:
        heard.append(question)
        return "invoice 4711, *paid* <!channel> twice"

    dana = await day.slack_page("dana")
    paying = day.robot.asks("acct-1", on_question=answer)
    card = await day.card(dana, "acct-1")
    await dana.press(card, "Ask")
    await dana.submit({"What do you want to know": "which invoice?"})
    await dana.expect_no_modal()
    story = await day.thread_says(dana, card, "which invoice?", "invoice 4711, *paid* <!channel> twice")
    assert len(story) == 2
    assert [(one.text, one.tool, one.asked_by) for one in heard] == [("which invoice?", "pay", "Maya")]
    assert not paying.done() and await day.votes("acct-1") == []

    await dana.press(card, "Approve")
    assert await paying == "p-acct-1"
    await day.says(dana, card, "Approved by Maya", "Fired")


@pytest.mark.long
async def test_two_people_sign_one_in_slack_and_one_on_the_web(day: Workday) -> None:
    await day.office.link("maya")
    dana = await day.slack_page("dana")
    paying = day.robot.asks("acct-1", LARGE)
    card = await day.card(dana, "acct-1")
    await day.says(dana, card, "0 of 2 approvals by finance")
    tomas = await day.web_page("tomas", await day.review_path("acct-1"))
    await dana.press(card, "Approve")
    await day.says(dana, card, "1 of 2 approvals by finance", "Maya")
    await tomas.reload()
    await expect(tomas.locator(".vote-done")).to_contain_text("Maya")
    assert not paying.done()
    await tomas.locator("#approve > summary").click()
    await tomas.locator("#approve").get_by_role("button", name=re.compile("^Countersign")).click()
    assert await paying == "p-acct-1"
    assert day.robot.paid == [("acct-1", LARGE)]
    await day.says(dana, card, "Fired", "Maya", "Tomas")
    assert sorted(vote["channel"] for vote in await day.votes("acct-1")) == ["slack", "web"]
