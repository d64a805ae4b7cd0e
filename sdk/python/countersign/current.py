"""Which transaction is watching this code, and which effect is firing. Two context variables, nothing else.

A context variable follows code into tasks and `asyncio.to_thread`; whether the transaction knows that task or
thread is the transaction's own question (`Transaction.require_known`).
"""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from countersign.errors import OutsideTransaction

if TYPE_CHECKING:
    from countersign.transaction import Transaction

current_transaction: ContextVar[Transaction | None] = ContextVar("countersign_transaction", default=None)


@dataclass(frozen=True, slots=True)
class FiringEffect:
    """What a tool may know about the effect it is being called for."""

    effect_id: str
    call_key: str  # the idempotency key: hand it to the service you call
    txn: str
    tool: str
    attempt_id: str


firing_effect: ContextVar[FiringEffect | None] = ContextVar("countersign_firing_effect", default=None)


def here() -> tuple[int, asyncio.Task[Any] | None]:
    """This thread, and this task if there is one."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident(), task


def current_effect() -> FiringEffect:
    """The effect the calling tool is fired for; pass its `call_key` on as the idempotency key.

    Raises:
        OutsideTransaction: no effect is firing here.
    """
    effect = firing_effect.get()
    if effect is None:
        raise OutsideTransaction(
            "current_effect() was called outside a firing tool; only a tool's body has an effect"
        )
    return effect
