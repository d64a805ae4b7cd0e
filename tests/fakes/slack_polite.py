"""A Slack that takes everything and remembers nothing, for worlds that have the app and are not about it.

One server a process, on a loopback port of its own, for as long as the process lives. What is about Slack talks to the
third-party server in `tests/counterparts/slack.py` instead.
"""

from __future__ import annotations

import functools
import itertools
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_counter = itertools.count(1)


class _Answers(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.dumps({"ok": True, **_said(self.path.partition("?")[0].rpartition("/")[2])}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


def _said(method: str) -> dict[str, Any]:
    if method == "auth.test":
        return {"team_id": "T0ACME", "user_id": "U0COUNTERSIGN"}
    if method == "conversations.list":
        return {"channels": [{"id": "C0APPROVALS", "name": "approvals"}]}
    if method.startswith("conversations."):
        return {"messages": [], "channel": {"id": "D0SOMEBODY"}}
    return {"channel": "C0APPROVALS", "ts": f"1795000000.{next(_counter):06}"}


@functools.cache
def polite_slack() -> str:
    """The address of its API."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}/api/"
