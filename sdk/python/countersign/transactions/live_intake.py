"""Runs the live calls of one transaction, each after the policy has released it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from countersign.concurrency import run_sync
from countersign.errors import NotStageable
from countersign.live.calls import LiveCallRequest
from countersign.tools.definition import Tool
from countersign.transactions.intake import Intake


def run_live(intake: Intake, tool: Tool, raw: bytes) -> Any:
    """Run a live call now; an async live tool returns an awaitable. Equal live calls are not merged.

    Raises:
        NotStageable: the transaction is independent, or the tool cannot run here.
        Stopped, WorldError: the policy was evaluated for this live tool and did not release it (live/calls.py).
    """
    if intake.independent:
        raise NotStageable(
            f"{tool.name} is live, and effects of transaction(independent=True) each stand alone; use a plain one"
        )
    with intake.lock:
        intake.require_known(tool)
        n, call_key = intake.calls.next(tool, raw)
        intake.calls.ran(tool, raw)
    call = LiveCallRequest(tool, raw, n, call_key)
    if tool.is_async:
        return _run_after_check(intake, call)
    with _named(intake, call):
        run_sync(intake.steps[0].require_released(intake.blocking, call, intake.claimed))
    return _begin_live(intake, call)()


async def _run_after_check(intake: Intake, call: LiveCallRequest) -> Any:
    with _named(intake, call):
        await intake.steps[0].require_released(intake.engine, call, intake.claimed)
    answer = _begin_live(intake, call)()
    return await answer if inspect.isawaitable(answer) else answer  # a replay returns a recorded result


def _begin_live(intake: Intake, call: LiveCallRequest) -> Callable[[], Any]:
    """The policy check took time, so the block may have ended meanwhile."""
    with intake.lock:
        intake.require_known(call.tool)
        secret = intake.engine.manifests.live_secret_pointers(call.tool)
        return intake.steps[0].begin_live(call.tool, call.args, call.call_key, secret)


@contextmanager
def _named(intake: Intake, call: LiveCallRequest) -> Iterator[None]:
    """Give the call's number back if the call was refused before it ran."""
    calls = intake.calls
    try:
        yield
    except BaseException:
        with intake.lock:
            calls.refused(call.tool, call.args, call.n)
        raise
