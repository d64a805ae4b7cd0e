"""Take pictures of the messages in Slack, to look at them: `python -m tests.e2e.slack_shots --to FOLDER`.

The made-up afternoon of `tests/fakes/afternoon.py` before the third-party Slack, Debian's Chromium at its page, on a
desk and on a phone. Slack's own client draws rich text, dates and colours otherwise; order, words and length are these.
With `--blocks` what was sent is written as JSON, for another renderer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Browser, Locator, async_playwright
from slack_sdk.web.async_client import AsyncWebClient

from policy_service.channels.slack.drawing.digest import DigestLine, digest
from policy_service.workflow.pages.queue import queue_page
from policy_service.workflow.reading.queue import Tab, Wanted
from policy_service.workflow.slack.inviting import invite
from policy_service.workflow.slack.subjects import ONLOOKER
from tests.counterparts import require
from tests.counterparts.slack import SlackServer
from tests.e2e.conftest import FLAGS
from tests.e2e.slack_page import SlackPage, open_slack
from tests.fakes import northwind
from tests.fakes.afternoon import NOW, PROVIDER, Afternoon
from tests.fakes.slack_accounts import account
from tests.fakes.slack_faults import failing_slack
from tests.fakes.world import Clock
from tests.integration.slack.office import APPROVALS, Office, opened, until, words

LONG: Final = "<p>Winter fares from 49.00 to forty places; read the terms below.</p>\n" * 60
SHOTS: Final = {
    "short": "credit-1130",
    "medium": "dana",
    "too-long": "newsletter",
    "hostile": "hostile",
    "two-person": "deploy",
    "decided": "halved",
    "fired": "amara",
    "denied": "frozen",
}
WINDOWS: Final = {"desk": (1280, 1600), "phone": (560, 1900)}  # the page keeps a sidebar of 220


class Quick(Clock):
    """It runs from wherever it was put, thirty times as fast: what is paced by the second need not be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.stop_at(NOW - timedelta(days=2))

    def __call__(self) -> datetime:
        return self._at + 30 * timedelta(seconds=time.monotonic() - self._since)

    def stop_at(self, moment: datetime) -> None:
        self._at, self._since = moment, time.monotonic()

    def pass_(self, **delta: float) -> None:
        self.stop_at(self() + timedelta(**delta))

    def go_on(self) -> None:
        """It always does."""


@dataclass
class Gallery:
    """The afternoon before Slack, and the pictures of it."""

    office: Office
    story: Afternoon
    to: Path
    blocks: dict[str, Any] = field(default_factory=dict)

    @property
    def slack(self) -> SlackServer:
        return self.office.slack

    async def everything_happens(self) -> None:
        """All that stands in the channel."""
        story = self.story
        await story.happen()
        letter = {"from": "news@northwind.example", "audience": "all-customers", "subject": "Winter fares",
                  "preheader": "From 49.00", "body_html": LONG, "send_at": "9:00"}  # fmt: skip
        await story.stage("newsletter", "campaign-writer", ("send_campaign", letter))
        await self.link("maya", "dana")
        await self.message_of("deploy")
        await story.say("deploy", "maya", "Which dashboards do you watch?", "question")
        await story.answer("deploy", "ship-bot", "checkout-captures and tax-rounding; *both* are <green>.")
        await story.say("deploy", "wen", "Tax rounding is green here too.")
        await self.message_of("amara")
        await story.vote("amara", "ingrid")
        await story.fire("amara", "refund-desk")

    async def link(self, sub: str, name: str) -> None:
        """Somebody says on the web which account is theirs."""
        ctx, app = self.office.world.service.ctx, self.office.app
        whose = account(self.slack.users[name], name, team_id=app.team_id, email=f"{sub}@northwind.example")
        secret = (await invite(ctx, app, whose)).partition("invitation=")[2]
        answer = await self.story.people[sub].send("/slack/link", invitation=secret)
        assert answer.status_code == 303, answer.text

    async def message_of(self, word: str, says: str = "") -> dict[str, Any]:
        """The message about a review, named by its first block, once it says this."""
        named = f"cs/{self.story.reviews[word]}/"

        async def there() -> dict[str, Any] | None:
            kept = await self.slack.messages(APPROVALS)
            mine = (one for one in kept if str(one["blocks"][0].get("block_id")).startswith(named))
            return next((one for one in mine if says in words(one["blocks"])), None)

        return await until(there, 60)

    async def post_a_digest(self) -> None:
        """As it would stand there if all of these had come at once."""
        page = await queue_page(self.office.world.service.ctx, ONLOOKER, Wanted(Tab.OPEN), None, 20)
        lines = [DigestLine(row.review_id, row.sentence, row.state, row.answer_by) for row in page.rows]
        url, now = self.office.world.settings.public_url, self.office.world.clock()
        drawn = digest(lines, 12, digest_id="card_1", outbox_id="slk_1", public_url=url, now=now)
        web = AsyncWebClient(token=self.slack.bot_token, base_url=self.slack.api_url)
        await web.chat_postMessage(
            channel=self.slack.channels["payments"], text=drawn.text, blocks=list(drawn.blocks)
        )

    async def take_cards(self, browser: Browser, window: str) -> None:
        """Every card that stands, the thread of one, a form, the Home, a digest."""
        width, height = WINDOWS[window]
        page = await open_slack(browser, self.slack, "dana", width=width, height=height)
        await page.open_channel("approvals")
        for name, word in SHOTS.items():
            await self._card(page, window, name, word)
        for word in ("deploy", "amara"):
            await page.thread(page.message((await self.message_of(word))["ts"]))
            for reply in await page.page.locator(".thread-body .msg").all():
                await page.text(reply)
            await page.page.locator(".thread-body").screenshot(path=self.to / f"thread-{word}-{window}.png")
            await page.page.locator(".thread-x").click()
        await page.open_channel("payments")
        [kept] = await self.slack.messages(self.slack.channels["payments"])
        await self._picture(page, f"digest-{window}", page.message(kept["ts"]), kept["blocks"])
        await page.open_channel("approvals")
        for label in ("Deny", "Ask"):
            await page.press(page.message((await self.message_of("credit-1130"))["ts"]), label)
            modal = await page.modal()
            [view] = await self.slack.modals()
            await self._picture(page, f"modal-{label.lower()}-{window}", modal, view["blocks"])
            await self.slack.close_view(self.slack.users["dana"])
            await page.expect_no_modal()
        home = await page.open_home()
        view = await until(lambda: self.slack.home(self.slack.users["dana"]))
        await self._picture(page, f"home-{window}", home, view["blocks"])
        await page.page.context.close()

    async def take_expired(self, browser: Browser, window: str) -> None:
        """One that nobody answered."""
        width, height = WINDOWS[window]
        page = await open_slack(browser, self.slack, "dana", width=width, height=height)
        await page.open_channel("approvals")
        await self._card(page, window, "expired", "credit-1130", "Expired")
        await page.page.context.close()

    async def _card(self, page: SlackPage, window: str, name: str, word: str, says: str = "") -> None:
        kept = await self.message_of(word, says)
        await self._picture(page, f"{name}-{window}", page.message(kept["ts"]), kept["blocks"])

    async def _picture(self, page: SlackPage, name: str, shown: Locator, blocks: list[Any]) -> None:
        await page.picture(shown, self.to / f"{name}.png", blocks)
        self.blocks[name] = blocks


async def visit(folder: Path, to: Path) -> dict[str, Any]:
    """Take them all; the blocks behind each."""
    path = require("chromium", shutil.which("chromium"), "apt-get install chromium fonts-liberation")
    flags = [*FLAGS, "--no-sandbox"] if os.geteuid() == 0 else FLAGS
    bundle = northwind.bundle(folder / "policies")
    more = {"clock": Quick(), "providers": (PROVIDER,), "app": {"digest_above": 100}}
    with failing_slack(folder, mode="socket") as (slack, faults):
        async with (
            opened(folder, slack, faults, bundle, ways=("app",), **more) as office,
            async_playwright() as playwright,
        ):
            gallery = Gallery(office, Afternoon(office.world), to)
            await gallery.everything_happens()
            await gallery.post_a_digest()
            browser = await playwright.chromium.launch(executable_path=path, args=flags)
            for window in WINDOWS:
                await gallery.take_cards(browser, window)
            office.world.clock.pass_(days=8)
            await office.world.sweep()
            for window in WINDOWS:
                await gallery.take_expired(browser, window)
            await browser.close()
            return gallery.blocks


def main() -> None:
    """Take them all."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.slack_shots", description=__doc__)
    parser.add_argument("--to", type=Path, required=True, help="the folder")
    parser.add_argument("--blocks", type=Path, help="a file for what was sent, as JSON")
    asked = parser.parse_args()
    asked.to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="slack-shots-") as name:
        blocks = asyncio.run(visit(Path(name), asked.to))
    if asked.blocks is not None:
        asked.blocks.write_text(json.dumps(blocks, indent=1, ensure_ascii=False))
    print(f"{len(blocks)} pictures are in {asked.to}")


if __name__ == "__main__":
    main()
