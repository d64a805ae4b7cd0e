"""What a manifest calls secret is shown to no person, on any way, and stays hidden when the manifest changes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.payments import Payments, gate, manifest
from tests.fakes.world import Agent, World

pytestmark = pytest.mark.anyio

PIN = "HUNTER2-very-secret"
CARD = "4242-4242-4242"

TRANSFER = manifest(
    "transfer",
    {
        "type": "object",
        "additionalProperties": False,
        "required": ["account", "pin", "card"],
        "properties": {
            "account": {"type": "string"},
            "pin": {"type": "string"},
            "card": {
                "type": "object",
                "additionalProperties": False,
                "properties": {"number": {"type": "string"}},
            },
        },
    },
    "/account",
    secret=["/pin", "/card/number"],
) | {"sentence": "Transfer to {account} with {card} and {pin}"}


@pytest.fixture
async def asked(bank: World, folder: Payments, robot: Agent) -> dict[str, Any]:
    """A transfer with secrets that waits for finance."""
    folder.write("tools/transfer.json", TRANSFER)
    folder.rules(gate("look", "finance", action="transfer"))
    await bank.activate()
    return await submitted(bank, robot, "acct-1")


async def submitted(bank: World, robot: Agent, account: str) -> dict[str, Any]:
    args = {"account": account, "pin": PIN, "card": {"number": CARD}}
    digest = await bank.manifest_digest("transfer")
    effect = {"tool": "transfer", "tool_digest": digest, "args": args}
    view: dict[str, Any] = (await robot.submit(effect)).json()
    assert view["state"] == "review", view
    return view


def shown(text: str) -> bool:
    return PIN in text or CARD in text


async def test_no_page_and_no_api_of_people_shows_them(
    bank: World, folder: Payments, asked: dict[str, Any]
) -> None:
    jonas = await bank.person("jonas")
    review_id = asked["effects"][0]["review"]["review_id"]
    for path in ("/", f"/reviews/{review_id}", "/v1/reviews", f"/v1/reviews/{review_id}", "/v1/audit"):
        answer = await jonas.get(path)
        assert answer.status_code == 200
        assert not shown(answer.text), path
    api = (await jonas.get(f"/v1/reviews/{review_id}")).json()
    assert api["effect"]["args"]["account"] == "acct-1"
    assert api["effect"]["args"]["pin"] == "(hidden value, 21 bytes)"
    folder.write("tools/transfer.json", TRANSFER | {"secret": [], "title": "Renamed"})
    await bank.activate()  # an edited manifest uncovers nothing
    for path in ("/", f"/reviews/{review_id}", f"/v1/reviews/{review_id}"):
        assert not shown((await jonas.get(path)).text), path


async def test_a_stale_vote_is_not_told_them_and_the_agent_sees_what_it_sent(
    bank: World, robot: Agent, asked: dict[str, Any]
) -> None:
    assert (await robot.see(asked["txn"]))["effects"][0]["args"]["pin"] == PIN
    await submitted(bank, robot, "acct-2")
    stale = await (await bank.person("jonas")).vote(asked)
    assert stale.status_code == 409
    assert not shown(stale.text)
