"""The listings of real MCP servers: every tool is drafted, and the drafts of each server pass the bundle's check.

14 answers to `tools/list` with 269 tools: github-mcp-server, kubernetes-mcp-server, notion, firecrawl, playwright,
context7 and the reference servers of modelcontextprotocol. COUNTERSIGN_MCP_TOOLS names their folder.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from countersign.cli.app import app
from policy_service.pap.check import check_files
from tests.counterparts import require

ROOT: Final = Path(__file__).resolve().parents[3]
WAY: Final = (
    "save what each server answers to `npx @modelcontextprotocol/inspector --cli SERVER --method tools/list` as "
    "NAME.json in the folder that COUNTERSIGN_MCP_TOOLS names"
)
TOOLS: Final = {
    "context7": 2, "everything": 13, "fetch": 1, "filesystem": 14, "firecrawl": 26, "git": 12, "github": 117,
    "kubernetes-full-tools": 20, "kubernetes-helm-tools": 3, "memory": 9, "notion": 24, "playwright": 25,
    "sequential": 1, "time": 2,
}  # fmt: skip
PERMIT: Final = b'@id("any") permit (principal, action, resource);'


@pytest.mark.parametrize(("server", "count"), TOOLS.items(), ids=TOOLS)
def test_every_tool_of_a_real_server_is_drafted(tmp_path: Path, server: str, count: int) -> None:
    folder = Path(os.environ.get("COUNTERSIGN_MCP_TOOLS") or ROOT / "../shared/data/mcp-tools")
    file, out = folder / f"{server}.json", tmp_path / "out"
    require(f"the listing of the MCP server {server}", file if file.is_file() else None, WAY)
    done = CliRunner().invoke(app, ["tools", "export", "--mcp", str(file), "--out", str(out), "--json"])
    reported: list[dict[str, Any]] = json.loads(done.stdout)["tools"]
    assert [(one["tool"], one["problems"]) for one in reported if one["problems"]] == []
    assert done.exit_code == 0 and len(reported) == len(list(out.iterdir())) == count
    files = {f"tools/{path.name}": path.read_bytes() for path in out.iterdir()}
    assert len(check_files({**files, "any.cedar": PERMIT}).tools) == count
