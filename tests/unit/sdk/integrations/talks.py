"""What the talks of these tests ask for, and how one ends that waits for people."""

from __future__ import annotations

from typing import Any

REFUND = {"order_id": "o-4", "amount_cents": 1200}


def asked(end: Any) -> str:
    assert end.pending is not None
    assert "refund waits for finance" in end.text
    return str(end.pending.txn)
