"""A real browser, a real identity provider and the real service: sign in, countersign, be named in the release."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from countersign.contract import ReleaseClaims
from tests.e2e.conftest import TIMEOUT_MS
from tests.fakes.world import Agent, World
from tests.integration.identity.test_people import Deployment, acme_deployment
from tests.integration.service.effects import refund

pytestmark = pytest.mark.anyio


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    with acme_deployment(tmp_path / "data") as running:
        yield running


async def sign_in(page: Page, login: str) -> None:
    """As a person does: our button, the provider's form, its question whether we may know them."""
    await page.get_by_role("link", name="Continue with Acme SSO").click()
    await page.locator("input[name=login]").fill(login)
    await page.locator("input[name=password]").fill("anything")
    await page.get_by_role("button", name="Sign-in").click()
    await page.get_by_role("button", name="Continue").click()


async def _stage(world: World) -> tuple[Agent, dict[str, Any]]:
    agent = await world.agent()
    return agent, (await agent.submit(await refund(world, 20_000))).json()


async def _release(world: World, agent: Agent, txn: str) -> ReleaseClaims:
    released = await agent.release(await agent.see(txn))
    return world.release_of(released.json()["releases"][0])


async def test_a_signed_in_person_is_named_in_the_release(deployment: Deployment, browser: Browser) -> None:
    agent, staged = await asyncio.to_thread(deployment.do, _stage)
    review = staged["effects"][0]["review"]["review_id"]
    context = await browser.new_context(reduced_motion="reduce", base_url=deployment.url)
    page = await context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    await page.goto(f"/reviews/{review}")
    await sign_in(page, "maya")
    await expect(page).to_have_url(f"{deployment.url}/reviews/{review}")
    await page.locator("#approve > summary").click()
    await page.get_by_role("button", name="Countersign and release").click()
    await expect(page.locator("article")).to_contain_text("Finance, 1 of 1")
    await context.close()
    release = await asyncio.to_thread(deployment.do, lambda world: _release(world, agent, staged["txn"]))
    assert release.decision.assurance == "oidc"
    assert len(release.decision.votes) == 1
