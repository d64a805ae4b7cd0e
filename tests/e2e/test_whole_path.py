"""The whole path of a person of a real provider before the real service: with the keyboard alone; without scripts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.e2e.conftest import TIMEOUT_MS
from tests.e2e.test_signing_in import sign_in
from tests.fakes.world import Agent, World
from tests.integration.identity.test_people import Deployment, acme_deployment
from tests.integration.service.effects import refund

pytestmark = [pytest.mark.anyio, pytest.mark.long]

LONG = "\n".join(f"Line {n} of what the customer wrote to the desk." for n in range(1, 10))


class Meeting:
    """A deployment, an agent that asks, and the browser of who answers."""

    def __init__(self, deployment: Deployment, browser: Browser, agent: Agent) -> None:
        self.deployment, self.browser, self.agent = deployment, browser, agent

    async def window(self, **options: Any) -> Page:
        url = self.deployment.url
        context = await self.browser.new_context(base_url=url, reduced_motion="reduce", **options)
        context.set_default_timeout(TIMEOUT_MS)
        return await context.new_page()

    async def stage(self, amount: int, **args: Any) -> dict[str, Any]:
        """The agent submits a refund; the current transaction."""

        async def there(world: World) -> dict[str, Any]:
            answer = await self.agent.submit(await refund(world, amount, **args), run_key=f"run-{amount}")
            view: dict[str, Any] = answer.json()
            return view

        return await asyncio.to_thread(self.deployment.do, there)

    async def state(self, view: dict[str, Any]) -> str:
        """The final state of the effect."""
        seen = await asyncio.to_thread(self.deployment.do, lambda _: self.agent.see(view["txn"]))
        return str(seen["effects"][0]["state"])


@pytest.fixture
async def meeting(tmp_path: Path, browser: Browser) -> AsyncIterator[Meeting]:
    with acme_deployment(tmp_path / "data") as acme:
        yield Meeting(acme, browser, await asyncio.to_thread(acme.do, lambda world: world.agent()))
        for context in browser.contexts:
            await context.close()


def path_of(view: dict[str, Any]) -> str:
    return f"/reviews/{view['effects'][0]['review']['review_id']}"


async def seen(page: Page) -> Locator:
    """What has the focus: one can see that it has it, and nothing lies upon it (WCAG 2.4.7 and 2.4.11)."""
    found = await page.evaluate(
        """() => {
            const node = document.activeElement, ring = getComputedStyle(node), box = node.getBoundingClientRect();
            const after = getComputedStyle(node, "::after");
            const drawn = (one) => one.outlineStyle !== "none" && parseFloat(one.outlineWidth) >= 2;
            const ringed = drawn(ring) || drawn(after);
            const sibling = node.matches(".pick input") && drawn(getComputedStyle(node.nextElementSibling));
            const hit = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
            const top = hit !== null && (node.contains(hit) || hit.contains(node));
            return [`${node.tagName} ${node.textContent.trim().slice(0, 40)}`, ringed || sibling, top];
        }"""
    )
    assert found[1:] == [True, True], found
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
    assert [await meeting.state(view) for view in (approved, denied)] == ["released", "denied"]


async def test_the_essential_path_without_scripts(meeting: Meeting) -> None:
    approved, denied = await meeting.stage(31_000, reason=LONG), await meeting.stage(32_000)
    page = await meeting.window(java_script_enabled=False)
    await page.goto("/")
    await sign_in(page, "maya")
    await page.locator(f'[data-review="{path_of(approved).removeprefix("/reviews/")}"] a').click()
    await page.locator("#approve > summary").click()
    await expect(page.locator("#approve form")).to_have_count(0)  # folded arguments cannot be approved
    await page.get_by_role("link", name="Show everything").click()
    await expect(page.locator(".args").get_by_text("Line 9 of what")).to_be_visible()
    await page.locator("#approve > summary").click()
    await page.get_by_role("button", name="Countersign and release", exact=True).click()
    await expect(page.get_by_role("status").filter(has_text="Approved")).to_be_visible()
    await page.goto(path_of(denied))
    await page.locator("#deny > summary").click()
    await page.get_by_label("Wrong person or account").check()
    await page.get_by_role("button", name="Deny this effect").click()
    await expect(page.get_by_text("“Wrong person or account”")).to_be_visible()
    await page.locator(".account > summary").click()
    await page.get_by_role("button", name="Sign out", exact=True).click()
    await expect(page.get_by_role("heading", name="Sign in to decide")).to_be_visible()
    assert [await meeting.state(view) for view in (approved, denied)] == ["released", "denied"]
