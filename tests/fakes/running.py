"""Blocks of calls on the desk: what they call, how they are left, and what their caller holds afterwards."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from countersign import NotDone, Transaction, async_executor, tool
from countersign.async_executor import GRACE_SECONDS, AsyncExecutor
from countersign.concurrency import SyncExecutor
from tests.fakes.desk import Desk, failing_tool


@dataclass
class Left:
    """A block that has been left: its transaction, what each of its calls gave, and what it raised."""

    txn: Transaction
    placed: list[Any]
    error: Any = None

    @property
    def said(self) -> str:
        return str(self.error)


def run(desk: Desk, *calls: Any, key: str = "t-1", **options: Any) -> Left:
    """Leave a block well; a call is a tool with its arguments, and a list of calls is a parallel group."""
    left = Left(desk.step(key, **options), [])
    with left.txn:
        _call_each(left, calls)
    return left


def fails(desk: Desk, kind: Any, *calls: Any, match: str | None = None, **options: Any) -> Left:
    """The same, of a block that raises this kind of error."""
    left = Left(desk.step(options.pop("key", "t-1"), **options), [])
    with pytest.raises(kind, match=match) as raised, left.txn:
        _call_each(left, calls)
    left.error = raised.value
    return left


def _call_each(left: Left, calls: Any) -> None:
    for call in calls:
        if isinstance(call, list):
            with left.txn.parallel():
                _call_each(left, call)
        else:
            fn, *args = call
            left.placed.append(fn(*args))


async def run_async(desk: Desk, *calls: Any, key: str = "t-1", **options: Any) -> Left:
    """The same in an event loop."""
    left = Left(desk.step(key, **options), [])
    async with left.txn:
        for call in calls:
            if isinstance(call, list):
                with left.txn.parallel():
                    for fn, *args in call:
                        left.placed.append(await _answer(fn(*args)))
            else:
                fn, *args = call
                left.placed.append(await _answer(fn(*args)))
    return left


async def _answer(given: Any) -> Any:
    return await given if inspect.isawaitable(given) else given


def order_tool(desk: Desk, name: str = "", **options: Any) -> Callable[[Any], Any]:
    """Declare what is decorated as a tool on orders and have it reviewed: as drafted, or with `changes`."""
    changes = options.pop("changes", {})

    def declare(fn: Any) -> Any:
        said = {"resource": ("Order", "order_id"), **options}
        declared = tool(name or fn.__name__, registry=desk.registry, **said)(fn)
        desk.publish(declared, **changes)
        return declared

    return declare


def refusing_tool(desk: Desk, text: str = "no", name: str = "notify", **options: Any) -> Any:
    """A tool that knows that it did nothing."""
    return failing_tool(desk, NotDone(text), name, acts=False, **options)


def errors(desk: Desk, key: str = "t-1") -> dict[str, str]:
    """What the journal says was raised, by tool."""
    journal = desk.runtime.journal.transactions
    return {row.tool: row.error or "" for row in journal.effects(journal.find(key)[0])}


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timeout of a tool is over after a twentieth of it, and so is the grace after it."""
    for waits in (SyncExecutor, AsyncExecutor):
        monkeypatch.setattr(waits, "call", _hurrying(waits.call))
    monkeypatch.setattr(async_executor, "GRACE_SECONDS", GRACE_SECONDS / 20)


def _hurrying(call: Any) -> Any:
    def hurrying(waits: Any, fn: Any, kwargs: Any, seconds: float | None) -> Any:
        return call(waits, fn, kwargs, seconds and seconds / 20)

    return hurrying
