"""Talking on a review, settling a task, the stop and break-glass in a real browser, with and without scripts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from playwright.async_api import expect

from countersign.contract import TaskAnswer
from policy_service.queries.review_models import BreakGlassView, VoteView
from policy_service.queries.stops import Target
from tests.e2e.conftest import Site
from tests.fakes import reviews, tasks

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


TASK = "/tasks/task_01KAHV7Q2D"


@pytest.fixture(autouse=True)
def task(site: Site) -> None:
    site.world.put_task(tasks.unknown())


async def test_from_the_queue_to_a_settled_task(site: Site, heard: list[str]) -> None:
    page = await site.visitor()
    await page.goto("/")
    await page.get_by_role("link", name="Tasks 1 to settle").click()
    await expect(page).to_have_title("(1) Tasks · Countersign")
    await page.get_by_role("link", name="Refund $1,240.00").click()
    await page.get_by_text("It did not happen…").click()
    await expect(page.get_by_text("Nothing of its transaction stands")).to_be_visible()
    await page.get_by_label("How do you know?").locator("visible=true").fill("the bank has no such refund")
    await page.get_by_role("button", name="Settle: it did not happen").click()
    await expect(page.get_by_role("heading", name="It did not happen, says Maya Okafor")).to_be_visible()
    (_, said) = site.world.said[0]
    assert (said.answer, said.reason) == (TaskAnswer.NOT_FIRED, "the bank has no such refund")
    assert heard == []


async def test_it_works_without_scripts_and_with_a_result(site: Site) -> None:
    page = await site.visitor(js=False)
    await page.goto(TASK)
    await page.locator("#fired > summary").click()
    await page.get_by_label("What the tool answered").fill('{"refund_id": "r-1"}')
    await page.locator("#why-fired").fill("the bank has it")
    await page.get_by_role("button", name="Settle: it fired").click()
    await expect(page.get_by_role("heading", name="It fired, says Maya Okafor")).to_be_visible()
    assert site.world.said[0][1].result == b'{"refund_id":"r-1"}'


async def test_what_somebody_else_settled_is_announced_and_moves_nothing(site: Site) -> None:
    page = await site.visitor()
    await page.goto(TASK)
    stands = site.world.tasks["task_01KAHV7Q2D"]
    await expect(page.locator("#feed")).to_be_attached()
    await page.wait_for_timeout(300)  # until the stream is open
    site.world.tasks["task_01KAHV7Q2D"] = tasks.settled(stands, "Ingrid Vik", "fired", "seen it", reviews.NOW)
    site.world.tell("task_settled", task_id="task_01KAHV7Q2D")
    await expect(page.get_by_role("link", name="Settled while you read, show it")).to_be_visible()
    await expect(page.locator("#fired > summary")).to_be_visible()
    await page.locator("#not_fired > summary").click()
    await page.locator("#why-not_fired").fill("no")
    await page.get_by_role("button", name="Settle: it did not happen").click()
    await expect(page.get_by_role("heading", name="Nothing was settled")).to_be_visible()
    assert site.world.said == []


@pytest.fixture(autouse=True)
def glass(site: Site) -> None:
    signed = VoteView("Jonas Weber", "break_glass", "the site is down", reviews.NOW, True, "oidc")
    site.world.put(
        replace(reviews.refund("rev_glass"), break_glass=BreakGlassView((signed,), None, True, False))
    )


async def test_two_presses_stop_a_tool_from_any_page_without_scripts(site: Site) -> None:
    page = await site.visitor(js=False, width=390, height=844)
    await page.goto("/")
    await page.get_by_role("link", name="Stop…").click()
    await page.locator("#stop-tool > summary").click()
    await page.get_by_label("Which tool?").fill("refund")
    await page.locator("#why-stop-tool").fill("it goes out twice")
    await page.get_by_role("button", name="Stop this tool").click()
    await page.goto("/policies")
    await expect(page.get_by_text("Stopped: the tool refund.")).to_be_visible()
    assert site.world.oversight.pressed == [("stop", Target("tool", "refund"), "it goes out twice")]


async def test_a_signature_in_an_emergency_takes_two_presses_and_a_reason(site: Site) -> None:
    page = await site.visitor()
    await page.goto("/reviews/rev_glass?full=1")
    await page.get_by_text("In an emergency…").click()
    await page.get_by_role("button", name="Break the glass and release").click()
    assert site.world.cast == []
    await page.get_by_label("What is the emergency?").fill("the site is down")
    await page.get_by_role("button", name="Break the glass and release").click()
    await page.wait_for_load_state()
    assert [(vote[1], vote[5]) for vote in site.world.cast] == [("break_glass", "the site is down")]
