"""Several people on one review, in Slack and on the web; and what nobody decided."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.e2e.slack.office import LARGE, Workday, approve_on_the_web

pytestmark = [pytest.mark.anyio, pytest.mark.long]


@pytest.mark.parametrize("first", ["slack", "web"])
async def test_two_people_sign_one_in_slack_and_one_on_the_web_in_either_order(
    day: Workday, first: str
) -> None:
    await day.office.link("maya")
    dana = await day.slack_page("dana")
    paying = day.robot.asks("acct-1", LARGE)
    card = await day.card(dana, "acct-1")
    await day.says(dana, card, "0 of 2 approvals by finance")
    tomas = await day.web_page("tomas", await day.review_path("acct-1"))
    if first == "slack":
        await dana.press(card, "Approve")
        await day.says(dana, card, "1 of 2 approvals by finance", "Maya")
        await tomas.reload()
        await expect(tomas.locator(".vote-done")).to_contain_text("Maya")
        assert not paying.done()
        await approve_on_the_web(tomas)
    else:
        await approve_on_the_web(tomas)
        await day.says(dana, card, "1 of 2 approvals by finance", "Tomas")
        assert not paying.done()
        await dana.press(card, "Approve")
    assert await paying == "p-acct-1"
    assert day.robot.paid == [("acct-1", LARGE)]
    told = await day.says(dana, card, "Fired")
    assert "Maya" in told and "Tomas" in told
    await tomas.goto(await day.review_path("acct-1"))
    await expect(tomas.get_by_role("status").filter(has_text="Fired")).to_be_visible()
    votes = await day.votes("acct-1")
    assert sorted(vote["channel"] for vote in votes) == ["slack", "web"]
