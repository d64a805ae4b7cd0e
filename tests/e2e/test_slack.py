"""Deciding in the page of Slack: an agent of the SDK waits, a browser presses, the effect fires or does not.

Each path is walked over HTTP and over Socket Mode: to the agent and to the person there is no difference. The agent
runs in threads of its own, as it would in a process of its own: it knows the service by its address.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, expect

from countersign import Runtime, Settings, ToolRegistry, Transaction, tool, transaction
from countersign.contract import PrivateKey
from countersign.manifests.drafts import manifest_json
from tests.counterparts.slack import SlackServer
from tests.e2e.slack_page import SlackPage, open_slack
from tests.fakes.desk import changed, write_key
from tests.fakes.payments import Payments
from tests.fakes.slack_faults import SlackFaults, failing_slack
from tests.integration.slack.office import APPROVALS, Office, opened, until

pytestmark = pytest.mark.anyio

ACCOUNT, RUN = "acct-1", "run-acct-1"
WAYS = ["events", pytest.param("socket", marks=pytest.mark.long)]


class Robot:
    """An agent with a key, a journal and one tool; what its tool did to the world is in `paid`."""

    def __init__(self, settings: Settings) -> None:
        self.registry, self.paid = ToolRegistry(), list[tuple[str, int]]()

        @tool("pay", resource=("Account", "account"), registry=self.registry)
        def pay(account: str, amount: int) -> str:
            """Pay somebody."""
            self.paid.append((account, amount))
            return f"p-{account}"

        self.pay = pay
        self.runtime = Runtime(settings, registry=self.registry)

    def asks(self, **how: Any) -> asyncio.Task[str]:
        """Stage a payment and commit, waiting for people; the task ends as the transaction does."""

        def pays() -> str:
            with transaction(RUN, runtime=self.runtime, wait=45.0, **how):
                done = self.pay(ACCOUNT, 500)
            return done.result

        return asyncio.create_task(asyncio.to_thread(pays))


@dataclass
class Workday:
    """The office while a person is before the page of Slack."""

    office: Office
    robot: Robot
    page: SlackPage

    async def card(self) -> Locator:
        """The message about the payment, as soon as it is shown."""
        message = self.page.message((await self.office.card(APPROVALS))["ts"])
        await expect(message).to_be_visible()
        return message

    async def says(self, message: Locator, *texts: str) -> str:
        """The message once it says all of this."""

        async def there() -> str | None:
            read = await self.page.text(message)
            return read if all(text in read for text in texts) else None

        return await until(there)

    async def thread_says(self, message: Locator, *texts: str) -> list[str]:
        """The replies under a message once they say all of this."""

        async def there() -> list[str] | None:
            replies = await self.page.thread(message)
            return replies if all(text in "\n".join(replies) for text in texts) else None

        return await until(there)

    async def votes(self) -> int:
        """How many votes the log has that came in time."""
        lines = await self.office.world.log(Transaction(self.robot.runtime, RUN).txn)
        return len([kind for kind, body in lines if kind == "vote_recorded" and not body.get("late")])


@pytest.fixture(scope="module", params=WAYS)
def a_slack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, SlackServer, SlackFaults]]:
    with failing_slack(tmp_path_factory.mktemp("slack"), mode=request.param) as both:
        yield ("signing" if request.param == "events" else "app", *both)


def settings(folder: Path, url: str, name: str) -> tuple[Settings, PrivateKey]:
    """What an agent's process knows: its name, its key, the service's address."""
    private = PrivateKey.generate()
    key = write_key(folder / f"{name}.pem", private)
    return Settings(url, name, key, folder / f"{name}.db", allow_dev=True, retry_base_seconds=0.01), private


@pytest.fixture
async def day(
    tmp_path: Path, a_slack: tuple[str, SlackServer, SlackFaults], browser: Browser
) -> AsyncIterator[Workday]:
    """A service with Slack before it, its agent enrolled, maya before the page of Slack."""
    way, slack, faults = a_slack
    await slack.reset()
    faults.calls.clear()
    bundle = Payments(tmp_path / "bundle")
    (pay,) = Robot(settings(tmp_path, "http://127.0.0.1:1", "unused")[0]).registry
    manifest = changed(pay.draft_manifest(), sentence="Pay {amount} to {account}")
    bundle.write("tools/pay.json", manifest_json(manifest))
    async with opened(tmp_path, slack, faults, bundle.path, ways=(way,)) as office:
        known, private = settings(tmp_path, office.world.settings.public_url, "payer")
        args = {"name": "payer", "roles": ["support-agent"], "jwk": private.public.jwk()}
        await office.world.operator("agent-enroll", args)
        await office.link("maya")
        robot, page = Robot(known), await open_slack(browser, slack, "dana")
        await page.open_channel("approvals")
        yield Workday(office, robot, page)
        robot.runtime.close()
        await page.page.context.close()


async def test_an_approval_fires_the_effect_once_and_the_message_shows_it(day: Workday) -> None:
    paying = day.robot.asks()
    card = await day.card()
    await day.says(card, "Pay 500 to acct-1", '"amount": 500', "0 of 1 approvals by finance")
    assert await day.page.labels(card) == ["Approve", "Deny…", "Ask…", "Edit on the web", "Open"]
    assert day.robot.paid == []

    await day.page.press(card, "Approve")
    assert await paying == "p-acct-1"
    assert day.robot.paid == [(ACCOUNT, 500)]
    text = await day.says(card, "Approved by Maya", "Fired")
    assert text.count("Pay 500 to acct-1") == 1
    assert await day.page.labels(card) == ["Open"]
    story = await day.thread_says(card, "Fired")
    assert [re.split("[:·]", line)[0].strip() for line in story] == ["Voted to approve", "Released", "Fired"]
    assert await day.votes() == 1
