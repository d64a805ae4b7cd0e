"""Slack and the web pressed at once: one result, which both see, and every vote counted once.

Whichever press arrives first decides, and what must be so is the same either way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest
from playwright.async_api import Locator, Page, expect

from countersign import Denied
from tests.e2e.slack.office import Workday, about_to_deny_on_the_web
from tests.e2e.slack_page import SlackPage

pytestmark = [pytest.mark.anyio, pytest.mark.long]

ROUNDS = [("approve", "approve"), ("deny", "approve"), ("approve", "deny"), ("deny", "deny")]


async def about_to_press_in_slack(page: SlackPage, card: Locator, verdict: str) -> Locator:
    """The button that says it, with the form open where there is one."""
    if verdict == "approve":
        return card.locator(".bk-button", has_text="Approve")
    await page.press(card, "Deny")
    await page.fill({"Why not": "not agreed"})
    return page.page.locator(".modal-foot .primary")


async def about_to_press_on_the_web(page: Page, verdict: str) -> Locator:
    """The same on a page of ours."""
    if verdict == "deny":
        return await about_to_deny_on_the_web(page)
    await page.locator("#approve > summary").click()
    return page.get_by_role("button", name="Countersign and release")


async def outcome_of(paying: Awaitable[str]) -> str:
    """What the agent heard."""
    try:
        await paying
    except Denied:
        return "Denied"
    return "Fired"


async def test_a_press_in_slack_and_one_on_the_web_at_once_have_one_result(day: Workday) -> None:
    await day.office.link("maya")
    dana = await day.slack_page("dana")
    tomas = await day.web_page("tomas")
    for number, (in_slack, on_the_web) in enumerate(ROUNDS):
        account = f"acct-{number}"
        paying = day.robot.asks(account)
        card = await day.card(dana, account)
        path = await day.review_path(account)
        await tomas.goto(path)
        presses = [
            await about_to_press_in_slack(dana, card, in_slack),
            await about_to_press_on_the_web(tomas, on_the_web),
        ]
        ordered = presses if number % 2 else presses[::-1]
        await asyncio.gather(*(press.click() for press in ordered))

        heard = await outcome_of(paying)
        counted = await day.votes(account)
        assert len(counted) == 1, counted
        assert heard == ("Denied" if counted[0]["verdict"] == "deny" else "Fired")
        assert day.robot.paid.count((account, 500)) == (heard == "Fired")
        who = "Maya" if counted[0]["channel"] == "slack" else "Tomas"
        told = await day.says(dana, card, heard, who)
        assert "Approve" not in await dana.labels(card)
        assert ("Denied" in told, "Fired" in told) == (heard == "Denied", heard == "Fired")
        await tomas.goto(path)
        status = tomas.get_by_role("status").filter(has_text=heard)
        await expect(status).to_be_visible()
        if await dana.page.locator(".modal").count():
            await dana.page.locator(".modal-foot button", has_text="Go back").click()
            await dana.expect_no_modal()
