"""The page of the third-party Slack as its driver uses it, with a throw-away app behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect
from slack_sdk.web.async_client import AsyncWebClient

from tests.counterparts.slack import SlackServer, local_slack
from tests.e2e.slack_page import SlackPage, open_slack
from tests.integration.counterparts.receiver import Receiver, receiving
from tests.integration.counterparts.test_slack import BUTTONS, REASON

pytestmark = pytest.mark.anyio


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


@pytest.fixture
def slack(tmp_path: Path, receiver: Receiver) -> Iterator[SlackServer]:
    with local_slack(tmp_path, request_url=receiver.url) as slack:
        yield slack


@pytest.fixture
async def dana(browser: Browser, slack: SlackServer) -> AsyncIterator[SlackPage]:
    page = await open_slack(browser, slack, "dana")
    await page.open_channel("approvals")
    yield page
    await page.page.context.close()


def web(slack: SlackServer) -> AsyncWebClient:
    return AsyncWebClient(token=slack.bot_token, base_url=slack.api_url)


async def posted(slack: SlackServer, **more: Any) -> str:
    said = {"channel": slack.channels["approvals"], "text": "Refund", "blocks": BUTTONS, **more}
    return str((await web(slack).chat_postMessage(**said))["ts"])


async def test_a_person_reads_a_message_and_presses_its_button_without_a_dialog(
    slack: SlackServer, receiver: Receiver, dana: SlackPage, tmp_path: Path
) -> None:
    ts = await posted(slack)
    message = dana.message(ts)
    assert (await dana.text(message)).splitlines()[0] == "Refund 120.00 EUR"
    assert await dana.labels(message) == ["Approve"]
    await expect(dana.message_saying("120.00 EUR")).to_have_count(1)
    assert await dana.text(await dana.message_holding("approvals", "r-1")) == await dana.text(message)
    with pytest.raises(ValueError, match="not enough values"):
        await dana.message_holding("approvals", "r-2")
    assert (await dana.picture(message, tmp_path / "message.png")).read_bytes()[:4] == b"\x89PNG"
    await dana.press(message, "Approve")
    await receiver.until(1)
    payload = receiver.got[0].payload
    assert (payload["user"]["id"], payload["container"]["message_ts"]) == (slack.users["dana"], ts)
    assert payload["actions"][0]["value"] == "a-pointer"


async def test_a_message_that_is_decided_loses_its_button_before_the_reader(
    slack: SlackServer, dana: SlackPage
) -> None:
    ts = await posted(slack)
    await expect(dana.message(ts).locator(".bk-button")).to_have_count(1)
    await web(slack).chat_update(channel=slack.channels["approvals"], ts=ts, text="x", blocks=BUTTONS[:1])
    await expect(dana.message(ts).locator(".bk-button")).to_have_count(0)


async def test_a_modal_is_filled_corrected_and_submitted(
    slack: SlackServer, receiver: Receiver, dana: SlackPage
) -> None:
    await dana.press(dana.message(await posted(slack)), "Approve")
    await receiver.until(1)
    await web(slack).views_open(trigger_id=receiver.got[0].payload["trigger_id"], view=REASON)
    receiver.answers["view_submission"] = {"response_action": "errors", "errors": {"reason": "Say why."}}
    await dana.submit()
    assert await dana.errors() == ["reason: Say why."]
    del receiver.answers["view_submission"]
    await dana.submit({"Reason": "twice the amount"})
    await dana.expect_no_modal()
    state = receiver.got[-1].payload["view"]["state"]["values"]
    assert state == {"reason": {"text": {"type": "plain_text_input", "value": "twice the amount"}}}


async def test_a_thread_an_ephemeral_and_a_direct_message_are_read(
    slack: SlackServer, dana: SlackPage
) -> None:
    ts = await posted(slack)
    await posted(slack, thread_ts=ts, text="Approved by Felix", blocks=None)
    await expect(dana.message(ts).locator(".thread-summary-count")).to_have_text("1 reply")
    assert await dana.thread(dana.message(ts)) == ["Approved by Felix"]
    await web(slack).chat_postEphemeral(
        channel=slack.channels["approvals"], user=slack.users["dana"], text="open it on the web"
    )
    await expect(dana.ephemerals()).to_have_count(1)
    assert await dana.text(dana.ephemerals()) == "open it on the web"
    await web(slack).chat_postMessage(channel=slack.users["dana"], text="one waits for you")
    await dana.open_direct("dana")
    await expect(dana.message_saying("one waits for you")).to_have_count(1)


async def test_a_command_is_written_and_the_home_opened_by_who_one_acts_as(
    slack: SlackServer, receiver: Receiver, dana: SlackPage
) -> None:
    await dana.write("/countersign reviews")
    await receiver.until(1)
    command = receiver.got[0].payload
    assert (command["command"], command["text"]) == ("/countersign", "reviews")
    assert command["user_id"] == slack.users["dana"]
    await dana.act_as("felix")
    await web(slack).views_publish(user_id=slack.users["felix"], view={"type": "home", "blocks": BUTTONS})
    home = await dana.open_home()
    await dana.press(home, "Approve")
    await receiver.until(3)
    opened, press = (got.payload for got in receiver.got[1:])
    assert (opened["event"]["type"], opened["event"]["user"]) == ("app_home_opened", slack.users["felix"])
    assert (press["type"], press["user"]["id"]) == ("block_actions", slack.users["felix"])


async def test_rich_text_is_drawn_by_the_driver_and_nothing_in_it_is_parsed(
    slack: SlackServer, dana: SlackPage
) -> None:
    arguments = '{\n  "note": "*b* <!channel> <b>x</b> `y`"\n}'
    code = {"type": "rich_text_preformatted", "elements": [{"type": "text", "text": arguments}]}
    line = [{"type": "text", "text": "Exactly ", "style": {"bold": True}}, {"type": "text", "text": "this"}]
    rich = {"type": "rich_text", "elements": [{"type": "rich_text_section", "elements": line}, code]}
    message = dana.message(await posted(slack, blocks=[BUTTONS[0], rich, rich]))
    await expect(message.locator(".bk-unknown").first).to_have_text("[rich_text]")  # the page's own
    drawn = await dana.text(message)
    assert drawn.count("Exactly this") == drawn.count(arguments) == 2
    assert await message.locator("b").count() == 0
