"""A real browser before the real service on a busy afternoon: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from playwright.async_api import Browser, BrowserContext, FloatRect, Page, async_playwright

from tests.counterparts import require
from tests.fakes.afternoon import Afternoon, Args, afternoon, refund
from tests.fakes.listening import Listening

T = TypeVar("T")

FLAGS = [
    "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
TIMEOUT_MS = 10_000


def lands_on(first: FloatRect | None, second: FloatRect | None) -> bool:
    """Whether a press in the middle of one box would be one on the other; both are on the page."""
    assert first
    assert second
    x, y = first["x"] + first["width"] / 2, first["y"] + first["height"] / 2
    inside = second["x"] <= x <= second["x"] + second["width"]
    return inside and second["y"] <= y <= second["y"] + second["height"]


@dataclass
class Site:
    """The service under a browser: its afternoon, its address, its one browser."""

    service: Listening
    story: Afternoon
    browser: Browser
    contexts: list[BrowserContext] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.service.url

    async def visitor(self, who: str = "maya", width: int = 1280, height: int = 880, js: bool = True) -> Page:
        """A signed-in person with a window of this size."""
        context = await self.browser.new_context(
            viewport={"width": width, "height": height}, java_script_enabled=js, base_url=self.url,
            reduced_motion="reduce",  # colours on their way from one to another fail any contrast check
        )  # fmt: skip
        context.set_default_timeout(TIMEOUT_MS)
        self.contexts.append(context)
        cookie = self.story.people[who].visitor.cookie
        await context.add_cookies([{"name": "countersign_dev", "value": cookie, "url": self.url}])
        page = await context.new_page()
        page.on("console", lambda message: _heard.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: _heard.append(f"pageerror: {error}"))
        return page

    async def do(self, work: Callable[[Afternoon], Awaitable[T]]) -> T:
        """Something that agents or other people do meanwhile."""
        return await asyncio.to_thread(self.service.do, lambda _: work(self.story))

    async def stage(self, word: str, agent: str, tool: str, args: Args) -> str:
        """An agent asks; the id of the review."""
        await self.do(lambda story: story.stage(word, agent, (tool, args)))
        return self.story.reviews[word]

    async def refund(self, word: str, cents: int = 5_100, memo: str = "") -> str:
        """The desk asks for a refund; the path of its review."""
        args = refund(cents, "Dana Whitfield", "4242", "cus_1042", "cancelled", memo)
        return f"/reviews/{await self.stage(word, 'refund-desk', 'refund', args)}"

    async def view(self, path: str) -> dict[str, Any]:
        """A review or a task as the API returns it."""
        answer = await self.do(lambda story: story.people["maya"].visitor.get(f"/v1{path}"))
        found: dict[str, Any] = answer.json()
        return found

    async def votes(self, path: str) -> list[tuple[str, str | None]]:
        """Verdicts and reasons on a review."""
        return [(vote["verdict"], vote.get("reason")) for vote in (await self.view(path))["votes"]]


_heard: list[str] = []


@pytest.fixture
def heard() -> list[str]:
    """What the browser's console said during this test."""
    _heard.clear()
    return _heard


def chromium() -> dict[str, Any]:
    """How Playwright launches Debian's."""
    way = "apt-get install chromium fonts-dejavu fonts-noto-color-emoji fonts-liberation"
    path = require("chromium", shutil.which("chromium"), way)
    return {"executable_path": path, "args": [*FLAGS, "--no-sandbox"] if os.geteuid() == 0 else FLAGS}


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(**chromium())
        yield launched
        await launched.close()


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Listening, Afternoon]]:
    """The service of a file's tests."""
    with afternoon(tmp_path_factory.mktemp("afternoon")) as (service, story):
        yield service, story


@pytest.fixture
async def site(browser: Browser, town: tuple[Listening, Afternoon]) -> AsyncIterator[Site]:
    site = Site(*town, browser)
    yield site
    for context in site.contexts:
        await context.close()
