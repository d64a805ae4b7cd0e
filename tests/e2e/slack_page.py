"""The page of the third-party Slack, in a browser: what a person does there and what they are shown.

It has no confirm dialogs: a press is sent at once. It writes `[rich_text]` in place of rich text, so the driver
draws that itself before it reads or takes a picture. Ephemeral messages and modals are shown to everybody who has the
page open, so a test opens one page at a time for those.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from playwright.async_api import Browser, Locator, Page, expect

from tests.counterparts.slack import PEOPLE, SlackServer

TIMEOUT_MS: Final = 10_000
_RICH_TEXT: Final = (Path(__file__).parent / "slack_rich_text.js").read_text()


@dataclass(frozen=True)
class SlackPage:
    """One person before the page; use `page` for everything else."""

    slack: SlackServer
    page: Page

    async def act_as(self, name: str) -> None:
        """Be another person, by the name in `PEOPLE`; bots cannot be acted as."""
        box = self.page.locator("label.actas", has_text="Act as").locator("select")
        await box.select_option(str(PEOPLE[name]["id"]))

    async def open_channel(self, name: str) -> None:
        """Look at #approvals or #payments."""
        await self._sidebar(rf"#{re.escape(name)}")
        await expect(self.page.locator(".channel-title")).to_have_text(f"# {name}")

    def message(self, ts: str) -> Locator:
        """A message of the open channel, or of the open thread's beginning."""
        return self.page.locator(f'.messages .msg[data-ts="{ts}"]')

    async def press(self, message: Locator, label: str) -> None:
        """Press a button by its label, in a message, a reply or the Home; it is sent at once, without a dialog."""
        await message.locator(".bk-button", has_text=label).click()

    async def labels(self, message: Locator) -> list[str]:
        """The buttons of a message."""
        return await message.locator(".bk-button").all_inner_texts()

    async def text(self, message: Locator) -> str:
        """A message as people read it: its blocks, or its text where it has none."""
        await message.evaluate(_RICH_TEXT)
        return await message.locator(".blocks, .msg-text").first.inner_text()

    async def thread(self, message: Locator) -> list[str]:
        """Open the thread under a message; answers its replies as people read them."""
        await message.hover()
        await message.get_by_title("Reply in thread").click()
        replies = self.page.locator(".thread-body .thread-divider ~ .msg")
        return [await self.text(reply) for reply in await replies.all()]

    async def picture(self, message: Locator, file: Path) -> None:
        """A picture of one message, without the buttons that appear under the pointer."""
        await self.page.mouse.move(0, 0)
        await message.evaluate(_RICH_TEXT)
        await message.scroll_into_view_if_needed()
        await message.screenshot(path=file)

    async def _sidebar(self, label: str) -> None:
        items = self.page.locator(".sidebar-item")
        await items.filter(has_text=re.compile(rf"^\s*{label}\s*$")).click()


async def open_slack(
    browser: Browser, slack: SlackServer, name: str, *, width: int = 1200, height: int = 900
) -> SlackPage:
    """A window of its own with the page in it, acting as this person; the caller closes `page.context`."""
    context = await browser.new_context(
        viewport={"width": width, "height": height}, reduced_motion="reduce", base_url=slack.url
    )
    context.set_default_timeout(TIMEOUT_MS)
    page = await context.new_page()
    await page.goto(slack.ui_url)
    await expect(page.locator(".sidebar-item").first).to_be_visible()
    opened = SlackPage(slack, page)
    await opened.act_as(name)
    return opened
