"""A rollout of a tool's manifest: agents on the old and on the new version work side by side until the old one ends."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from countersign.contract import ToolManifest, manifest_file
from tests.fakes.payments import ANYBODY, PAY, Payments, manifest
from tests.fakes.world import Agent, World
from tests.integration.service.effects import pay

pytestmark = pytest.mark.anyio
OLD_DIGEST = ToolManifest.model_validate(PAY).digest


def new_pay() -> dict[str, Any]:
    """The next manifest: it also takes a note."""
    schema = PAY["args"] | {"properties": {**PAY["args"]["properties"], "note": {"type": "string"}}}
    return PAY | {"args": schema}


async def old_pay(amount: int) -> dict[str, Any]:
    return {"tool": "pay", "tool_digest": OLD_DIGEST, "args": {"account": "acme", "amount": amount}}


@pytest.fixture
async def rollout(bank: World, folder: Payments) -> World:
    """The bank with the new manifest current and the old one still in force."""
    folder.write("tools/pay.json", new_pay()).write("tools/pay@before-notes.json", PAY)
    assert await bank.activate()
    return bank


async def test_both_versions_release_and_people_see_the_old_one_as_it_was_reviewed(
    rollout: World, robot: Agent
) -> None:
    old = (await robot.submit(await old_pay(500))).json()
    new = (await robot.submit(await pay(rollout, note="thanks"), run_key="run-2")).json()
    assert (old["state"], new["state"]) == ("review", "ready")
    maya = await rollout.person("maya")
    page = await maya.get("/reviews/" + old["effects"][0]["review"]["review_id"])
    assert page.status_code == 200 and "Pay for acme" in page.text
    assert "no longer holds this version" not in page.text
    await maya.vote(old)
    await robot.spend(await robot.see(old["txn"]))
    await robot.spend(new, "another-attempt")
    states = [(await robot.see(view["txn"]))["effects"][0]["state"] for view in (old, new)]
    assert states == ["redeemed", "redeemed"]


async def test_when_the_old_version_ends_what_waits_under_it_is_denied(
    rollout: World, folder: Payments, robot: Agent
) -> None:
    old = (await robot.submit(await old_pay(500))).json()
    new = (await robot.submit(await pay(rollout, 500), run_key="run-2")).json()
    assert (old["state"], new["state"]) == ("review", "review")
    (folder.path / "tools/pay@before-notes.json").unlink()
    assert await rollout.activate()
    ended, waiting = await robot.see(old["txn"]), await robot.see(new["txn"])
    assert ended["effects"][0]["decision"]["reasons"][0]["code"] == "tool_changed"
    assert (ended["state"], waiting["state"]) == ("ended", "review")


async def test_the_service_gives_out_the_current_version_and_any_other_by_digest(
    rollout: World, robot: Agent
) -> None:
    current = (await robot.send("GET", "/v1/tools/pay")).json()
    old = (await robot.send("GET", f"/v1/tools/pay?digest={OLD_DIGEST}")).json()
    assert (current, old) == (_json(new_pay()), _json(PAY))
    missing = await robot.send("GET", f"/v1/tools/pay?digest={'0' * 64}")
    assert missing.status_code == 404 and "no version" in missing.json()["detail"]
    told = (await robot.send("GET", f"/v1/tools/pay?full=true&digest={OLD_DIGEST}")).json()
    assert (told["tool_digest"], told["unseen"]) == (OLD_DIGEST, ["items"])
    assert told["manifest"] == _json(PAY)
    versions = {one["file"]: one["current"] for one in told["versions"]}
    assert versions == {"tools/pay.json": True, "tools/pay@before-notes.json": False}


async def test_a_tool_of_any_name_is_served_and_released(bank: World, folder: Payments, robot: Agent) -> None:
    for tool in ("mail.send", "a/b", "srv:tool"):
        described = manifest(tool, PAY["args"], "/account")
        folder.write(f"tools/{manifest_file(tool)}", described).policies(ANYBODY)
        assert await bank.activate()
        answer = await robot.send("GET", f"/v1/tools/{quote(tool, safe='')}")
        assert (answer.status_code, answer.json()) == (200, _json(described))
        digest = ToolManifest.model_validate(described).digest
        call = {"tool": tool, "tool_digest": digest, "args": {"account": "acme", "amount": 1}}
        await robot.spend((await robot.submit(call, run_key=tool)).json(), f"attempt-{digest[:8]}")


def _json(described: dict[str, Any]) -> Any:
    return ToolManifest.model_validate(described).to_json()
