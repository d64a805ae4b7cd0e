"""Reading the queue with eyes, keys, a phone, a screen reader's rules, and while things happen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, expect

from policy_service.workflow.reading.reviews import VoteView
from tests.e2e.conftest import SCHEMES, Site
from tests.fakes import reviews

pytestmark = pytest.mark.anyio

PAGES = {
    "the queue": "/",
    "the queue with a filter": "/?tab=open&agent=ship-bot&risk=high",
    "decided ones": "/?tab=decided",
    "an empty tab": "/?tab=mine&agent=",
    "a review beside the list": "/?tab=open&review=rev_hostile",
    "reviews alike": "/alike/rev_credit0",
    "an ordinary refund": "/reviews/rev_01KAHV6T3M",
    "one vote in": "/reviews/rev_01KAHX04QE",
    "hostile bytes": "/reviews/rev_hostile",
    "fired": "/reviews/rev_01KAHQ2W8B",
    "denied": "/reviews/rev_denied",
    "not eligible": "/reviews/rev_owner",
    "the policies": "/policies?policy=refund-needs-finance",
    "nothing there": "/reviews/none",
    "the sign-in": "/sign-in?next=/reviews/x",
    "the link's landing": "/sign-in/dev?token=x",
}


def with_alike(site: Site) -> None:
    """Three reviews of one kind beside the others."""
    for n in range(3):
        site.world.put(reviews.credit(n))


async def assert_accessible(page: Page) -> None:
    results = await Axe().run(page)
    assert results.violations_count == 0, f"{page.url}\n{results.generate_report()}"


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_axe_finds_nothing(site: Site, scheme: str) -> None:
    page = await site.visitor(scheme=scheme)
    with_alike(site)
    for path in PAGES.values():
        await page.goto(path)
        await assert_accessible(page)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_axe_finds_nothing_in_the_open_disclosures(site: Site, scheme: str) -> None:
    page = await site.visitor(scheme=scheme)
    await page.goto(PAGES["hostile bytes"])
    for name in ("approve", "deny"):
        await page.locator(f"#{name}").evaluate("node => { node.open = true }")
        await assert_accessible(page)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_axe_finds_nothing_where_people_talk(site: Site, scheme: str) -> None:
    site.world.put(reviews.talked())
    for width in (1280, 390):
        page = await site.visitor(scheme=scheme, width=width)
        await page.goto("/reviews/rev_talk")
        await page.locator("section[aria-labelledby=h-txn] details").first.evaluate(
            "node => { node.open = true }"
        )
        await assert_accessible(page)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_axe_finds_nothing_on_the_pages_in_between(site: Site, scheme: str) -> None:
    page = await site.visitor(scheme=scheme)
    await page.goto("/reviews/rev_01KAHV6T3M?full=1")
    await page.locator(".account summary").click()
    await assert_accessible(page)
    await page.keyboard.press("Escape")
    await page.locator("main").click(position={"x": 5, "y": 5})
    await page.keyboard.press("?")
    await assert_accessible(page)
    await page.get_by_role("button", name="Close").click()
    site.world.changed = [{"name": "amount_cents", "read": "1", "now": "2"}]
    site.world.pages["rev_01KAHV6T3M"] = reviews.refund(rev=2)
    await page.locator("#approve > summary").click()
    await page.get_by_role("button", name="Countersign").click()
    await assert_accessible(page)
    site.world.pages.clear()
    await page.goto("/")
    await assert_accessible(page)


SMALL = """() => [...document.querySelectorAll("button, summary, .btn, .input, .check")]
    .filter(node => node.checkVisibility())
    .map(node => [node.textContent.trim().slice(0, 30), node.getBoundingClientRect()])
    .filter(([, box]) => box.height > 0 && (box.height < 43.5 || box.width < 43.5))
    .map(([text, box]) => `${text} ${box.width} x ${box.height}`)"""


@pytest.mark.parametrize("width", [390, 320])
async def test_a_phone_shows_everything_without_scrolling_sideways(site: Site, width: int) -> None:
    """320 px is a desktop at 400 % zoom. Nothing that is pressed is smaller than a thumb."""
    page = await site.visitor(width=width, height=700)
    with_alike(site)
    for path in PAGES.values():
        await page.goto(path)
        assert await page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert await page.evaluate(SMALL) == [], path


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


async def test_keys_with_a_modifier_belong_to_the_browser(site: Site) -> None:
    page = await site.visitor()
    await page.goto("/reviews/rev_01KAHV6T3M")
    await page.keyboard.press("Control+a")
    await page.keyboard.press("Control+d")
    assert await page.locator("details.act[open]").count() == 0


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


async def test_time_left_counts_down_by_the_servers_clock(site: Site) -> None:
    page = await site.visitor()
    await page.goto("/reviews/rev_01KAHX04QE")
    await expect(page.locator(".due b")).to_have_text("11 min left")
    await expect(page.locator(".due-soon")).to_have_count(1)


async def test_the_theme_button_leads_to_the_other_theme_and_back(site: Site) -> None:
    page = await site.visitor(scheme="dark")
    await page.goto("/")
    await page.get_by_role("button", name="Switch between light and dark").click()
    await expect(page.locator("html")).to_have_attribute("data-theme", "light")
    await page.get_by_role("button", name="Switch between light and dark").click()
    await expect(page.locator("html")).to_have_attribute("data-theme", "dark")


async def test_a_page_reads_in_the_order_it_is_meant_to(site: Site) -> None:
    page = await site.visitor()
    await page.goto("/reviews/rev_hostile")
    order = await page.locator("h1, h2, aside.decide").evaluate_all(
        "nodes => nodes.map(node => node.id || node.className)"
    )
    assert order == [
        "h-warn",
        "sentence",
        "decide",
        "h-diff",
        "h-gate",
        "h-facts",
        "h-past",
        "h-agent",
        "h-time",
        "h-claim",
        "h-keys",
    ]
