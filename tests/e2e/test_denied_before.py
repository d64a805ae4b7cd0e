"""What was denied a short while ago, in a browser: beside the buttons, and where somebody is about to sign."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import expect

from policy_service.workflow.reading.reviews import DeniedBefore
from tests.e2e.conftest import Site
from tests.fakes import reviews

pytestmark = [pytest.mark.anyio, pytest.mark.long]

BEFORE = DeniedBefore("rev_denied", reviews.NOW, "Tomás Reyes", "no photo in the ticket", ("memo",))


@pytest.mark.parametrize("scheme", ["dark", "light"])
async def test_a_phone_tells_of_it_before_anybody_signs(site: Site, scheme: Any) -> None:
    site.world.put(reviews.refund("rev_again", denied_before=(BEFORE,)))
    page = await site.visitor(scheme=scheme, width=390, height=844)
    await page.goto("/reviews/rev_again?full=1")
    await expect(page.get_by_role("heading", name="Denied before")).to_be_visible()
    await page.locator("#approve > summary").click()
    await expect(page.locator("#approve").get_by_text("Denied before")).to_be_in_viewport()
    assert (await Axe().run(page)).response["violations"] == []
