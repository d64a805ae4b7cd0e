"""What a person is told after they pressed: of a late vote, a break-glass, a stop, a newer revision."""

from __future__ import annotations

import re
from typing import Any

import httpx2
import pytest

from tests.fakes.payments import ANYBODY, LARGE, Payments, person
from tests.fakes.world import Agent, Visitor, World
from tests.integration.service.together.test_edit_forms import address, send
from tests.integration.service.together.test_edits import LESS, asked

pytestmark = pytest.mark.anyio

ALONE = (
    '@id("captain") permit (principal in Group::"cfo", action == Action::"break_glass_alone", resource);\n'
)


async def form_of(visitor: Visitor, view: dict[str, Any], act: str) -> dict[str, str]:
    html = (await visitor.get(address(view))).text.split(f'id="{act}"')[1].split("</form>")[0]
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', html))


async def press(
    visitor: Visitor, view: dict[str, Any], form: dict[str, str], verdict: str
) -> httpx2.Response:
    return await send(
        visitor, f"{address(view)}/votes", form | {"verdict": verdict, "reason": "as it was agreed"}
    )


async def test_whoever_votes_too_late_is_told_and_led_to_the_review(bank: World, robot: Agent) -> None:
    view, maya, tomas = await asked(bank, robot), await bank.person("maya"), await bank.person("tomas")
    late = await form_of(tomas, view, "approve")
    assert (await press(maya, view, await form_of(maya, view, "deny"), "deny")).status_code == 303
    answer = await press(tomas, view, late, "approve")
    assert answer.status_code == 409
    assert "Your vote was not counted" in answer.text
    assert "This was denied already" in answer.text
    assert f'href="{address(view)}">Open the review<' in answer.text


async def test_a_second_press_of_the_same_button_is_no_late_vote(bank: World, robot: Agent) -> None:
    view, maya = await asked(bank, robot), await bank.person("maya")
    form = await form_of(maya, view, "approve")
    assert [(await press(maya, view, form, "approve")).status_code for _ in range(2)] == [303, 303]


async def test_an_opening_is_nowhere_told_as_an_approval(bank: World, robot: Agent, folder: Payments) -> None:
    folder.policies(ANYBODY + LARGE + ALONE)
    await bank.activate()
    view, tomas, maya = await asked(bank, robot), await bank.person("tomas"), await bank.person("maya")
    form = await form_of(tomas, view, "break-glass")
    assert (await press(tomas, view, form, "break_glass")).status_code == 303
    page = (await tomas.get(address(view))).text
    assert "Approved and released" not in page
    assert "Nobody&#39;s approval let it go" in page
    decided = (await tomas.get(f"/?tab=decided&agent={robot.name}")).text
    assert "Break-glass</span>" in decided
    assert "Approved</span>" not in decided
    task = await maya.task(view, "break_glass_review")
    text = (await maya.get(f"/tasks/{task['task']['task_id']}")).text
    assert "The policy, without asking anybody" not in text
    assert "In an emergency, without the people its gates ask" in text
    assert "as it was agreed" in text
    assert "?." not in text


async def test_a_replaced_revision_leads_to_the_one_that_stands(bank: World) -> None:
    jonas, maya = await bank.person("jonas"), await bank.person("maya")
    owned = await bank.agent("replaced", owner=person("jonas"))
    old = await asked(bank, owned)
    await owned.accept(await maya.proposed(old, LESS))
    new = await owned.see(old["txn"])
    text = (await jonas.get(address(old))).text
    assert f'<a href="{address(new)}">Read revision 2</a>' in text
    assert "The agent replaced it" not in text
    assert "Not Maya, on the asking side" in (await jonas.get(address(new))).text


async def test_what_is_stopped_is_not_told_as_about_to_fire(bank: World) -> None:
    maya, loop = await bank.person("maya"), await bank.agent("in-a-loop")
    view = await asked(bank, loop)
    form = await form_of(maya, view, "approve")
    assert (await press(maya, view, form, "approve")).status_code == 303
    assert "it does not fire until" not in (await maya.get(address(view))).text
    stop = {"csrf_token": maya.csrf, "what": "agent", "name": "in-a-loop", "reason": "refunds in a loop"}
    assert (await send(maya, "/stop", stop)).status_code == 303
    assert "it does not fire until" in (await maya.get(address(view))).text
