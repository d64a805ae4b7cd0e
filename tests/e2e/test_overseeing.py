"""The stop, the agents, the log and break-glass in a real browser: with the keyboard, without scripts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from playwright.async_api import expect

from policy_service.workflow.oversight.stopping import Target
from policy_service.workflow.reading.reviews import BreakGlassView, VoteView
from tests.e2e.conftest import Site
from tests.fakes import reviews

pytestmark = [pytest.mark.anyio, pytest.mark.long]


@pytest.fixture(autouse=True)
def glass(site: Site) -> None:
    signed = VoteView("Jonas Weber", "break_glass", "the site is down", reviews.NOW, True, "oidc")
    site.world.put(
        replace(reviews.refund("rev_glass"), break_glass=BreakGlassView((signed,), None, True, False))
    )


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
