"""Payments that are counted: an agent may spend 1,000 in a day, and call on an account ten times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, select

from policy_service.storage.core import table
from policy_service.storage.reservations import ReservationRow
from tests.fakes.payments import ANYBODY, PAY, SHIP, Payments, gate

CAP, CALLS = 1_000, 10

METERS = """
[meters.spent]
sum = "/amount"
of = ["money"]
per = "principal"
window = "24h"

[meters.shipped]
count = true
of = ["ship", "pay"]
per = "resource"
window = "day"
"""
CAPS = f"""
@id("cap") forbid (principal, action == Action::"pay", resource)
when {{ context.history.spent + context.input.amount > {CAP} }};
@id("calls") forbid (principal, action in [Action::"ship", Action::"pay"], resource)
when {{ context.history.shipped >= {CALLS} }};
"""
ASKS = gate("large", "finance", "context.input.amount > 500")


def counted_pay(**more: Any) -> dict[str, Any]:
    """The payment, whose amount is never negative."""
    properties = {**PAY["args"]["properties"], "amount": {"type": "integer", "minimum": 0}}
    return PAY | {"args": {**PAY["args"], "properties": properties}} | more


def metered(path: Path) -> Payments:
    """The bundle of these payments; parcels are sent by the warehouse, which is not the agent."""
    folder = Payments(path)
    folder.write("tools/pay.json", counted_pay())
    folder.write("tools/ship.json", SHIP)
    folder.write("meters.toml", METERS)
    folder.policies(ANYBODY + ASKS + CAPS)
    return folder


def held(conn: Connection) -> int:
    """What is reserved or consumed by the one agent of a test."""
    c = table(ReservationRow).c
    counted = (c.field == "/amount", c.given_back_at.is_(None))
    return int(conn.execute(select(func.coalesce(func.sum(c.amount), 0)).where(*counted)).scalar_one())
