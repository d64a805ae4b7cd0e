"""The same agent with the Claude Code that the package carries: only its model is a script, behind HTTP on loopback."""

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from claude_agent_sdk import ClaudeSDKClient, ResultMessage, create_sdk_mcp_server, tool
from claude_tools_agent import PENDING, settings
from scripted import FOLDER, ORDER, pay, report

NAME, OPTIONS = settings()
READ: list[dict[str, Any]] = []
"""The results of calls that the model has read."""
WHOLE: list[str] = []
"""All that it has read, as text."""


class Model(BaseHTTPRequestHandler):
    """Anthropic's messages API: calls in one message, then the last word."""

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def do_POST(self) -> None:
        """One answer of the model."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        contents = [one["content"] for one in asked["messages"] if isinstance(one["content"], list)]
        READ[:] = [part for content in contents for part in content if part.get("type") == "tool_result"]
        WHOLE.append(json.dumps(asked["messages"]))
        offered = NAME in [one["name"] for one in asked.get("tools", [])]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for event in events(asked["model"], ORDER["calls"] if offered and not READ else []):
            self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())


def events(model: str, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A streamed answer with these calls, or with text."""
    about = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": []}
    about |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
    made: list[dict[str, Any]] = [{"type": "message_start", "message": about}]
    blocks = [
        (
            {"type": "tool_use", "id": f"toolu_{place}", "name": NAME, "input": {}},
            {"type": "input_json_delta", "partial_json": json.dumps(args)},
        )
        for place, args in enumerate(calls)
    ] or [({"type": "text", "text": ""}, {"type": "text_delta", "text": "Done."})]
    for index, (block, delta) in enumerate(blocks):
        made.append({"type": "content_block_start", "index": index, "content_block": block})
        made.append({"type": "content_block_delta", "index": index, "delta": delta})
        made.append({"type": "content_block_stop", "index": index})
    reason = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
    made.append({"type": "message_delta", "delta": reason, "usage": {"output_tokens": 1}})
    return [*made, {"type": "message_stop"}]


@tool("refund", "Give money back.", {"order_id": str, "amount_cents": int, "currency": str})
async def shop_refund(args: dict[str, Any]) -> dict[str, Any]:
    """A tool of another server, without a gate of its own: the hook decides about it."""
    return {"content": [{"type": "text", "text": pay(args, call_key="none")}]}


async def main() -> None:
    """One run of the process."""
    model = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=model.serve_forever, daemon=True).start()
    if ORDER["gate"] == "hook":
        OPTIONS.mcp_servers = {"shop": create_sdk_mcp_server("shop", tools=[shop_refund])}
    OPTIONS.allowed_tools, OPTIONS.setting_sources, OPTIONS.cwd = [NAME], [], str(FOLDER)
    OPTIONS.env = {"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{model.server_port}", "ANTHROPIC_API_KEY": "none"}
    OPTIONS.env |= {
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "ENABLE_TOOL_SEARCH": "false",
    }
    said = ""
    async with ClaudeSDKClient(OPTIONS) as client:
        await client.query("Refund order o-1, please.")
        async for message in client.receive_response():
            said = str(message.result) if isinstance(message, ResultMessage) else said
    report(heard=[text_of(one["content"]) for one in READ], pending=PENDING, said=said, whole=WHOLE[-1])


def text_of(content: Any) -> str:
    """The text of a result."""
    return content if isinstance(content, str) else "".join(one.get("text", "") for one in content)


if __name__ == "__main__":
    asyncio.run(main())
