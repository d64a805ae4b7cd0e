"""A real MCP server of the vendor's package, in this process or over stdio: `python -m tests.fakes.mcp_bank FILE`.

It writes what it did to a file, with the call key it was given, so that a test reads the outcome there.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel, ConfigDict, Field

from countersign.contract.manifest import ToolManifest
from countersign.manifests.mcp_drafts import mcp_drafts

NAME = "bank"
REVIEWED = ("transfer", "balance", "flaky", "anything")


class Note(BaseModel):
    """A model of its own, so that the listing refers to it."""

    model_config = ConfigDict(extra="forbid")
    text: str


class Tree(BaseModel):
    """A model that contains itself."""

    text: str
    below: list[Tree] = []


def bank(written: Path) -> MCPServer:
    """The server; what it does goes to this file."""
    server = MCPServer(NAME)

    def act(ctx: Context[Any, Any], *what: Any) -> None:
        meta = ctx.request_context.meta or {}
        with written.open("a") as file:
            file.write(json.dumps([*what, meta.get("countersign/call-key")]) + "\n")

    @server.tool()
    def transfer(account_id: str, amount_cents: int, ctx: Context[Any, Any], note: Note | None = None) -> str:
        """Send money."""
        act(ctx, "transfer", account_id, amount_cents)
        return f"t-{account_id}"

    @server.tool()
    def balance(account_id: str, ctx: Context[Any, Any]) -> dict[str, int]:
        """Tell what is there."""
        act(ctx, "balance", account_id)
        return {"cents": 700}

    @server.tool()
    def flaky(account_id: str, ctx: Context[Any, Any]) -> str:
        """Act, and then fail."""
        act(ctx, "flaky", account_id)
        raise ValueError("the line is dead")

    @server.tool()
    def lend(account_id: str, ctx: Context[Any, Any]) -> str:
        """Lend: the one without a reviewed manifest."""
        act(ctx, "lend", account_id)
        return "lent"

    @server.tool()
    def tag(name: Annotated[str, Field(pattern="^(a+)+$")]) -> str:
        """Tag: with a pattern that Python's own engine does not come to an end with."""
        return "tagged"

    @server.tool()
    def anything(ctx: Context[Any, Any], value: dict[str, Any], note: Tree) -> str:
        """Act on what comes: free keys, and a schema that contains itself."""
        act(ctx, "anything", value, note.model_dump())
        return "done"

    @server.tool()
    def statement(since: Annotated[str, Field(alias="from")]) -> str:
        """Take an argument with the name of a keyword of Python."""
        return "done"

    @server.tool()
    def large(value: Annotated[int, Field(json_schema_extra={"maximum": 2**63 - 1})]) -> str:
        """Take a number up to a bound that JSON does not carry exactly."""
        return "done"

    @server.tool()
    def read(account_id: str, ctx: Context[Any, Any]) -> str:
        """Have the name of an action group."""
        act(ctx, "read", account_id)
        return "done"

    return server


def mcp_manifests() -> list[ToolManifest]:
    """The drafts of its tools, reviewed: `balance` reads."""
    tools = asyncio.run(bank(Path("/nowhere")).list_tools())
    listed = [one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in tools]
    drafts = {one.tool: one.manifest for one in mcp_drafts(json.dumps({"tools": listed}).encode())[0]}
    found = [drafts[name] for name in REVIEWED]
    reviewed = [one for one in found if one is not None]
    reads: dict[str, Any] = {"balance": {"groups": ("read",)}}
    return [ToolManifest.model_validate(one.model_dump() | reads.get(one.tool, {})) for one in reviewed]


if __name__ == "__main__":
    bank(Path(sys.argv[1])).run()
