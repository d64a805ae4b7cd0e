"""Claude Code as a script: it speaks the control protocol of the Claude Agent SDK, calls tools, and runs one itself.

The SDK's own classes are on the other side. `claude_code_agent.py` runs the real program.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
from claude_agent_sdk import Transport
from scripted import pay

SESSION = "session-1"


class ScriptedCLI(Transport):
    """One run of Claude Code whose model makes these calls, each with a tool's name and arguments, in one message."""

    def __init__(self, calls: list[tuple[str, dict[str, Any]]], *, honors_failures: bool = True) -> None:
        self.heard: list[str] = []
        self._calls, self._honors = calls, honors_failures
        self._send, self._messages = anyio.create_memory_object_stream[dict[str, Any]](100)
        self._answers: dict[str, Any] = {}
        self._hooks: list[str] = []
        self._ids = 0
        self._turning: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """There is nothing to start."""

    async def write(self, data: str) -> None:
        """A message of the SDK."""
        message = json.loads(data)
        if message["type"] == "control_request":
            hooks = (message["request"].get("hooks") or {}).get("PreToolUse", [])
            self._hooks = [one for matcher in hooks for one in matcher["hookCallbackIds"]]
            answer = {"hook_on_failure_supported": self._honors}
            response = {"subtype": "success", "request_id": message["request_id"], "response": answer}
            await self._send.send({"type": "control_response", "response": response})
        elif message["type"] == "control_response":
            event, holder = self._answers.pop(message["response"]["request_id"])
            holder.append(message["response"])
            event.set()
        elif message["type"] == "user":
            self._turning = asyncio.create_task(self._turn())

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        """What the SDK reads."""
        async for message in self._messages:
            yield message

    async def close(self) -> None:
        """End."""
        self._send.close()
        if self._turning is not None:
            await self._turning

    def is_ready(self) -> bool:
        """Always."""
        return True

    async def end_input(self) -> None:
        """The SDK has no more to write."""

    async def _turn(self) -> None:
        for place, (name, args) in enumerate(self._calls):
            use = {"type": "tool_use", "id": f"toolu_{place}", "name": name, "input": args}
            await self._send.send({"type": "assistant", "message": {"model": "scripted", "content": [use]}})
            self.heard.append(await self._permitted_call(f"toolu_{place}", name, args))
        said = {"model": "scripted", "content": [{"type": "text", "text": "Done."}]}
        await self._send.send({"type": "assistant", "message": said})
        times = {"duration_ms": 1, "duration_api_ms": 1, "num_turns": 1, "session_id": SESSION}
        await self._send.send(
            {"type": "result", "subtype": "success", "is_error": False, "result": "Done.", **times}
        )

    async def _permitted_call(self, use_id: str, name: str, args: dict[str, Any]) -> str:
        """Run a call as the hooks say. What the model reads of it."""
        context = ""
        for hook in self._hooks:
            given = {
                "hook_event_name": "PreToolUse",
                "session_id": SESSION,
                "transcript_path": "",
                "cwd": "/",
            }
            given |= {"tool_name": name, "tool_input": args, "tool_use_id": use_id}
            request = {"subtype": "hook_callback", "callback_id": hook, "input": given, "tool_use_id": use_id}
            answer = await self._ask(request)
            if answer["subtype"] == "error":
                return f"blocked: {answer['error']}"
            output = answer["response"].get("hookSpecificOutput", {})
            if output.get("permissionDecision") == "deny":
                return str(output["permissionDecisionReason"])
            args, context = output.get("updatedInput", args), output.get("additionalContext", context)
        _, server, tool = name.split("__")
        if server == "shop":  # a server of its own
            return pay({"currency": "USD", **args}, call_key=use_id) + context
        return await self._call_sdk_server(server, tool, args)

    async def _call_sdk_server(self, server: str, tool: str, args: dict[str, Any]) -> str:
        """A call of a server in the SDK's process, with the handshake before it."""
        about = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "cli", "version": "1"},
        }
        await self._mcp(server, "initialize", about)
        listed = await self._mcp(server, "tools/list", {})
        assert tool in [one["name"] for one in listed["tools"]]
        result = await self._mcp(server, "tools/call", {"name": tool, "arguments": args})
        return "".join(one["text"] for one in result["content"])

    async def _mcp(self, server: str, method: str, params: dict[str, Any]) -> Any:
        self._ids += 1
        message = {"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params}
        answer = await self._ask({"subtype": "mcp_message", "server_name": server, "message": message})
        return answer["response"]["mcp_response"]["result"]

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """A control request to the SDK, and its response."""
        self._ids += 1
        event, holder = anyio.Event(), []
        self._answers[f"req_{self._ids}"] = (event, holder)
        await self._send.send(
            {"type": "control_request", "request_id": f"req_{self._ids}", "request": request}
        )
        await event.wait()
        return dict(holder[0])
