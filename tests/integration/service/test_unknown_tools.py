"""An unknown tool: in dev people are asked, loudly, about what they can see; everywhere else it is denied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from policy_service.errors import StartError
from policy_service.settings import load_settings
from tests.fakes.payments import Payments
from tests.fakes.world import Agent, running

UNKNOWN: dict[str, Any] = {"tool": "nuke", "args": {"site": "mars"}, "tool_digest": "a" * 64}


async def test_only_dev_asks_about_unknown_tools(tmp_path: Path, folder: Payments) -> None:
    async with running(tmp_path / "data", folder.path, environment="dev") as dev:
        robot, ingrid = await dev.agent("robot"), await dev.person("ingrid")
        with capture_logs() as logs:
            spent = (await robot.submit(UNKNOWN)).json()
        view = (await robot.submit(UNKNOWN, run_key="run-2")).json()
        assert (spent["state"], view["state"]) == ("review", "review")
        loud = [entry for entry in logs if entry["event"] == "UNKNOWN_TOOL_IN_DEV"]
        assert [(entry["tool"], entry["log_level"]) for entry in loud] == [("nuke", "warning")]
        page = await ingrid.get("/reviews/" + view["effects"][0]["review"]["review_id"])
        assert "UNKNOWN TOOL. No bundle describes nuke" in page.text
        assert "mars" in page.text and "hidden value" not in page.text
        for one in (spent, view):
            assert (await ingrid.vote(one)).status_code == 200
        await robot.spend(await robot.see(spent["txn"]))
        assert (await robot.see(spent["txn"]))["effects"][0]["state"] == "redeemed"
        assert (await robot.see(view["txn"]))["state"] == "ready"
    async with running(tmp_path / "data", folder.path) as production:
        later = Agent(robot.name, robot.key, production.http, production.clock)
        released = (await later.release(await later.see(view["txn"]))).json()
        assert (await later.redeem(released["releases"], "late")).status_code == 200
        seen = await later.see(view["txn"])
        assert (seen["state"], seen["effects"][0]["state"]) == ("ended", "denied")
        assert seen["effects"][0]["decision"]["reasons"][0]["code"] == "tool_changed"
        new = (await later.submit(UNKNOWN, run_key="run-3")).json()
        reason = new["effects"][0]["decision"]["reasons"][0]
        assert (new["state"], reason["code"]) == ("ended", "unknown_tool")
        assert "countersign tools export" in reason["advice"] and "tools/nuke.json" in reason["advice"]


async def test_dev_is_for_loopback_only(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="write 'staging', or listen on"):
        load_settings(data_dir=tmp_path, environment="dev", public_url="https://countersign.example")
