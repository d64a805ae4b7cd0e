"""Reading the queue and a review in a real browser: keys, live updates, and the context panel."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from tests.e2e.conftest import Site
from tests.fakes.afternoon import HOSTILE, deploy

pytestmark = [pytest.mark.anyio, pytest.mark.long]


async def arrived(page: Page, url: str) -> None:
    """The page of `url` with its scripts run: the address alone changes before a key is listened for."""
    await expect(page).to_have_url(url)
    await page.wait_for_load_state("load")


async def reviews_of(page: Page) -> list[str]:
    """The reviews of the rows, in their order."""
    rows = page.locator("[data-review]")
    found: list[str] = await rows.evaluate_all("all => all.map(one => one.dataset.review)")
    return found


async def test_keys_move_and_open_and_never_decide(site: Site) -> None:
    page = await site.visitor()
    await site.refund("first")
    await page.goto("/?order=newest")
    titles, [first, *_] = page.locator(".row-title"), await reviews_of(page)
    await page.keyboard.press("j")
    await expect(titles.nth(0)).to_be_focused()
    await page.keyboard.press("j")
    await expect(titles.nth(1)).to_be_focused()
    await page.keyboard.press("k")
    await page.keyboard.press("k")
    await expect(titles.nth(0)).to_be_focused()
    await page.keyboard.press("Enter")
    await arrived(page, f"{site.url}/reviews/{first}")
    await page.keyboard.press("a")
    await expect(page.locator("#approve")).to_have_attribute("open", "")
    await page.keyboard.type("adjk?gq")  # in the note now: letters are letters
    await expect(page.get_by_label("Note")).to_have_value("adjk?gq")
    await page.locator("#approve > summary").click()
    await page.keyboard.press("d")
    await expect(page.locator("#deny")).to_have_attribute("open", "")
    await page.locator("#deny > summary").click()
    await page.keyboard.press("g")
    await page.keyboard.press("q")
    await arrived(page, f"{site.url}/")
    first = (await reviews_of(page))[0]
    before = await site.votes(f"/reviews/{first}")
    await page.keyboard.press("j")
    await page.keyboard.press("d")
    await arrived(page, f"{site.url}/reviews/{first}#deny")
    await expect(page.locator("#deny")).to_have_attribute("open", "")
    assert await site.votes(f"/reviews/{first}") == before


async def test_keys_can_be_turned_off(site: Site) -> None:
    page = await site.visitor()
    await page.goto("/")
    await page.keyboard.press("?")
    await page.get_by_role("button", name="Turn keys off in this browser").click()
    await page.wait_for_load_state("load")
    for key in ("j", "/", "?"):
        await page.keyboard.press(key)
    await expect(page.locator(".row-title").first).not_to_be_focused()
    await expect(page.locator("#keys")).to_be_hidden()
    await page.get_by_role("button", name="Keyboard shortcuts").click()
    await page.get_by_role("button", name="Turn keys on").click()
    await page.wait_for_load_state("load")
    await page.keyboard.press("j")
    await expect(page.locator(".row-title").first).to_be_focused()


async def test_new_reviews_wait_behind_a_pill_and_nothing_moves(site: Site, heard: list[str]) -> None:
    page = await site.visitor()
    await page.goto("/")
    await page.keyboard.press("j")
    # The titles, not the whole rows: the countdown goes on, as it should.
    focused, before = page.locator(".row-title").first, await page.locator(".row-title").all_inner_texts()
    place = await focused.bounding_box()
    for n in range(3):
        await site.refund(f"new-{n}")
    pill = page.get_by_role("link", name="3 new, show them")
    await expect(pill).to_be_visible()
    await expect(focused).to_be_focused()
    assert await page.locator(".row-title").all_inner_texts() == before
    assert await focused.bounding_box() == place
    await pill.click()
    await expect(page.locator(".row-title")).to_have_count(len(before) + 3)
    assert heard == []


async def test_a_vote_cast_meanwhile_is_announced_and_no_button_moves(site: Site) -> None:
    page = await site.visitor()
    review = await site.stage("two", "ship-bot", "deploy", deploy("4.19.0", changes=[]))
    await page.goto(f"/reviews/{review}?full=1")
    await page.locator("#approve > summary").click()
    button = page.locator("#approve button[name=verdict]")
    place = await button.bounding_box()
    await site.do(lambda story: story.vote("two", "tomas"))
    await expect(page.get_by_role("link", name="A vote came in: 1 of 2 now, load again")).to_be_visible()
    assert await button.bounding_box() == place
    await expect(page.locator("#approve")).to_have_attribute("open", "")


async def test_hostile_precedents_are_inert_and_marked(site: Site, heard: list[str]) -> None:
    markup = "<script>document.title='owned'</script><svg onload=\"document.title='owned'\">"
    earlier = HOSTILE | {"audience": "newsletter-test", "from": "news@northwind.example"}
    earlier["subject"] = "Your statement \u202efdp.exe"
    earlier["body_html"] = "y" * 30_000 + markup
    await site.do(lambda story: story.went_well("past", "campaign-writer", "send_campaign", earlier))
    await site.stage("hostile", "campaign-writer", "send_campaign", HOSTILE | {"send_at": "later"})
    page = await site.visitor()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.goto(f"/reviews/{site.story.reviews['hostile']}")
    await page.wait_for_timeout(300)
    assert "owned" not in await page.title()
    assert all(url.startswith(site.url) for url in asked)
    assert heard == []
    now = page.locator('.diff tr:has(code:text-is("from")) td[data-label="Now"]')
    await expect(now.locator(".sus")).to_have_text("\u0430")
    await expect(now).to_contain_text("another recipient")
    then = page.locator('.diff tr:has(code:text-is("body_html")) td[data-label="Then"]')
    await expect(then).to_contain_text("of 30,076 bytes")
    await expect(page.locator(".diff .hid").first).to_be_visible()


async def test_context_boxes_do_not_overlap_the_sheet(site: Site) -> None:
    """The sheet is what people sign; the context is next to it."""
    page = await site.visitor()
    await page.goto(f"/reviews/{site.story.reviews['dana']}")
    for box in (".diff", ".meter", ".past"):
        assert await page.locator(box).count() > 0
        assert await page.locator(f".sheet {box}").count() == 0


async def test_a_clock_that_is_wrong_by_an_hour_changes_no_countdown(site: Site) -> None:
    texts = set()
    for wrong_ms in (0, -3_600_000, 3_600_000):
        page = await site.visitor()
        await page.add_init_script(f"{{ const real = Date.now; Date.now = () => real() + {wrong_ms}; }}")
        await page.goto(f"/reviews/{site.story.reviews['dana']}")
        await page.wait_for_timeout(1_200)
        texts.add(await page.locator(".due b").inner_text())
    (left,) = texts
    assert left.endswith(" min left")


async def test_a_lost_connection_is_reported(site: Site) -> None:
    page = await site.visitor("wen")
    await page.goto("/")
    await page.wait_for_timeout(300)
    # the stream ends, and coming back is refused
    await site.do(lambda story: story.people["wen"].send("/sign-out"))
    await expect(page.get_by_text("Not live since 14:2")).to_be_visible()
