"""Every page of the real service: axe in dark and light, a desktop at 400 % zoom, a phone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, BrowserContext, Page

from tests.e2e.conftest import TIMEOUT_MS
from tests.e2e.looks import LOOKS, NO_PAGES, ONLY_REFUSED, Look, routes_of
from tests.fakes.afternoon import Afternoon
from tests.fakes.listening import Listening

pytestmark = [pytest.mark.anyio, pytest.mark.long]

TARGETS_AND_NAMES = ["target-size", "label-content-name-mismatch"]
DESKTOP: Any = {"width": 1440, "height": 900}
PHONE: Any = {"width": 390, "height": 844}
ZOOMED: Any = {"width": 320, "height": 256}  # 1280 x 1024 at 400 %

# What does not fit: a page that scrolls sideways, a thing beyond the edge, a text that is cut off, a thing that floats
# above a low page. Only tables that are wide by nature and code may scroll sideways in a place of their own.
CRAMPED = """() => {
    const view = document.documentElement.clientWidth, found = new Set();
    const words = (node) => `${node.localName}.${node.className} “${node.textContent.trim().slice(0, 40)}”`;
    const scrolls = ".scroll-x, .code-scroll, textarea";
    const look = () => {
        const wide = document.documentElement.scrollWidth;
        if (wide > view) found.add(`the page is ${wide} wide`);
        for (const node of document.querySelectorAll("body *")) {
            if (!node.checkVisibility({visibilityProperty: true}) || node.closest(".sr, .skip, svg, select")) continue;
            const box = node.getBoundingClientRect(), style = getComputedStyle(node);
            if (!box.width || !box.height) continue;
            const over = node.scrollWidth > node.clientWidth + 1 && node.clientWidth > 0;
            const inside = node.parentElement.closest(scrolls);
            if ((box.right > view + 1 || box.left < -1) && !inside) found.add(`beyond the edge: ${words(node)}`);
            const [moves, cuts] = [/auto|scroll/, /hidden|clip/].map((how) => over && how.test(style.overflowX));
            if (moves && !node.matches(scrolls)) found.add(`scrolls sideways: ${words(node)}`);
            if (cuts && !node.matches("input")) found.add(`cut off: ${words(node)}`);
            if (innerHeight < 300 && style.position === "fixed" && !node.matches("dialog"))
                found.add(`floats: ${words(node)}`);
            const pressed = node.matches("button, summary, .btn, .input, .check");
            if (pressed && (box.height < 43.5 || box.width < 43.5)) found.add(`small: ${words(node)}`);
        }
    };
    look();
    for (const act of document.querySelectorAll("details.act")) { act.open = true; look(); }
    return [...found];
}"""


@pytest.fixture(scope="module", autouse=True)
def ready(town: tuple[Listening, Afternoon]) -> None:
    """Every kind of page has something on it."""
    service, story = town
    service.do(lambda _: story.get_ready_to_be_looked_at())


def test_every_page_route_is_visited_or_listed_as_none(town: tuple[Listening, Afternoon]) -> None:
    routes = routes_of(town[0].world.app)
    assert {("GET", "/"), ("POST", "/stop"), ("GET", "/tasks/{task_id}")} <= routes
    looked = {(look.ask, look.route) for look in LOOKS}
    named = {("GET", path) for path in NO_PAGES} | {("POST", path) for path in ONLY_REFUSED}
    assert routes - looked - named == set(), "an untested page: add it to tests/e2e/looks.py"
    assert (looked | named) - routes == set(), "a page that is no more"
    assert looked & named == set()


async def windows(
    browser: Browser, town: tuple[Listening, Afternoon], **options: Any
) -> dict[str | None, BrowserContext]:
    """A window for each person, and one for a stranger."""
    service, story = town
    found: dict[str | None, BrowserContext] = {}
    for name in (None, *story.people):
        context = await browser.new_context(base_url=service.url, reduced_motion="reduce", **options)
        context.set_default_timeout(TIMEOUT_MS)
        if name is not None:
            cookie = story.people[name].visitor.cookie
            await context.add_cookies([{"name": "countersign_dev", "value": cookie, "url": service.url}])
        found[name] = context
    return found


async def open_page(page: Page, look: Look, story: Afternoon) -> None:
    """The page as its reader has it, with nothing folded but what decides."""
    await page.goto(look.address(story))
    if look.press is not None:
        await look.press(page)
    else:
        await page.evaluate(
            "() => document.querySelectorAll('main details:not(.act, .filters)').forEach((one) => { one.open = true })"
        )


async def faults_of(page: Page, within: str | None, options: Any) -> list[str]:
    """What axe has against a page."""
    result = (await Axe().run(page, within, options)).response["violations"]
    return [f"{one['id']}: {node['html'][:200]}" for one in result for node in one["nodes"]]


async def axe(page: Page, options: Any = None) -> list[str]:
    """What axe has against a page, and against everything on it that opens to decide: one opens, another shuts."""
    found = await faults_of(page, None, options)
    shut = "details.act[id]:not([open])"
    for act in await page.eval_on_selector_all(shut, "all => all.map(one => one.id)"):
        await page.locator(f"[id='{act}']").evaluate("node => { node.open = true }")
        found += [f"{act}: {fault}" for fault in await faults_of(page, f"[id='{act}']", options)]
    return found


async def targets_and_names(page: Page) -> list[str]:
    """Targets below 24 x 24 px without space around them (WCAG 2.2, 2.5.8), and names that do not hold the label that
    is seen (2.5.3). Axe leaves both rules out by default."""
    rules = {name: {"enabled": True} for name in TARGETS_AND_NAMES}
    return await axe(page, {"runOnly": {"type": "rule", "values": TARGETS_AND_NAMES}, "rules": rules})


async def fits(page: Page) -> list[str]:
    """What does not fit into the window, or is too small for a thumb."""
    found: list[str] = await page.evaluate(CRAMPED)
    return found


UNFINISHED = """() => {
    const found = [], shown = (node) => node?.checkVisibility() ?? false;
    for (const box of document.querySelectorAll(".figures")) {
        const [end, last] = [box, box.lastElementChild].map((node) => node.getBoundingClientRect().right);
        if (end - last > 2) found.push(`a figure is missing before ${Math.round(end)}`);
    }
    for (const bar of document.querySelectorAll(".tabs")) {
        const lines = new Set([...bar.children].map((tab) => tab.getBoundingClientRect().top));
        if (shown(bar) && lines.size > 1) found.push("the tabs wrap");
    }
    for (const time of document.querySelectorAll(".row-due b:not([data-due])"))
        if (shown(time) && !shown(time.nextElementSibling)) found.push(`no label: ${time.textContent}`);
    return found;
}"""


@pytest.mark.parametrize("window", [DESKTOP, PHONE, ZOOMED], ids=["desktop", "phone", "zoomed"])
async def test_figures_fill_their_row_tabs_keep_one_line_and_times_have_labels(
    browser: Browser, town: tuple[Listening, Afternoon], window: Any
) -> None:
    people = await windows(browser, town, viewport=window)
    page = await people["maya"].new_page()
    found = []
    for path in ("/", "/?tab=decided", "/tasks", "/agents", "/agents/refund-desk", "/policies", "/audit"):
        await page.goto(path)
        found += [f"{path}: {fault}" for fault in await page.evaluate(UNFINISHED)]
    for context in people.values():
        await context.close()
    assert found == []


SWEEPS: dict[str, tuple[Callable[[Page], Awaitable[list[str]]], dict[str, Any]]] = {
    "axe in the dark": (axe, {"color_scheme": "dark", "viewport": DESKTOP}),
    "axe in the light": (axe, {"color_scheme": "light", "viewport": DESKTOP}),
    "axe on a phone": (axe, {"viewport": PHONE}),
    "targets and names on a desktop": (targets_and_names, {"viewport": DESKTOP}),
    "targets and names on a phone": (targets_and_names, {"viewport": PHONE}),
    "what fits at 400 percent": (fits, {"viewport": ZOOMED}),
    "what fits on a phone": (fits, {"viewport": PHONE}),
}


@pytest.mark.parametrize(("look_at", "options"), SWEEPS.values(), ids=SWEEPS)
async def test_every_page_is_accessible_and_fits(
    browser: Browser,
    town: tuple[Listening, Afternoon],
    look_at: Callable[[Page], Awaitable[list[str]]],
    options: dict[str, Any],
) -> None:
    people = await windows(browser, town, **options)
    pages = {name: await context.new_page() for name, context in people.items()}
    found = []
    for look in LOOKS:
        await open_page(pages[look.who], look, town[1])
        found += [f"{look.route} ({look.words}): {fault}" for fault in await look_at(pages[look.who])]
    for context in people.values():
        await context.close()
    assert found == []
