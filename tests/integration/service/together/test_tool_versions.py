"""A rollout of a tool's manifest: agents on the old and the new version work at the same time."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from countersign.contract import ToolManifest, manifest_file
from tests.fakes.payments import ANYBODY, PAY, manifest
from tests.integration.service.effects import pay
from tests.integration.service.together.bank import Bank

pytestmark = pytest.mark.anyio
OLD_DIGEST = ToolManifest.model_validate(PAY).digest
NOTED = {"properties": {**PAY["args"]["properties"], "note": {"type": "string"}}}
NEW_PAY = PAY | {"args": PAY["args"] | NOTED}


@pytest.fixture
async def rollout(bank: Bank) -> Bank:
    """The bank with the new manifest current and the old one still in force."""
    bank.folder.write("tools/pay.json", NEW_PAY).write("tools/pay@before-notes.json", PAY)
    assert await bank.activate()
    return bank


async def test_both_versions_work_until_the_old_one_ends(rollout: Bank) -> None:
    """People see the old one as it was reviewed; what waits under it when it ends is denied."""
    robot = rollout.robot
    staged = {"tool": "pay", "tool_digest": OLD_DIGEST, "args": {"account": "acme", "amount": 500}}
    old, late = (await robot.submit(staged)).json(), (await robot.submit(staged, run_key="late")).json()
    new = (await robot.submit(await pay(rollout, note="thanks"), run_key="new")).json()
    waits = await rollout.asks(500, run_key="waits")
    assert [view["state"] for view in (old, late, new, waits)] == ["review", "review", "ready", "review"]
    page = await rollout.maya.get("/reviews/" + old["effects"][0]["review"]["review_id"])
    assert page.status_code == 200 and "Pay for acme" in page.text
    assert "does not contain this version" not in page.text
    await rollout.maya.vote(old)
    for view, attempt in ((await robot.see(old["txn"]), "a"), (new, "b")):
        await robot.spend(view, attempt)
        assert (await rollout.states(view))[1] == "redeemed"
    (rollout.folder.path / "tools/pay@before-notes.json").unlink()
    assert await rollout.activate()
    assert ((await rollout.states(late))[0], (await rollout.states(waits))[0]) == ("ended", "review")
    assert (await robot.see(late["txn"]))["effects"][0]["decision"]["reasons"][0]["code"] == "tool_changed"


async def test_the_service_serves_the_current_version_and_others_by_digest(rollout: Bank) -> None:
    robot = rollout.robot
    current = (await robot.send("GET", "/v1/tools/pay")).json()
    old = (await robot.send("GET", f"/v1/tools/pay?digest={OLD_DIGEST}")).json()
    assert (current, old) == (_json(NEW_PAY), _json(PAY))
    missing = await robot.send("GET", f"/v1/tools/pay?digest={'0' * 64}")
    assert missing.status_code == 404 and "no version" in missing.json()["detail"]
    body = (await robot.send("GET", f"/v1/tools/pay?full=true&digest={OLD_DIGEST}")).json()
    assert (body["tool_digest"], body["unseen"]) == (OLD_DIGEST, ["items"])
    assert body["manifest"] == _json(PAY)
    versions = {one["file"]: one["current"] for one in body["versions"]}
    assert versions == {"tools/pay.json": True, "tools/pay@before-notes.json": False}


async def test_a_tool_of_any_name_is_served_and_released(bank: Bank) -> None:
    for tool in ("mail.send", "a/b", "srv:tool"):
        described = manifest(tool, PAY["args"], "/account")
        bank.folder.write(f"tools/{manifest_file(tool)}", described).policies(ANYBODY)
        assert await bank.activate()
        answer = await bank.robot.send("GET", f"/v1/tools/{quote(tool, safe='')}")
        assert (answer.status_code, answer.json()) == (200, _json(described))
        digest = ToolManifest.model_validate(described).digest
        call = {"tool": tool, "tool_digest": digest, "args": {"account": "acme", "amount": 1}}
        await bank.robot.spend((await bank.robot.submit(call, run_key=tool)).json(), f"attempt-{digest[:8]}")


def _json(described: dict[str, Any]) -> Any:
    return ToolManifest.model_validate(described).to_json()
