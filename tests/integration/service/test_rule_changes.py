"""A bundle comes into force while people are asked: their page says what it changed, and only what it changed."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest

from tests.fakes.payments import ANYBODY, HUGE, LARGE, PAY, Payments, gate, plain_forbid
from tests.fakes.world import Agent, World
from tests.integration.service.effects import pay

pytestmark = pytest.mark.anyio

TOLD = "The rules changed while this waited."


async def asked(bank: World, robot: Agent, amount: int = 500) -> dict[str, Any]:
    """An effect that waits for finance."""
    view: dict[str, Any] = (await robot.submit(await pay(bank, amount))).json()
    return view


async def told(bank: World, view: dict[str, Any]) -> list[str]:
    """What the page of the review says of new rules, the newest first."""
    maya = await bank.person("maya")
    page = (await maya.get(f"/reviews/{view['effects'][0]['review']['review_id']}")).text
    notes = re.findall(rf"<p><b>{re.escape(TOLD)}</b> (.*?)\. <span", page, re.DOTALL)
    return [unescape(re.sub(r"<[^>]+>", "", note)) for note in notes]


async def test_a_gate_that_fires_late_is_named(bank: World, folder: Payments, robot: Agent) -> None:
    view = await asked(bank, robot)
    folder.write("notes.cedar", "// says nothing new\n")
    await bank.activate()
    assert await told(bank, view) == []
    folder.policies(ANYBODY + LARGE + HUGE + gate("counsel", "legal", title="Legal reads it"))
    await bank.activate()
    assert await told(bank, view) == ["People are now asked by Legal reads it"]


async def test_a_gate_that_is_gone_still_holds_and_that_is_said(
    bank: World, folder: Payments, robot: Agent
) -> None:
    view = await asked(bank, robot)
    folder.policies(
        ANYBODY + gate("counsel", "legal") + gate("large", "finance", "context.input.amount > 900")
    )
    await bank.activate()
    folder.policies(ANYBODY + gate("large", "finance", "context.input.amount > 900"))
    await bank.activate()
    assert await told(bank, view) == [
        "No rule asks any more what counsel asked; this revision still waits for it",
        "People are now asked by counsel",
    ]
    assert (await robot.see(view["txn"]))["state"] == "review"


async def test_a_plain_forbid_that_came_is_named(bank: World, folder: Payments, robot: Agent) -> None:
    view = await asked(bank, robot)
    folder.policies(ANYBODY + LARGE + plain_forbid("stop"))
    await bank.activate()
    assert await told(bank, view) == ["It is forbidden now, by stop"]


async def test_a_tool_that_is_another_one_now_is_named_and_not_the_rules(
    bank: World, folder: Payments, robot: Agent
) -> None:
    view = await asked(bank, robot)
    folder.write("tools/pay.json", PAY | {"title": "Pay them"})
    await bank.activate()
    (said,) = await told(bank, view)
    assert re.fullmatch(
        r"It is forbidden now: this effect was staged for the manifest \w{12} of 'pay'; the active one is \w{12}",
        said,
    )
