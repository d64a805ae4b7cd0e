"""What stands beside the facts, in a browser: inert, found by its address, and stacked on a phone."""

from __future__ import annotations

from datetime import timedelta

import pytest
from playwright.async_api import expect

from policy_service.workflow.reading.reviews import EventLine
from tests.e2e.conftest import Site
from tests.fakes import reviews

pytestmark = [pytest.mark.anyio, pytest.mark.long]

REFUND = "/reviews/rev_01KAHV6T3M"


async def test_a_hostile_past_does_nothing_and_is_marked(site: Site, heard: list[str]) -> None:
    page = await site.visitor()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.goto("/reviews/rev_hostile")
    await page.wait_for_timeout(300)
    assert "owned" not in await page.title()
    assert all(url.startswith(site.url) for url in asked)
    assert heard == []
    now = page.locator('.diff tr:has(code:text-is("from")) td[data-label="Now"]')
    await expect(now.locator(".sus")).to_have_text(reviews.CYRILLIC_A)
    await expect(now).to_contain_text("another recipient")
    then = page.locator('.diff tr:has(code:text-is("body_html")) td[data-label="Then"]')
    await expect(then).to_contain_text("of 300,076 bytes")
    await expect(page.locator(".past .hid").first).to_be_visible()


async def test_boxes_beside_stay_off_the_sheet(site: Site) -> None:
    """The sheet is what is signed; what the service remembers is beside it."""
    page = await site.visitor()
    await page.goto(REFUND)
    for box in (".diff", ".meter", ".past"):
        assert await page.locator(box).count() > 0
        assert await page.locator(f".sheet {box}").count() == 0


async def test_a_long_story_is_folded_and_a_link_into_the_fold_opens_it(site: Site) -> None:
    lines = tuple(
        EventLine(
            reviews.NOW + timedelta(seconds=n), "vote_recorded", f"Line {n}", "desk", "api", "", f"l{n}"
        )
        for n in range(30)
    )
    site.world.put(reviews.refund(timeline=lines))
    page = await site.visitor()
    await page.goto(REFUND)
    await expect(page.get_by_text("18 earlier lines")).to_be_visible()
    await expect(page.get_by_text("Line 29")).to_be_visible()
    await expect(page.get_by_text("Line 3", exact=True)).not_to_be_visible()
    await page.goto(f"{REFUND}#log-l3")
    await expect(page.get_by_text("Line 3", exact=True)).to_be_visible()


@pytest.mark.parametrize("wrong_ms", [-3_600_000, 3_600_000])
async def test_a_clock_that_is_wrong_by_an_hour_changes_no_countdown(site: Site, wrong_ms: int) -> None:
    page = await site.visitor()
    await page.add_init_script(f"{{ const real = Date.now; Date.now = () => real() + {wrong_ms}; }}")
    await page.goto(REFUND)
    await page.wait_for_timeout(1_200)
    await expect(page.locator(".due b")).to_have_text("2 h 40 min left")
