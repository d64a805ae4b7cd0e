"""Approving and denying in a real browser, with and without scripts."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.e2e.conftest import Site, lands_on
from tests.fakes.afternoon import refund

pytestmark = [pytest.mark.anyio, pytest.mark.long]

LONG = "\n".join(f"Line {n} of what the customer wrote to the desk." for n in range(1, 10))


async def test_a_page_that_went_stale_is_refused_with_its_difference(site: Site) -> None:
    page, path = await site.visitor(), await site.refund("stale", 5_200)
    await page.goto(f"{path}?full=1")
    view, args = site.story.views["stale"], refund(5_100, "Dana Whitfield", "4242", "cus_1042", "cancelled")
    proposal = await site.do(lambda story: story.people["tomas"].visitor.proposed(view, args))
    await site.do(lambda story: story.people["jonas"].send(f"/proposals/{proposal}/accept"))
    await page.locator("#approve > summary").click()
    await page.get_by_role("button", name="Countersign").click()
    await expect(page.get_by_role("heading", name="Your vote was not counted")).to_be_visible()
    row = page.get_by_role("row").filter(has_text="amount_cents")
    await expect(row.locator("del")).to_have_text("5200")
    await expect(row.locator("ins")).to_have_text("5100")
    assert await site.votes(path) == []
    await page.get_by_role("link", name="Read revision 2").click()
    await expect(page.get_by_text("revision 2")).to_be_visible()


async def test_the_first_press_only_opens_and_the_second_lands_elsewhere(site: Site) -> None:
    """A double click on approve must not approve, on a desk or on a phone."""
    path = f"/reviews/{site.story.reviews['dana']}"
    for width, height in ((1280, 880), (390, 844)):
        page = await site.visitor(width=width, height=height)
        await page.goto(f"{path}?full=1")
        for name in ("approve", "deny"):
            shut = await page.locator(f"#{name} > summary").bounding_box()
            await page.locator(f"#{name} > summary").dblclick()
            await page.locator(f"#{name}[open]").or_(page.locator(f"#{name}")).wait_for()
            if await page.locator(f"#{name}").get_attribute("open") is None:
                await page.locator(f"#{name} > summary").click()
            button = await page.locator(f"#{name} button[name=verdict]").bounding_box()
            assert not lands_on(shut, button), (width, name)
            await page.locator(f"#{name} > summary").click()
    assert await site.votes(path) == []


async def test_the_enter_key_in_a_field_decides_nothing(site: Site) -> None:
    page, path = await site.visitor(), f"/reviews/{site.story.reviews['hostile']}"
    await page.goto(f"{path}?full=1")
    for name, own in (("deny", "[name=pick]"), ("approve", "[name=seen]")):
        await page.locator(f"#{name}").evaluate("node => { node.open = true }")
        for field in (own, "textarea"):
            await page.locator(f"#{name} {field}").first.press("Enter")
    await page.wait_for_timeout(200)
    assert page.url.endswith(f"{path}?full=1")
    assert await site.votes(path) == []


async def test_warnings_must_be_confirmed_before_an_approval(site: Site) -> None:
    page, path = await site.visitor(), f"/reviews/{site.story.reviews['hostile']}"
    await page.goto(f"{path}?full=1")
    await page.locator("#approve > summary").click()
    await page.get_by_role("button", name="Countersign").click()
    await page.wait_for_timeout(200)
    assert await site.votes(path) == []
    await page.get_by_label("I have read the 5 warnings").check()
    await page.get_by_role("button", name="Countersign").click()
    await expect(page.get_by_role("heading", name="You approved this")).to_be_visible()


@pytest.mark.parametrize("by", ["key", "mouse"])
async def test_folded_arguments_must_be_opened_before_an_approval(site: Site, by: str) -> None:
    """The key and the mouse open the same panel, which leads to the page that folds nothing; nothing stays behind."""
    page, path = await site.visitor(), await site.refund(f"folded by {by}", memo=LONG)
    await page.goto(path)
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
    await page.get_by_role("button", name="Countersign and release", exact=True).click()
    await expect(page.get_by_role("status").filter(has_text="Approved")).to_be_visible()
    assert [verdict for verdict, _ in await site.votes(path)] == ["approve"]
