"""Reading the queue and a review in a real browser: keys, what happens meanwhile, and what stands beside the facts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from playwright.async_api import Page, expect

from policy_service.queries.review_models import VoteView
from tests.e2e.conftest import Site
from tests.fakes import reviews

pytestmark = [pytest.mark.anyio, pytest.mark.long]


async def arrived(page: Page, url: str) -> None:
    """The page of `url` with its scripts run: the address alone changes before a key is listened for."""
    await expect(page).to_have_url(url)
    await page.wait_for_load_state("load")


async def test_keys_move_and_open_and_never_decide(site: Site) -> None:
    page = await site.visitor()
    await page.goto("/")
    titles = page.locator(".row-title")
    await page.keyboard.press("j")
    await expect(titles.nth(0)).to_be_focused()
    await page.keyboard.press("j")
    await expect(titles.nth(1)).to_be_focused()
    await page.keyboard.press("k")
    await page.keyboard.press("k")
    await expect(titles.nth(0)).to_be_focused()
    await page.keyboard.press("Enter")
    await arrived(page, f"{site.url}/reviews/rev_01KAHX04QE")
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
    await page.keyboard.press("j")
    await page.keyboard.press("d")
    await arrived(page, f"{site.url}/reviews/rev_01KAHX04QE#deny")
    await expect(page.locator("#deny")).to_have_attribute("open", "")
    assert site.world.cast == []


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
    for name in ("rev_new1", "rev_new2", "rev_new3"):
        site.world.put(reviews.refund(name, answer_by=reviews.NOW + reviews.timedelta(minutes=1)))
    pill = page.get_by_role("link", name="3 new, show them")
    await expect(pill).to_be_visible()
    await expect(focused).to_be_focused()
    assert await page.locator(".row-title").all_inner_texts() == before
    assert await focused.bounding_box() == place
    await pill.click()
    await expect(page.locator(".row-title")).to_have_count(6)
    assert heard == []


async def test_a_vote_cast_meanwhile_is_announced_and_no_button_moves(site: Site) -> None:
    page = await site.visitor()
    await page.goto("/reviews/rev_hostile?full=1")
    await page.locator("#approve > summary").click()
    button = page.locator("#approve button[name=verdict]")
    place = await button.bounding_box()
    stands = site.world.pages["rev_hostile"]
    vote = VoteView("Tom Reed", "approve", None, reviews.NOW, True, "dev")
    site.world.put(replace(stands, votes=(*stands.votes, vote)), "vote_recorded")
    await expect(page.get_by_role("link", name="A vote came in: 1 of 3 now, load again")).to_be_visible()
    assert await button.bounding_box() == place
    await expect(page.locator("#approve")).to_have_attribute("open", "")


async def test_a_lost_connection_is_told(site: Site) -> None:
    page = await site.visitor()
    await page.goto("/")
    await page.wait_for_timeout(300)
    site.world.sign_everybody_out()  # the stream ends, and coming back is refused
    await expect(page.get_by_text("Not live since 14:2")).to_be_visible()


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


@pytest.mark.parametrize("wrong_ms", [-3_600_000, 3_600_000])
async def test_a_clock_that_is_wrong_by_an_hour_changes_no_countdown(site: Site, wrong_ms: int) -> None:
    page = await site.visitor()
    await page.add_init_script(f"{{ const real = Date.now; Date.now = () => real() + {wrong_ms}; }}")
    await page.goto(REFUND)
    await page.wait_for_timeout(1_200)
    await expect(page.locator(".due b")).to_have_text("2 h 40 min left")
