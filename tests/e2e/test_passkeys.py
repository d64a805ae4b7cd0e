"""A real browser with a virtual authenticator, a real provider and the real service: enrol, step up, be refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from examples.local_service import free_port
from policy_service.storage.core import find
from policy_service.storage.system_tables import AssertionRow
from tests.counterparts import node
from tests.e2e.conftest import TIMEOUT_MS
from tests.e2e.test_signing_in import sign_in
from tests.fakes.listening import Listening
from tests.fakes.payments import ANYBODY, Payments, gate
from tests.fakes.world import Agent, World
from tests.integration.identity.test_people import OIDC, PEOPLE, SCOPES, SECRET
from tests.integration.service.effects import pay

pytestmark = [pytest.mark.anyio, pytest.mark.long]

DEVICE = {
    "protocol": "ctap2", "transport": "internal", "hasResidentKey": True, "hasUserVerification": True,
    "isUserVerified": True, "automaticPresenceSimulation": True,
}  # fmt: skip


class Deployment(Listening):
    """The service at a name: browsers bind no passkey to a bare address."""

    def __init__(self, data: Path, bundle: Path, port: int, **settings: Any) -> None:
        super().__init__(data, bundle, dev_signin=False, **settings)
        self.url = f"http://localhost:{port}"


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    bundle = Payments(tmp_path / "bundle")
    bundle.policies(ANYBODY + gate("careful", "finance", step_up="passkey"))
    port = free_port()
    callback = f"http://localhost:{port}/sign-in/acme/callback"
    with node.oidc_provider(callback, PEOPLE, client_secret=SECRET) as issuer:
        more = {"groups_claim": "groups", "scopes": SCOPES}
        provider = OIDC | {"name": "acme", "issuer": issuer} | more
        with Deployment(tmp_path / "data", bundle.path, port, providers=(provider,)) as running:
            yield running


async def _stage(world: World) -> tuple[Agent, dict[str, Any]]:
    agent = await world.agent("robot")
    return agent, (await agent.submit(await pay(world, 500))).json()


async def _assertions(world: World) -> list[AssertionRow]:
    return await world.service.db.read(lambda conn: find(conn, AssertionRow))


async def test_a_person_countersigns_with_a_new_passkey(deployment: Deployment, browser: Browser) -> None:
    agent, staged = await asyncio.to_thread(deployment.do, _stage)
    review = f"/reviews/{staged['effects'][0]['review']['review_id']}"
    context = await browser.new_context(base_url=deployment.url, reduced_motion="reduce")
    context.set_default_timeout(TIMEOUT_MS)
    first = await context.new_page()
    await first.goto("/passkeys")
    await sign_in(first, "maya")
    await first.get_by_role("link", name="Sign in again with Acme SSO").click()  # a first passkey wants that
    await first.locator("input[name=login]").fill("maya")
    await first.locator("input[name=password]").fill("anything")
    await first.get_by_role("button", name="Sign-in").click()
    await expect(first.get_by_role("heading", name="Add a passkey")).to_be_visible()

    page = await context.new_page()  # a tab of its own, opened on our own page
    await page.goto("/passkeys")
    cdp = await context.new_cdp_session(page)
    await cdp.send("WebAuthn.enable", {"enableUI": False})
    added = await cdp.send("WebAuthn.addVirtualAuthenticator", {"options": DEVICE})
    authenticator = added["authenticatorId"]
    await page.get_by_label("What do you call it?").fill("my laptop")
    await page.get_by_role("button", name="Add a passkey").click()
    await page.get_by_role("button", name="Make the passkey").click()
    await expect(page.locator(".keyrows li")).to_contain_text(["my laptop"])

    await page.goto(review)
    await page.locator("#approve > summary").click()
    await page.get_by_role("button", name="Continue with your passkey").click()
    await expect(page.get_by_role("heading", name="Confirm with your passkey")).to_be_visible()

    await cdp.send("WebAuthn.setUserVerified", {"authenticatorId": authenticator, "isUserVerified": False})
    await page.get_by_role("button", name="Use my passkey").click()
    await expect(page.locator("#status")).to_contain_text("Nothing was confirmed")
    assert await asyncio.to_thread(deployment.do, _assertions) == []

    await cdp.send("WebAuthn.setUserVerified", {"authenticatorId": authenticator, "isUserVerified": True})
    await page.get_by_role("button", name="Use my passkey").click()
    await expect(page.get_by_role("status").filter(has_text="Approved")).to_be_visible()
    (kept,) = await asyncio.to_thread(deployment.do, _assertions)
    assert kept.signed["effect_digest"] == staged["effects"][0]["effect_digest"]
    view = await asyncio.to_thread(deployment.do, lambda world: agent.see(staged["txn"]))
    assert view["effects"][0]["state"] == "released"

    await first.goto("/")  # the same browser: it is the same session that did it
    await expect(first.get_by_text("changed in another session")).to_have_count(0)
    await context.close()
