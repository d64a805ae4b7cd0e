"""An office in which an agent of the SDK asks, people answer in the page of Slack, and others on our own pages.

The agent runs in threads of its own, as it would in a process of its own: it knows the service by its address. What
its tool did to the world is in `paid`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from countersign import Placeholder, Runtime, Settings, ToolRegistry, Transaction, tool, transaction
from countersign.contract import PrivateKey
from countersign.manifests.drafting import manifest_json
from tests.counterparts.slack import SlackServer
from tests.e2e.slack_page import SlackPage, open_slack
from tests.fakes.desk import changed, write_key
from tests.fakes.payments import Payments
from tests.fakes.slack_faults import SlackFaults
from tests.integration.slack.office import APPROVALS, Office, opened, until

TIMEOUT_MS: Final = 10_000
HTTP: Final = "http"
BOTH_WAYS: Final = pytest.mark.parametrize(
    "way", [HTTP, pytest.param("socket-mode", marks=pytest.mark.long)], indirect=True, scope="module"
)
WAIT_S: Final = 45.0  # as long as the agent waits for people; a test is over long before
AMOUNT: Final = 500  # one person is asked
LARGE: Final = 5_000  # two are


@dataclass
class Robot:
    """An agent with a key, a journal and one tool."""

    settings: Settings
    registry: ToolRegistry = field(default_factory=ToolRegistry)
    paid: list[tuple[str, int]] = field(default_factory=list)
    pay: Callable[[str, int], Placeholder[str]] = field(init=False)
    runtime: Runtime = field(init=False)

    def __post_init__(self) -> None:
        @tool("pay", resource=("Account", "account"), registry=self.registry)
        def pay(account: str, amount: int) -> str:
            """Pay somebody."""
            self.paid.append((account, amount))
            return f"p-{account}"

        self.pay = pay
        self.runtime = Runtime(self.settings, registry=self.registry)

    def asks(self, account: str, amount: int = AMOUNT, **how: Any) -> asyncio.Task[str]:
        """Stage a payment and commit, waiting for people; the task ends as the transaction does."""
        return asyncio.create_task(asyncio.to_thread(self._pays, account, amount, how))

    def txn(self, account: str) -> str:
        """The transaction in which this payment is asked for."""
        return Transaction(self.runtime, _run_key(account)).txn

    def withdraw(self, account: str) -> None:
        """Take it back, as another part of the agent may."""
        self.runtime.client().withdraw(self.txn(account), "not needed any more")

    def _pays(self, account: str, amount: int, how: dict[str, Any]) -> str:
        with transaction(_run_key(account), runtime=self.runtime, **{"wait": WAIT_S, **how}):
            done = self.pay(account, amount)
        return done.result


def _run_key(account: str) -> str:
    return f"run-{account}"


@dataclass
class Workday:
    """The office while a browser is before it."""

    office: Office
    robot: Robot
    browser: Browser
    stack: AsyncExitStack

    @property
    def slack(self) -> SlackServer:
        return self.office.slack

    async def slack_page(self, name: str, **window: int) -> SlackPage:
        """Somebody's window with Slack in it, at the channel where people are asked."""
        page = await open_slack(self.browser, self.slack, name, **window)
        self.stack.push_async_callback(page.page.context.close)
        await page.open_channel("approvals")
        return page

    async def web_page(self, sub: str | None, path: str = "/") -> Page:
        """Somebody's window with our own pages in it; None: nobody is signed in yet."""
        url = self.office.world.settings.public_url
        context = await self.browser.new_context(base_url=url, reduced_motion="reduce")
        self.stack.push_async_callback(context.close)
        context.set_default_timeout(TIMEOUT_MS)
        if sub is not None:
            cookie = (await self.office.world.person(sub)).cookie
            await context.add_cookies([{"name": "countersign_dev", "value": cookie, "url": url}])
        page = await context.new_page()
        await page.goto(path)
        return page

    async def card(self, page: SlackPage, account: str) -> Locator:
        """The message about a payment, as soon as it stands before somebody."""

        async def posted() -> str | None:
            kept = await self.slack.messages(APPROVALS)
            return next((str(one["ts"]) for one in kept if account in str(one["blocks"])), None)

        message = page.message(await until(posted))
        await expect(message).to_be_visible()
        return message

    async def says(self, page: SlackPage, message: Locator, *texts: str) -> str:
        """The message once it says all of this."""

        read = ""

        async def there() -> str | None:
            nonlocal read
            read = await page.text(message)
            return read if all(text in read for text in texts) else None

        try:
            return await until(there)
        except AssertionError as error:
            raise AssertionError(f"it does not say {texts}, but {read!r}") from error

    async def thread_says(self, page: SlackPage, message: Locator, *texts: str) -> list[str]:
        """The replies under a message once they say all of this."""

        async def there() -> list[str] | None:
            replies = await page.thread(message)
            return replies if all(text in "\n".join(replies) for text in texts) else None

        return await until(there)

    async def votes(self, account: str) -> list[dict[str, Any]]:
        """The votes about a payment that came in time, as the log has them."""
        lines = await self.office.world.log(self.robot.txn(account))
        return [body for kind, body in lines if kind == "vote_recorded" and not body.get("late")]

    async def review_path(self, account: str) -> str:
        """Where the message about a payment leads on the web."""
        kept = await self.slack.messages(APPROVALS)
        (message,) = [one for one in kept if account in str(one["blocks"])]
        url = str(pressed_url(message["blocks"]))
        return url.removeprefix(self.office.world.settings.public_url)


def pressed_url(blocks: list[dict[str, Any]], action_id: str = "open") -> str:
    """Where a button leads: the page of Slack of the tests follows none."""
    buttons = [button for block in blocks for button in block.get("elements", ())]
    return next(str(one["url"]) for one in buttons if one.get("action_id") == action_id)


@asynccontextmanager
async def workday(
    tmp_path: Path, slack: SlackServer, faults: SlackFaults, browser: Browser, ways: tuple[str, ...]
) -> AsyncIterator[Workday]:
    """A service with Slack before it, its agent enrolled."""
    await slack.reset()
    faults.calls.clear()
    bundle = reviewed(tmp_path)
    async with AsyncExitStack() as stack:
        office = await stack.enter_async_context(opened(tmp_path, slack, faults, bundle.path, ways=ways))
        robot = Robot(await enrolled(office, tmp_path))
        stack.callback(robot.runtime.close)
        yield Workday(office, robot, browser, stack)


def reviewed(folder: Path) -> Payments:
    """The usual bundle, with the agent's own tool in it."""
    bundle = Payments(folder / "bundle")
    key = write_key(folder / "nobody.pem", PrivateKey.generate())
    draft = Robot(Settings("http://127.0.0.1:1", "nobody", key, folder / "nobody.db")).registry
    (pay,) = draft
    manifest = changed(pay.draft_manifest(), sentence="Pay {amount} to {account}")
    bundle.write("tools/pay.json", manifest_json(manifest))
    return bundle


async def enrolled(office: Office, folder: Path) -> Settings:
    """What the agent's process knows: its name, its key, the service's address."""
    private = PrivateKey.generate()
    args = {"name": "payer", "roles": ["support-agent"], "jwk": private.public.jwk()}
    await office.world.operator("agent-enroll", args)
    key = write_key(folder / "payer.pem", private)
    return Settings(
        office.world.settings.public_url,
        "payer",
        key,
        folder / "journal.db",
        allow_dev=True,
        retry_base_seconds=0.01,
    )
