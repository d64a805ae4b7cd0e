"""What a manifest calls secret is shown to no person, on any way, and stays hidden when the manifest changes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.payments import Payments, gate, manifest
from tests.fakes.world import Agent, World

pytestmark = pytest.mark.anyio

PIN = "HUNTER2-very-secret"

CARD = "4242-4242-4242"

TEXT = {"type": "string"}
TRANSFER = manifest(
    "transfer",
    {
        "type": "object", "additionalProperties": False, "required": ["account", "pin", "card"],
        "properties": {
            "account": TEXT, "pin": TEXT,
            "card": {"type": "object", "additionalProperties": False, "properties": {"number": TEXT}},
        },
    },
    "/account", secret=["/pin", "/card/number"],
) | {"sentence": "Transfer to {account} with {card} and {pin}"}  # fmt: skip


async def submitted(bank: World, robot: Agent, account: str) -> dict[str, Any]:
    args = {"account": account, "pin": PIN, "card": {"number": CARD}}
    digest = await bank.manifest_digest("transfer")
    effect = {"tool": "transfer", "tool_digest": digest, "args": args}
    view: dict[str, Any] = (await robot.submit(effect)).json()
    assert view["state"] == "review", view
    return view


async def test_no_page_and_no_api_of_people_shows_them(bank: World, folder: Payments, robot: Agent) -> None:
    folder.write("tools/transfer.json", TRANSFER)
    folder.rules(gate("look", "finance", action="transfer"))
    await bank.activate()
    view = await submitted(bank, robot, "acct-1")
    assert (await robot.see(view["txn"]))["effects"][0]["args"]["pin"] == PIN, "the agent sees what it sent"
    jonas, review_id = await bank.person("jonas"), view["effects"][0]["review"]["review_id"]
    paths = ["/", f"/reviews/{review_id}", "/v1/reviews", f"/v1/reviews/{review_id}", "/v1/audit"]

    async def hidden() -> bool:
        answers = [await jonas.get(path) for path in paths]
        assert {answer.status_code for answer in answers} == {200}
        return not any(word in answer.text for answer in answers for word in (PIN, CARD))

    assert await hidden()
    args = (await jonas.get(f"/v1/reviews/{review_id}")).json()["effect"]["args"]
    assert (args["account"], args["pin"]) == ("acct-1", "(hidden value, 21 bytes)")
    await submitted(bank, robot, "acct-2")
    stale = await jonas.vote(view)
    assert (stale.status_code, PIN in stale.text, CARD in stale.text) == (409, False, False)
    folder.write("tools/transfer.json", TRANSFER | {"secret": [], "title": "Renamed"})
    await bank.activate()  # an edited manifest uncovers nothing
    assert await hidden()
