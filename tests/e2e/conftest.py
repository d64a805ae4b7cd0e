"""A real browser before the real pages: Debian's Chromium, driven by Playwright, over a socket on loopback."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from playwright.async_api import Browser, BrowserContext, FloatRect, Page, async_playwright

from tests.counterparts import require
from tests.fakes.web_queue import Settings, World, create_app, sample_world

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
    """The service under a browser: its world, its address, its one browser."""

    world: World
    url: str
    browser: Browser
    contexts: list[BrowserContext] = field(default_factory=list)

    async def visitor(self, *, width: int = 1280, height: int = 880, js: bool = True) -> Page:
        """A signed-in person with a window of this size."""
        context = await self.browser.new_context(
            viewport={"width": width, "height": height}, java_script_enabled=js, base_url=self.url,
            reduced_motion="reduce",  # colours on their way from one to another fail any contrast check
        )  # fmt: skip
        context.set_default_timeout(TIMEOUT_MS)
        self.contexts.append(context)
        cookie, _ = self.world.signed_in()
        await context.add_cookies([{"name": "countersign_dev", "value": cookie, "url": self.url}])
        page = await context.new_page()
        page.on("console", lambda message: _heard.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: _heard.append(f"pageerror: {error}"))
        return page


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


@pytest.fixture
async def site(browser: Browser) -> AsyncIterator[Site]:
    world = sample_world()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        config = uvicorn.Config(
            create_app(world, Settings(url)), log_level="warning", lifespan="off", timeout_graceful_shutdown=2
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        site = Site(world, url, browser)
        yield site
        for context in site.contexts:
            await context.close()
        world.closing = True
        server.should_exit = True
        await serving
