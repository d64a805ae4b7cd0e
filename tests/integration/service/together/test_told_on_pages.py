"""What a person is told after they pressed: of a late vote, a break-glass, a stop, a newer revision."""

from __future__ import annotations

import re
from typing import Any

import httpx2
import pytest

from tests.fakes.payments import ANYBODY, LARGE, person
from tests.fakes.world import Visitor
from tests.integration.service.together.bank import Bank
from tests.integration.service.together.test_edit_forms import address, send
from tests.integration.service.together.test_edits import LESS

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
    fields = form | {"verdict": verdict, "reason": "as it was agreed"}
    return await send(visitor, f"{address(view)}/votes", fields)


async def test_whoever_votes_too_late_is_told_and_led_to_the_review(bank: Bank) -> None:
    view = await bank.asks()
    late, form = await form_of(bank.tomas, view, "approve"), await form_of(bank.maya, view, "deny")
    for _ in range(2):  # a second press of the same button is no late vote
        assert (await press(bank.maya, view, form, "deny")).status_code == 303
    answer = await press(bank.tomas, view, late, "approve")
    assert answer.status_code == 409
    assert "Your vote was not counted" in answer.text
    assert "This was denied already" in answer.text
    assert f'href="{address(view)}">Open the review<' in answer.text


async def test_an_opening_is_nowhere_told_as_an_approval(bank: Bank) -> None:
    await bank.policies(ANYBODY + LARGE + ALONE)
    view = await bank.asks()
    form = await form_of(bank.tomas, view, "break-glass")
    assert (await press(bank.tomas, view, form, "break_glass")).status_code == 303
    page = (await bank.tomas.get(address(view))).text
    assert "Approved and released" not in page
    assert "Nobody&#39;s approval let it go" in page
    decided = (await bank.tomas.get(f"/?tab=decided&agent={bank.robot.name}")).text
    assert "Break-glass</span>" in decided
    assert "Approved</span>" not in decided
    task = await bank.maya.task(view, "break_glass_review")
    text = (await bank.maya.get(f"/tasks/{task['task']['task_id']}")).text
    assert "The policy, without asking anybody" not in text
    assert "In an emergency, without the people its gates ask" in text
    assert "as it was agreed" in text
    assert "?." not in text


async def test_a_replaced_revision_leads_to_the_one_that_stands(bank: Bank) -> None:
    owned = await bank.agent("replaced", owner=person("jonas"))
    old = await bank.asks(robot=owned)
    await owned.accept(await bank.maya.proposed(old, LESS))
    new = await owned.see(old["txn"])
    text = (await bank.jonas.get(address(old))).text
    assert f'<a href="{address(new)}">Read revision 2</a>' in text
    assert "The agent replaced it" not in text
    assert "Not Maya, on the asking side" in (await bank.jonas.get(address(new))).text


async def test_what_is_stopped_is_not_told_as_about_to_fire(bank: Bank) -> None:
    loop = await bank.agent("in-a-loop")
    view = await bank.asks(robot=loop)
    form = await form_of(bank.maya, view, "approve")
    assert (await press(bank.maya, view, form, "approve")).status_code == 303
    assert "it does not fire until" not in (await bank.maya.get(address(view))).text
    stop = {"csrf_token": bank.maya.csrf, "what": "agent", "name": "in-a-loop", "reason": "refunds in a loop"}
    assert (await send(bank.maya, "/stop", stop)).status_code == 303
    assert "it does not fire until" in (await bank.maya.get(address(view))).text
