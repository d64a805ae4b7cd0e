"""Several people of a real provider, each in a browser of their own, before the real service.

A change that one proposes, another accepts and a third countersigns; two signatures from two browsers; the whole path
with the keyboard alone; and the essential path without scripts.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from countersign.contract import ReleaseClaims
from tests.e2e.conftest import TIMEOUT_MS
from tests.e2e.test_signing_in import sign_in
from tests.fakes.world import Agent, World
from tests.integration.identity.test_people import Deployment, acme_deployment
from tests.integration.service.effects import refund

pytestmark = [pytest.mark.anyio, pytest.mark.long]

PEOPLE = {
    "maya": {"name": "Maya Okafor", "groups": ["finance"]},
    "tomas": {"name": "Tomás Reyes", "groups": ["finance"]},
    "jonas": {"name": "Jonas Lindqvist", "groups": ["support"]},
}
LONG = "\n".join(f"Line {n} of what the customer wrote to the desk." for n in range(1, 10))


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One for all tests of this file: each has an agent of its own."""
    with acme_deployment(tmp_path_factory.mktemp("acme") / "data", PEOPLE) as running:
        yield running


class Meeting:
    """A deployment, and the browsers of those who met there."""

    def __init__(self, deployment: Deployment, browser: Browser, agent: Agent) -> None:
        self.deployment, self.browser, self.agent = deployment, browser, agent
        self._contexts: list[Any] = []

    async def window(self, **options: Any) -> Page:
        context = await self.browser.new_context(
            base_url=self.deployment.url, reduced_motion="reduce", **options
        )
        context.set_default_timeout(TIMEOUT_MS)
        self._contexts.append(context)
        return await context.new_page()

    async def reader(self, login: str, path: str) -> Page:
        """Somebody who followed a link, signed in at the provider, and is where the link leads."""
        page = await self.window()
        await page.goto(path)
        await sign_in(page, login)
        await expect(page).to_have_url(f"{self.deployment.url}{path}")
        return page

    async def stage(self, amount: int, **args: Any) -> dict[str, Any]:
        """The agent asks for a refund; the transaction as it stands."""

        async def there(world: World) -> dict[str, Any]:
            key = f"run-{amount}"
            view: dict[str, Any] = (
                await self.agent.submit(await refund(world, amount, **args), run_key=key)
            ).json()
            return view

        return await asyncio.to_thread(self.deployment.do, there)

    async def see(self, view: dict[str, Any]) -> dict[str, Any]:
        return await asyncio.to_thread(self.deployment.do, lambda _: self.agent.see(view["txn"]))

    async def release(self, view: dict[str, Any]) -> ReleaseClaims:
        """What the release token says that the agent gets."""

        async def there(world: World) -> ReleaseClaims:
            released = await self.agent.release(await self.agent.see(view["txn"]))
            return world.release_of(released.json()["releases"][0])

        return await asyncio.to_thread(self.deployment.do, there)

    def person(self, login: str) -> str:
        return f"{self.deployment.world.settings.providers[0].issuer}|{login}"

    async def end(self) -> None:
        for context in self._contexts:
            await context.close()


@pytest.fixture
async def meeting(
    acme: Deployment, browser: Browser, request: pytest.FixtureRequest
) -> AsyncIterator[Meeting]:
    owner = f"{acme.world.settings.providers[0].issuer}|jonas"
    name = re.sub(r"[^a-z]+", "-", request.node.name)[:40]
    agent = await asyncio.to_thread(acme.do, lambda world: world.agent(name, owner=owner))
    here = Meeting(acme, browser, agent)
    yield here
    await here.end()


def path_of(view: dict[str, Any]) -> str:
    return f"/reviews/{view['effects'][0]['review']['review_id']}"


async def countersign(page: Page, button: str = "Countersign and release") -> None:
    await page.locator("#approve > summary").click()
    await page.get_by_role("button", name=button, exact=True).click()


async def test_one_proposes_the_owner_accepts_and_another_countersigns_what_was_changed(
    meeting: Meeting,
) -> None:
    staged = await meeting.stage(90_000)
    first = path_of(staged)
    maya, tomas = await meeting.reader("maya", first), await meeting.reader("tomas", first)
    await maya.get_by_role("link", name="Propose a change…").click()
    await maya.get_by_label("amount_cents").fill("60000")
    await maya.get_by_role("button", name="See the difference…").click()
    row = maya.get_by_role("row").filter(has_text="amount_cents")
    await expect(row.locator("del")).to_have_text("90000")
    await expect(row.locator("td").first).to_contain_text("$900.00")
    await expect(row.locator("td").last).to_contain_text("$600.00")
    await maya.get_by_label("Why").fill("a third of it was delivered")
    await maya.get_by_role("button", name="Propose this change").click()
    await expect(maya.get_by_role("heading", name="Your proposal")).to_be_visible()

    jonas = await meeting.reader("jonas", first)
    await expect(jonas.get_by_role("heading", name="You cannot vote on this one")).to_be_visible()
    await jonas.get_by_role("button", name="Accept the change").click()
    await expect(jonas.get_by_role("heading", name="Changed since the agent asked")).to_be_visible()

    changed = await meeting.see(staged)
    second = path_of(changed)
    assert (changed["rev"], second != first) == (2, True)
    await countersign(tomas)  # the page of revision 1, which he has had open all the while
    await expect(tomas.get_by_role("heading", name="Your vote was not counted")).to_be_visible()
    await maya.goto(second)
    await expect(maya.get_by_role("heading", name="You cannot vote on this one")).to_be_visible()
    await expect(maya.locator("#approve")).to_have_count(0)
    await tomas.goto(second)
    await expect(tomas.locator("h1")).to_contain_text("$600.00")
    await countersign(tomas)
    await expect(tomas.get_by_role("status").filter(has_text="Approved")).to_be_visible()

    release = await meeting.release(staged)
    assert release.detail.effect_digest == changed["effects"][0]["effect_digest"]
    assert changed["effects"][0]["args"]["amount_cents"] == 60_000
    assert len(release.decision.votes) == 1


async def seen(page: Page) -> Locator:
    """What has the focus: one can see that it has it, and nothing lies upon it (WCAG 2.4.7 and 2.4.11)."""
    told = await page.evaluate(
        """() => {
            const node = document.activeElement, ring = getComputedStyle(node), box = node.getBoundingClientRect();
            const after = getComputedStyle(node, "::after");
            const drawn = (one) => one.outlineStyle !== "none" && parseFloat(one.outlineWidth) >= 2;
            const ringed = drawn(ring) || drawn(after);
            const beside = node.matches(".pick input") && drawn(getComputedStyle(node.nextElementSibling));
            const hit = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
            const top = hit !== null && (node.contains(hit) || hit.contains(node));
            return [`${node.tagName} ${node.textContent.trim().slice(0, 40)}`, ringed || beside, top];
        }"""
    )
    assert told[1:] == [True, True], told
    return page.locator(":focus")


async def tab_to(page: Page, target: Locator, most: int = 60, key: str = "Tab") -> None:
    """Press Tab until something has the focus; every stop on the way can be seen."""
    for _ in range(most):
        await page.keyboard.press(key)
        await seen(page)
        if await target.evaluate("node => node === document.activeElement"):
            return
    raise AssertionError(f"{target} is not reached within {most} presses")


async def test_the_whole_path_with_the_keyboard_alone(meeting: Meeting) -> None:
    approved, denied = await meeting.stage(21_000, reason=LONG), await meeting.stage(22_000)
    page = await meeting.window(viewport={"width": 390, "height": 844})
    await page.goto(path_of(approved))
    await tab_to(page, page.get_by_role("link", name="Continue with Acme SSO"))
    await page.keyboard.press("Enter")
    await page.locator("input[name=login]").wait_for()
    await page.locator("input[name=login]").focus()  # from here the provider's page, which is not ours
    await page.keyboard.type("maya")
    await page.keyboard.press("Tab")
    await page.keyboard.type("anything")
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Continue").press("Enter")
    await expect(page).to_have_url(f"{meeting.deployment.url}{path_of(approved)}")

    await tab_to(page, page.get_by_role("link", name="Skip to the effect"))
    await page.keyboard.press("Enter")
    await page.keyboard.press("a")  # an argument is folded: the panel leads to the page that folds nothing
    await expect(page.get_by_role("link", name="Show everything")).to_be_focused()
    await page.keyboard.press("Enter")
    await page.wait_for_url("**?full=1*")
    await expect(page.locator(".args").get_by_text("Line 9 of what")).to_be_visible()
    await page.keyboard.press("a")
    await expect(page.get_by_label("Note")).to_be_focused()
    await page.keyboard.type("read to the end")
    await tab_to(page, page.get_by_role("button", name="Countersign and release"))
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status").filter(has_text="Approved")).to_be_visible()

    await page.keyboard.press("g")
    await page.keyboard.press("q")
    await page.wait_for_url(f"{meeting.deployment.url}/")
    row = page.locator(f'[data-review="{path_of(denied).removeprefix("/reviews/")}"] a')
    for _ in range(10):
        await page.keyboard.press("j")
        if await row.evaluate("node => node === document.activeElement"):
            break
    await seen(page)
    await page.keyboard.press("d")
    await page.wait_for_url(f"**{path_of(denied)}#deny")
    await expect(page.get_by_label("Reason, in your words")).to_be_focused()
    await page.keyboard.type("not what was agreed")
    await tab_to(page, page.get_by_role("button", name="Deny this effect"))
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Denied by Maya Okafor")).to_be_visible()

    await page.goto("/")
    await tab_to(page, page.locator(".account > summary"))
    await page.keyboard.press("Enter")
    await tab_to(page, page.get_by_role("button", name="Sign out", exact=True))
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Sign in to decide")).to_be_visible()
    states = [(await meeting.see(view))["effects"][0]["state"] for view in (approved, denied)]
    assert states == ["released", "denied"]


async def test_the_essential_path_without_scripts(meeting: Meeting) -> None:
    approved, denied = await meeting.stage(31_000, reason=LONG), await meeting.stage(32_000)
    page = await meeting.window(java_script_enabled=False)
    await page.goto("/")
    await sign_in(page, "maya")
    await page.locator(f'[data-review="{path_of(approved).removeprefix("/reviews/")}"] a').click()
    await page.locator("#approve > summary").click()
    await expect(page.locator("#approve form")).to_have_count(0)  # nobody approves what stands folded
    await page.get_by_role("link", name="Show everything").click()
    await expect(page.locator(".args").get_by_text("Line 9 of what")).to_be_visible()
    await countersign(page)
    await expect(page.get_by_role("status").filter(has_text="Approved")).to_be_visible()
    await page.goto(path_of(denied))
    await page.locator("#deny > summary").click()
    await page.get_by_label("Wrong person or account").check()
    await page.get_by_role("button", name="Deny this effect").click()
    await expect(page.get_by_text("“Wrong person or account”")).to_be_visible()
    await page.locator(".account > summary").click()
    await page.get_by_role("button", name="Sign out", exact=True).click()
    await expect(page.get_by_role("heading", name="Sign in to decide")).to_be_visible()
    states = [(await meeting.see(view))["effects"][0]["state"] for view in (approved, denied)]
    assert states == ["released", "denied"]
