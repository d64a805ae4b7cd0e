"""The queue in a real browser: a review next to the list, keys, filters, live updates, a batch."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import expect

from tests.e2e.conftest import Site
from tests.e2e.test_reading import arrived, reviews_of

pytestmark = [pytest.mark.anyio, pytest.mark.long]


async def test_a_settled_row_keeps_its_position_until_reload(site: Site, heard: list[str]) -> None:
    review = (await site.refund("settles")).removeprefix("/reviews/")
    page = await site.visitor()
    await page.goto("/?order=newest")
    # The clock does not move, so reviews of the same moment are in any order.
    for _ in range((await reviews_of(page)).index(review) + 1):
        await page.keyboard.press("j")
    row = page.locator(f'[data-review="{review}"]')
    await expect(row.locator("a")).to_be_focused()
    place, titles = await row.bounding_box(), await page.locator(".row-title").all_inner_texts()
    waiting = re.search(r"\d+", await page.title())
    await site.do(lambda story: story.vote("settles", "tomas", "deny", "no"))
    await expect(row.get_by_text("decided meanwhile")).to_be_visible()
    await expect(row).to_have_class(re.compile("row-settled"))
    await expect(row.locator("a")).to_be_focused()
    assert await page.locator(".row-title").all_inner_texts() == titles
    after = await row.bounding_box()
    assert place and after and waiting
    assert (after["x"], after["y"]) == (place["x"], place["y"])
    await expect(page).to_have_title(re.compile(rf"^\({int(waiting[0]) - 1}\) Queue"))
    await page.get_by_role("link", name="1 decided, load again").click()
    await expect(row).to_have_count(0)
    assert heard == []


async def test_side_by_side_by_keys_and_never_by_themselves(site: Site) -> None:
    page = await site.visitor(width=1440)
    await site.refund("second"), await site.refund("first")
    await page.goto("/?tab=open&order=newest")
    first, second = (await reviews_of(page))[:2]
    await page.get_by_role("link", name="Side by side").click()
    await arrived(page, f"{site.url}/?tab=open&order=newest&review={first}")
    await expect(page.locator(".pair-list")).to_be_visible()
    await page.keyboard.press("j")  # from the row that is shown to the next
    await expect(page.locator(f'[data-review="{second}"] a')).to_be_focused()
    await page.keyboard.press("d")  # of the row under the focus, not of the review that happens to be shown
    await arrived(page, f"{site.url}/?tab=open&order=newest&review={second}#deny")
    await expect(page.locator("#deny")).to_have_attribute("open", "")
    await expect(page.get_by_label("Reason, in your words")).to_be_focused()
    assert await site.votes(f"/reviews/{second}") == []


async def test_slash_opens_the_filter_and_the_address_keeps_it(site: Site) -> None:
    page = await site.visitor()
    await page.goto("/?tab=open")
    await page.keyboard.press("/")
    await expect(page.get_by_label("Says")).to_be_focused()
    await page.keyboard.type("checkout/api")  # a slash in a field is a slash
    await expect(page.get_by_label("Says")).to_have_value("checkout/api")
    await page.get_by_label("Says").fill("checkout-api")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(re.compile("text=checkout-api"))
    await expect(page.locator(".row-title")).to_have_count(1)
    await page.get_by_role("link", name="Remove the filter Says: checkout-api").click()
    await expect(page.locator(".row-title").nth(1)).to_be_visible()
