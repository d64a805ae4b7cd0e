"""Comments, tasks, stops and break-glass in a real browser, with and without scripts."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import expect

from tests.e2e.conftest import Site
from tests.fakes.afternoon import deploy

pytestmark = [pytest.mark.anyio, pytest.mark.long]


@pytest.mark.parametrize("js", [True, False], ids=["scripts", "no scripts"])
async def test_a_comment_and_a_question_are_sent_and_shown(site: Site, heard: list[str], js: bool) -> None:
    page, path = await site.visitor(js=js), await site.refund(f"talk-{js}")
    await page.goto(path)
    for words, button in (("Look at <b>this</b>\nand that", "Comment"), ("Which invoice?", "Ask the agent")):
        await page.get_by_label("Comment, or ask the agent").fill(words)
        await page.get_by_role("button", name=button).click()
        await expect(page.locator(".thread .words").filter(has_text=words.split("\n")[0])).to_be_visible()
    kinds = {(one["text"], one["kind"]) for one in (await site.view(path))["comments"]}
    assert kinds == {("Look at <b>this</b>\nand that", "comment"), ("Which invoice?", "question")}
    await expect(page.get_by_text("No answer yet.")).to_be_visible()
    assert await page.locator(".thread .words b").count() == 0
    assert heard == []


async def doubt(site: Site, word: str, agent: str = "refund-desk") -> str:
    """The path of a task about an unknown refund, or an unknown deploy."""
    if agent == "refund-desk":
        await site.refund(word)
    else:
        await site.stage(word, agent, "deploy", deploy("4.18.3", changes=[]))
        await site.do(lambda story: story.vote(word, "wen"))
    await site.do(lambda story: story.vote(word, "tomas"))
    await site.do(lambda story: story.fire(word, agent, "unknown"))
    txn = site.story.views[word]["txn"]
    [task] = [one for one in (await site.view("/tasks?kind=unknown"))["tasks"] if one["txn"] == txn]
    return f"/tasks/{task['task_id']}"


async def test_from_the_queue_to_a_settled_task(site: Site, heard: list[str]) -> None:
    page, path = await site.visitor(), await doubt(site, "from-the-queue")
    await page.goto("/")
    await page.get_by_role("link", name=re.compile(r"Tasks \d+ to settle")).click()
    await expect(page).to_have_title(re.compile(r"^\(\d+\) Tasks · Countersign"))
    await page.locator(f'a[href="{path}"]').click()
    await page.get_by_text("It did not happen…").click()
    await expect(page.get_by_text("No effect of its transaction remains")).to_be_visible()
    await page.get_by_label("How do you know?").locator("visible=true").fill("the bank has no such refund")
    await page.get_by_role("button", name="Settle: it did not happen").click()
    await expect(page.get_by_role("heading", name="It did not happen, says Maya Okafor")).to_be_visible()
    said = (await site.view(path))["task"]["settlement"]
    assert (said["answer"], said["reason"]) == ("not_fired", "the bank has no such refund")
    assert heard == []


async def test_it_works_without_scripts_and_with_a_result(site: Site) -> None:
    page, path = await site.visitor(js=False), await doubt(site, "no-scripts", "ship-bot")
    await page.goto(path)
    await page.locator("#fired > summary").click()
    await page.get_by_label("What the tool answered").fill('{"release": "r-1"}')
    await page.locator("#why-fired").fill("the bank has it")
    await page.get_by_role("button", name="Settle: it fired").click()
    await expect(page.get_by_role("heading", name="It fired, says Maya Okafor")).to_be_visible()
    assert (await site.view(path))["task"]["settlement"]["answer"] == "fired"


async def test_a_settlement_by_another_person_is_announced_and_moves_nothing(site: Site) -> None:
    page, path = await site.visitor(), await doubt(site, "somebody-else")
    await page.goto(path)
    await expect(page.locator("#feed")).to_be_attached()
    await page.wait_for_timeout(300)  # until the stream is open
    task = await site.view(path)
    await site.do(lambda story: story.people["ingrid"].visitor.settle(task, "fired", reason="seen it"))
    await expect(page.get_by_role("link", name="It was settled, show it")).to_be_visible()
    await expect(page.locator("#fired > summary")).to_be_visible()
    await page.locator("#not_fired > summary").click()
    await page.locator("#why-not_fired").fill("no")
    await page.get_by_role("button", name="Settle: it did not happen").click()
    await expect(page.get_by_role("heading", name="Nothing was settled")).to_be_visible()
    assert (await site.view(path))["task"]["settlement"]["answer"] == "fired"


async def test_two_presses_stop_a_tool_from_any_page_without_scripts(site: Site) -> None:
    page = await site.visitor(js=False, width=390, height=844)
    await page.goto("/")
    await page.get_by_role("link", name="Stop…").click()
    await page.locator("#stop-tool > summary").click()
    await page.get_by_label("Which tool?").fill("credit")
    await page.locator("#why-stop-tool").fill("it goes out twice")
    await page.get_by_role("button", name="Stop this tool").click()
    await page.goto("/policies")
    await expect(page.get_by_text("Stopped: the tool credit.")).to_be_visible()


async def test_a_signature_in_an_emergency_takes_two_presses_and_a_reason(site: Site) -> None:
    page, review = (
        await site.visitor(),
        await site.stage("glass", "ship-bot", "deploy", deploy("4.18.2", changes=[])),
    )
    await page.goto(f"/reviews/{review}?full=1")
    await page.get_by_text("In an emergency…").click()
    await page.get_by_role("button", name="Break the glass and release").click()
    assert await site.votes(f"/reviews/{review}") == []
    await page.get_by_label("What is the emergency?").fill("the site is down")
    await page.get_by_role("button", name="Break the glass and release").click()
    await page.wait_for_load_state()
    assert await site.votes(f"/reviews/{review}") == [("break_glass", "the site is down")]
