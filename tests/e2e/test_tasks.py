"""Settling a task in a real browser, with and without scripts."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from countersign.contract import TaskAnswer
from tests.e2e.conftest import Site
from tests.fakes import reviews, tasks

pytestmark = [pytest.mark.anyio, pytest.mark.long]

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
