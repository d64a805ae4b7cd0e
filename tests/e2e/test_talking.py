"""Writing on a review and asking its agent in a real browser, with and without scripts."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.e2e.conftest import Site
from tests.fakes import reviews

pytestmark = [pytest.mark.anyio, pytest.mark.long]

REVIEW = "/reviews/rev_talk"


@pytest.mark.parametrize("js", [True, False], ids=["scripts", "no scripts"])
async def test_a_comment_and_a_question_are_sent_and_shown(site: Site, heard: list[str], js: bool) -> None:
    site.world.put(reviews.talked(comments=()))
    page = await site.visitor(js=js)
    await page.goto(REVIEW)
    for words, button in (("Look at <b>this</b>\nand that", "Comment"), ("Which invoice?", "Ask the agent")):
        await page.get_by_label("Say something, or ask the agent").fill(words)
        await page.get_by_role("button", name=button).click()
        await expect(page.locator(".thread .words").last).to_contain_text(words.split("\n")[0])
    kinds = [(one.text, one.question) for one in site.world.pages["rev_talk"].comments]
    assert kinds == [("Look at <b>this</b>\nand that", False), ("Which invoice?", True)]
    await expect(page.get_by_text("No answer yet.")).to_be_visible()
    assert await page.locator(".thread .words b").count() == 0
    assert heard == []
