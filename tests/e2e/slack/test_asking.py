"""What a person asks Countersign in Slack: who they are, what waits for them, to be written to."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import expect

from countersign import Denied
from tests.e2e.slack.office import BOTH_WAYS, Workday, pressed_url
from tests.e2e.slack_page import SlackPage
from tests.integration.slack.office import APPROVALS, until, words

pytestmark = [pytest.mark.anyio, BOTH_WAYS, pytest.mark.long]


async def answered(day: Workday, page: SlackPage, command: str, text: str) -> str:
    """What /countersign answered to whoever wrote it alone."""
    await page.write(command)
    answer = page.ephemerals().last

    async def there() -> str | None:
        read = await page.text(answer) if await answer.count() else ""
        return read if text in read else None

    return await until(there)


async def link_for_dana(day: Workday) -> str:
    """The way out of the newest answer that has one."""
    told = await day.slack.ephemerals(APPROVALS, day.slack.users["dana"])
    return pressed_url(told[-1]["blocks"], "link")


async def test_a_person_links_their_account_in_the_browser_and_then_decides_in_slack(day: Workday) -> None:
    dana = await day.slack_page("dana")
    refused = await answered(day, dana, "/countersign", "This Slack account is nobody's yet")
    assert "/countersign link" in refused
    offered = await answered(day, dana, "/countersign link", "The link is yours alone")
    assert "works once" in offered

    url = await link_for_dana(day)
    web = await day.web_page(None, url)
    await expect(web.get_by_role("heading", name="Sign in to decide")).to_be_visible()
    signing_in = await day.office.world.operator("sign-in-link", {"sub": "maya", "name": "Maya"})
    await web.goto(signing_in["url"])
    await web.get_by_role("button", name="Sign in").click()
    await expect(web.locator(".account > summary")).to_be_visible()
    await web.goto(url)
    await expect(web.get_by_role("heading", name="Link a Slack account to you")).to_be_visible()
    await web.get_by_role("button", name="Link this Slack account to me").click()
    await expect(web.get_by_role("heading", name="Your Slack accounts")).to_be_visible()
    await expect(web.get_by_role("main")).to_contain_text("U0DANA")
    await web.goto(url)  # it works once
    await expect(web.get_by_role("button", name="Link this Slack account to me")).to_have_count(0)

    await answered(day, dana, "/countersign", "Nothing waits for you")
    paying = day.robot.asks("acct-1")
    card = await day.card(dana, "acct-1")
    await answered(day, dana, "/countersign", "Pay 500 to acct-1")
    await dana.press(card, "Approve")
    assert await paying == "p-acct-1"
    await day.says(dana, card, "Approved by Maya", "Fired")


async def test_the_home_says_who_one_is_and_what_waits(day: Workday) -> None:
    dana = await day.slack_page("dana")
    home = await dana.open_home()
    await expect(home).to_contain_text("Link your account")
    await day.office.link("maya")
    paying = day.robot.asks("acct-1")
    await dana.open_channel("approvals")
    await day.card(dana, "acct-1")
    await dana.open_home()

    async def there() -> str | None:
        view = await day.slack.home(day.slack.users["dana"])
        return words(view["blocks"]) if view and "acct-1" in words(view["blocks"]) else None

    shown = await until(there)
    assert "1 review waits for you" in shown and "You are" in shown and "Maya" in shown
    await expect(home.locator(".bk-header")).to_have_text("1 review waits for you")
    await asyncio.to_thread(day.robot.withdraw, "acct-1")
    with pytest.raises(Denied):
        await paying
