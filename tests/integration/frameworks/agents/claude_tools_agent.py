"""An agent of the Claude Agent SDK with gated tools in its own process; Claude Code is a script."""

from __future__ import annotations

import asyncio
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, ResultMessage
from scripted import ORDER, declare, options, report
from scripted_cli import ScriptedCLI

from countersign.integrations import claude_hooks, claude_server

PENDING: list[dict[str, Any]] = []


def settings() -> tuple[str, ClaudeAgentOptions]:
    """The name of the tool for Claude Code, and the options of the agent."""
    gated = declare(permission=ORDER["gate"] == "hook", repeat=ORDER.get("repeat", False))
    given = {"key": ORDER["key"], "on_pending": PENDING.append, **options()}
    if ORDER["gate"] == "hook":
        tool = "mcp__shop__refund"
        return tool, ClaudeAgentOptions(hooks=claude_hooks({tool: gated}, **given))
    return "mcp__desk__refund", ClaudeAgentOptions(
        mcp_servers={"desk": claude_server([gated], name="desk", **given)}
    )


async def main() -> None:
    """One run of the process."""
    tool, chosen = settings()
    calls = [(ORDER.get("tool", tool), args) for args in ORDER["calls"]]
    cli = ScriptedCLI(calls, honors_failures=ORDER.get("honors_failures", True))
    said = ""
    async with ClaudeSDKClient(chosen, transport=cli) as client:
        await client.query("Refund order o-1, please.")
        async for message in client.receive_response():
            said = message.result if isinstance(message, ResultMessage) else said
    report(heard=cli.heard, pending=PENDING, said=said)


if __name__ == "__main__":
    asyncio.run(main())
