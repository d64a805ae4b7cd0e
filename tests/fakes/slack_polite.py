"""A Slack that takes everything and remembers nothing, for worlds that have the app and are not about it.

One server a process, on a loopback port of its own, for as long as the process lives. What is about Slack talks to the
third-party server in `tests/counterparts/slack.py` instead.
"""

from __future__ import annotations

import functools
import itertools
import json
from typing import Any

from tests.fakes.http_server import Loopback, Quiet

_counter = itertools.count(1)


class _Answers(Quiet):
    def respond(self) -> None:
        self.body()
        said = {"ok": True, **_said(self.path.partition("?")[0].rpartition("/")[2])}
        self.answer(200, json.dumps(said).encode(), {"Content-Type": "application/json"})


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
    return f"{Loopback(_Answers).__enter__().url}/api/"
