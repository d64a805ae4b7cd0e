"""The record of submitted calls, as an operator takes it out for replaying."""

from __future__ import annotations

import json

import pytest

from policy_service.pap.changes.calls import read_calls
from tests.fakes.world import Agent, World

pytestmark = pytest.mark.anyio

REFUND = {"payment_id": "p1", "amount_cents": 100, "currency": "USD", "customer": "cus_1001", "reason": ""}


async def test_what_was_submitted_comes_out_as_calls_that_can_be_replayed(world: World, desk: Agent) -> None:
    digest = await world.manifest_digest("refund")
    view = (await desk.submit({"tool": "refund", "tool_digest": digest, "args": REFUND})).json()

    found = await world.operator("recorded-calls", {"days": 1, "with_secrets": False})
    effect_id = view["effects"][0]["effect_id"]
    one = await world.operator("recorded-call", {"effect_id": effect_id})

    calls, bad = read_calls([json.dumps(each) for each in found])
    assert bad == []
    assert [(call.name, call.tool, call.args, call.decided) for call in calls] == [
        (effect_id, "refund", REFUND, "release")
    ]
    assert calls[0].agent.roles == {"support-agent"}
    assert one["id"] == effect_id
