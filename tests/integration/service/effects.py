"""Calls of tools, as the SDK submits them."""

from __future__ import annotations

from typing import Any

from tests.fakes.world import World


async def call(world: World, tool: str, args: dict[str, Any], **members: Any) -> dict[str, Any]:
    """One staged call of a tool as the bundle in force describes it."""
    return {"tool": tool, "tool_digest": await world.manifest_digest(tool), "args": args, **members}


async def refund(world: World, amount_cents: int = 1_200, **args: Any) -> dict[str, Any]:
    """A refund to an open account; above 5,000 people are asked, above 500,000 two of them."""
    given = {"payment_id": "pay_1", "amount_cents": amount_cents, "currency": "USD", "customer": "cus_1001"}
    return await call(world, "refund", {**given, "reason": "late delivery", **args})


async def pay(world: World, amount: int = 10, account: str = "acme", **args: Any) -> dict[str, Any]:
    """A payment that can be taken back; above 100 finance is asked, above 1,000 two of it."""
    return await call(world, "pay", {"account": account, "amount": amount, **args})


async def mail(world: World, text: str = "hello") -> dict[str, Any]:
    """A mail; nothing takes it back."""
    return await call(world, "mail", {"to": "acme", "text": text})


async def ship(world: World, order: str = "o1") -> dict[str, Any]:
    """A parcel the warehouse sends, not the agent."""
    return await call(world, "ship", {"order": order})
