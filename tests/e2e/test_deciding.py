"""Approving and denying in a real browser, with and without scripts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from playwright.async_api import Page, expect

from tests.e2e.conftest import Site, lands_on

pytestmark = [pytest.mark.anyio, pytest.mark.long]

REVIEW = "/reviews/rev_01KAHV6T3M"


async def approve(page: Page, path: str = REVIEW) -> None:
    await page.goto(f"{path}?full=1")
    await page.locator("#approve > summary").click()
    await page.get_by_role("button", name="Countersign").click()


async def test_a_page_that_went_stale_is_refused_with_its_difference(site: Site) -> None:
    page = await site.visitor()
    await page.goto(f"{REVIEW}?full=1")
    site.world.pages["rev_01KAHV6T3M"] = replace(site.world.pages["rev_01KAHV6T3M"], rev=2)
    site.world.changed = [{"name": "amount_cents", "read": "124000", "now": "142000"}]
    await page.locator("#approve > summary").click()
    await page.get_by_role("button", name="Countersign").click()
    await expect(page.get_by_role("heading", name="Your vote was not counted")).to_be_visible()
    row = page.get_by_role("row").filter(has_text="amount_cents")
    await expect(row.locator("del")).to_have_text("124000")
    await expect(row.locator("ins")).to_have_text("142000")
    assert site.world.cast == []
    await page.get_by_role("link", name="Read revision 2").click()
    await expect(page.get_by_text("revision 2")).to_be_visible()


async def test_the_first_press_only_opens_and_the_second_lands_elsewhere(site: Site) -> None:
    """A double click on approve must not approve, on a desk or on a phone."""
    for width, height in ((1280, 880), (390, 844)):
        page = await site.visitor(width=width, height=height)
        await page.goto(f"{REVIEW}?full=1")
        for name in ("approve", "deny"):
            shut = await page.locator(f"#{name} > summary").bounding_box()
            await page.locator(f"#{name} > summary").dblclick()
            await page.locator(f"#{name}[open]").or_(page.locator(f"#{name}")).wait_for()
            if await page.locator(f"#{name}").get_attribute("open") is None:
                await page.locator(f"#{name} > summary").click()
            button = await page.locator(f"#{name} button[name=verdict]").bounding_box()
            assert not lands_on(shut, button), (width, name)
            await page.locator(f"#{name} > summary").click()
    assert site.world.cast == []


async def test_the_enter_key_in_a_field_decides_nothing(site: Site) -> None:
    page = await site.visitor()
    await page.goto("/reviews/rev_hostile?full=1")
    for name, field in (
        ("deny", "[name=pick]"),
        ("approve", "[name=seen]"),
        ("approve", "textarea"),
        ("deny", "textarea"),
    ):
        await page.locator(f"#{name}").evaluate("node => { node.open = true }")
        await page.locator(f"#{name} {field}").first.press("Enter")
    await page.wait_for_timeout(200)
    assert page.url.endswith("/reviews/rev_hostile?full=1")
    assert site.world.cast == []


async def test_bytes_with_warnings_must_be_ticked_as_read(site: Site) -> None:
    page = await site.visitor()
    await page.goto("/reviews/rev_hostile?full=1")
    await page.locator("#approve > summary").click()
    await page.get_by_role("button", name="Countersign").click()
    await page.wait_for_timeout(200)
    assert site.world.cast == []
    await page.get_by_label("I have read the 5 warnings").check()
    await page.get_by_role("button", name="Countersign").click()
    await expect(page.get_by_role("heading", name="You approved this")).to_be_visible()


@pytest.mark.parametrize("by", ["key", "mouse"])
async def test_what_stands_folded_is_opened_before_it_is_approved(site: Site, by: str) -> None:
    """The key and the mouse open the same panel, which leads to the page that folds nothing; nothing stays behind."""
    page = await site.visitor()
    await page.goto(REVIEW)
    onward = page.get_by_role("link", name="Show everything")
    if by == "key":
        await page.keyboard.press("a")
        await expect(onward).to_be_focused()
    else:
        await page.locator("#approve > summary").click()
    await expect(page.get_by_text("folded above")).to_be_visible()
    await page.keyboard.press("d")
    await expect(page.locator("#deny")).to_have_attribute("open", "")
    await expect(page.get_by_text("folded above")).to_be_hidden()
    await page.locator("#deny > summary").click()
    await page.locator("#approve > summary").click()
    await onward.click()
    await page.locator("#approve > summary").click()
    await page.get_by_role("button", name="Countersign", exact=True).click()
    await expect(page.get_by_role("status").filter(has_text="Approved")).to_be_visible()
    assert [vote[1] for vote in site.world.cast] == ["approve"]


async def test_a_page_whose_rules_changed_says_what_moved(site: Site) -> None:
    page = await site.visitor()
    await page.goto(f"{REVIEW}?full=1")
    stands = site.world.pages["rev_01KAHV6T3M"]
    gate = replace(stands.gates[0], cedar_text="forbid (principal, action, resource);")
    site.world.pages["rev_01KAHV6T3M"] = replace(stands, gates=(gate,))
    await page.locator("#approve > summary").click()
    await page.get_by_role("button", name="Countersign").click()
    await expect(
        page.get_by_text("Something else on the page is another now: the rules that ask.")
    ).to_be_visible()
    assert site.world.cast == []
