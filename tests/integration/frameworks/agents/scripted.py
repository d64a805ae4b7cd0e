"""What the agents of these tests share: the gated tool, their orders, and the report a test reads.

Each agent is a program of its own, run by the interpreter that has the framework. A test starts it twice to restart it.
"""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path
from typing import Any

from countersign import ToolRegistry, current_effect, tool

ORDER: dict[str, Any] = json.loads(os.environ.get("AGENT_ORDER", "{}"))
"""`step` (start or resume), `key`, `calls` of the model as arguments, `accept_edits`, `answer` of the resume."""

FOLDER = Path(os.environ.get("AGENT_FOLDER", "."))
"""Where the agent keeps what its framework stores."""


def declare(registry: ToolRegistry | None = None, *, permission: bool = False, repeat: bool = False) -> Any:
    """The gated tool of these tests. As a permission it does nothing: another program acts."""

    @tool("refund", resource=("Order", "order_id"), registry=registry, repeat=repeat)
    def refund(order_id: str, amount_cents: int, currency: str = "USD") -> str:
        """Give money back."""
        if permission:
            return "allowed"
        return pay({"order_id": order_id, "amount_cents": amount_cents, "currency": currency})

    return refund


def pay(body: dict[str, Any], call_key: str | None = None) -> str:
    """Call the payment provider of these tests."""
    headers = {"Idempotency-Key": call_key or current_effect().call_key}
    request = urllib.request.Request(os.environ["PROVIDER_URL"], json.dumps(body).encode(), headers)
    urllib.request.urlopen(request, timeout=10).close()
    return f"refunded {body['amount_cents']} for {body['order_id']}"


def options() -> dict[str, Any]:
    """Options for the gated tools."""
    return {"accept_edits": ORDER.get("accept_edits", False)}


def report(*, heard: list[str], pending: list[Any], said: str, **more: Any) -> None:
    """Report what the model has read of its calls, what is pending, and the model's last words."""
    print(json.dumps({"heard": heard, "pending": pending, "said": said, **more}))
