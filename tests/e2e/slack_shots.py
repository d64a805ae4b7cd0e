"""Take the pictures of `docs/how-to/slack.md` anew: `python -m tests.e2e.slack_shots`, in the folder `docs/pictures`.

The made-up afternoon of `tests/fakes/afternoon.py` before the third-party Slack, Debian's Chromium at its page.
Slack's own client draws rich text, dates and colours otherwise; order, words and length are these.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path

from playwright.async_api import async_playwright

from tests.counterparts.slack import SlackServer
from tests.e2e.conftest import chromium
from tests.e2e.shots import PICTURES
from tests.e2e.slack_page import open_slack
from tests.fakes import northwind
from tests.fakes.afternoon import NOW, PROVIDER, Afternoon, deploy
from tests.fakes.slack_faults import failing_slack
from tests.fakes.world import Clock
from tests.integration.slack.office import APPROVALS, opened, until, words


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


async def message_of(slack: SlackServer, review: str, says: str = "") -> str:
    """The ts of the message about a review, once it says this."""

    async def there() -> str:
        for one in await slack.messages(APPROVALS):
            block = str(one["blocks"][0].get("block_id"))
            if block.startswith(f"cs/{review}/") and says in words(one["blocks"]):
                return str(one["ts"])
        return ""

    return await until(there, 60)


async def visit(folder: Path, to: Path) -> None:
    """Take them all."""
    bundle = northwind.bundle(folder / "policies")
    more = {"clock": Quick(), "providers": (PROVIDER,), "app": {"digest_above": 100}}
    with failing_slack(folder, mode="socket") as (slack, faults):
        office_of = opened(folder, slack, faults, bundle, ways=("app",), **more)
        async with office_of as office, async_playwright() as by:
            story = Afternoon(office.world)
            await story.happen()
            await story.stage("refused", "ship-bot", ("deploy", deploy("4.17.9", traffic_percent=50)))
            await message_of(slack, story.reviews["refused"])
            await story.vote("refused", "wen", "deny", "Not during the fare release; try after 14:00")
            refused = await message_of(slack, story.reviews["refused"], "Denied")
            shots = {"two-person": await message_of(slack, story.reviews["deploy"]), "denied": refused}
            browser = await by.chromium.launch(**chromium())
            page = await open_slack(browser, slack, "dana", width=1280, height=1600)
            await page.open_channel("approvals")
            for name, ts in shots.items():
                await page.picture(page.message(ts), to / f"slack-{name}.png")
            await browser.close()


def main() -> None:
    """Take them all."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.slack_shots", description=__doc__)
    parser.add_argument("--to", type=Path, default=PICTURES, help="the folder")
    with tempfile.TemporaryDirectory(prefix="slack-shots-") as name:
        asyncio.run(visit(Path(name), parser.parse_args().to))


if __name__ == "__main__":
    main()
