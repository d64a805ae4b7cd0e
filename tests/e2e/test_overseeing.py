"""The stop, the agents, the log and break-glass in a real browser: with the keyboard, without scripts, on a phone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from playwright.async_api import expect

from policy_service.workflow.oversight.stopping import Target
from policy_service.workflow.pages.alarms import Alarms
from policy_service.workflow.reading.reviews import BreakGlassView, VoteView
from tests.e2e.conftest import SCHEMES, Site
from tests.e2e.test_reading import assert_accessible
from tests.fakes import oversight, reviews

pytestmark = pytest.mark.anyio

PATHS = ["/stop", "/agents", "/agents/desk-agent", "/audit?agent=desk-agent", "/reviews/rev_glass"]


@pytest.fixture(autouse=True)
def glass(site: Site) -> None:
    signed = VoteView("Jonas Weber", "break_glass", "the site is down", reviews.NOW, True, "oidc")
    site.world.put(
        replace(reviews.refund("rev_glass"), break_glass=BreakGlassView((signed,), None, True, False))
    )


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_axe_finds_nothing(site: Site, scheme: str) -> None:
    site.world.oversight.alarmed = Alarms((oversight.STOPPED,), (oversight.OPENED,))
    page = await site.visitor(scheme=scheme)
    for path in PATHS:
        await page.goto(path)
        for summary in await page.locator("main summary").all():
            if await summary.is_visible():
                await summary.click()
        await assert_accessible(page)


async def test_two_presses_stop_a_tool_from_any_page_without_scripts(site: Site) -> None:
    page = await site.visitor(js=False, width=390, height=844)
    await page.goto("/")
    await page.get_by_role("link", name="Stop…").click()
    await page.locator("#stop-tool > summary").click()
    await page.get_by_label("Which tool?").fill("refund")
    await page.locator("#why-stop-tool").fill("it goes out twice")
    await page.get_by_role("button", name="Stop this tool").click()
    await page.goto("/policies")
    await expect(page.get_by_text("Stopped: the tool refund.")).to_be_visible()
    assert site.world.oversight.pressed == [("stop", Target("tool", "refund"), "it goes out twice")]


async def test_a_name_or_a_reason_that_looks_like_markup_is_text(site: Site, heard: list[str]) -> None:
    stop = replace(
        oversight.STOPPED, target=Target("agent", "<img src=x>"), reason="<script>alert(1)</script>\u202e"
    )
    site.world.oversight.alarmed = Alarms((stop,))
    page = await site.visitor()
    await page.goto("/stop")
    await expect(page.get_by_text("<script>alert(1)</script>").first).to_be_visible()
    assert await page.locator("main img, main script").count() == 0
    assert heard == []


async def test_a_signature_in_an_emergency_takes_two_presses_and_a_reason(site: Site) -> None:
    page = await site.visitor()
    await page.goto("/reviews/rev_glass?full=1")
    await page.get_by_text("In an emergency…").click()
    await page.get_by_role("button", name="Break the glass and release").click()
    assert site.world.cast == []
    await page.get_by_label("What is the emergency?").fill("the site is down")
    await page.get_by_role("button", name="Break the glass and release").click()
    await page.wait_for_load_state()
    assert [(vote[1], vote[5]) for vote in site.world.cast] == [("break_glass", "the site is down")]


async def test_nothing_wider_than_a_phone(site: Site) -> None:
    site.world.oversight.alarmed = Alarms((oversight.STOPPED,), (oversight.OPENED,))
    page = await site.visitor(width=390, height=844)
    for path in PATHS:
        await page.goto(path)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390, path
