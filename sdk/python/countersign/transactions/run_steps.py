"""Run steps given as data as one transaction: people approve all of them at once, and they commit as one or not at all.

run_steps([{"tool": "charge", "args": {...}}, [{"tool": "mail", ...}, {"tool": "sms", ...}]], key="order-4")
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Unpack

from countersign.process_runtime import default_runtime
from countersign.tools.registry import ToolRegistry, default_registry
from countersign.tools.results import Placeholder
from countersign.transactions.rerun import RunOptions, run_transaction
from countersign.transactions.schedule import Schedule, Steps
from countersign.transactions.transaction import Transaction


def run_steps(
    steps: Steps, *, key: str, only: Collection[str] | None = None, **options: Unpack[RunOptions]
) -> dict[str, Any]:
    """Run steps (lists and mappings, or JSON text) as one transaction and return the results by step id, or by position
    from "1" for steps without an id.

    `only` names the tools they may use. Set it for steps written by a model: live ones run before a policy is
    evaluated. The other options are those of `run_transaction`: with `isolation=Retry(attempts=3)` all of them run
    again after an `IsolationConflict`. To try steps without doing them, pass `step_of(steps)` to
    `run_transaction(..., dry_run=True)`.

    Raises:
        StepsRefused: an unknown tool, arguments that do not fit, a cycle, an async tool: lists all problems, before
            step 1.
        CountersignError: as `run_transaction` does.
    """
    chosen = options.get("runtime") or default_runtime()
    schedule = Schedule(steps, chosen.registry, only)
    schedule.require_plain()
    answers = run_transaction(schedule.run, key=key, dry_run=False, **options | {"runtime": chosen})
    return _results(answers)


async def run_steps_async(
    steps: Steps, *, key: str, only: Collection[str] | None = None, **options: Unpack[RunOptions]
) -> dict[str, Any]:
    """`run_steps` in an event loop; the tools may be async."""
    chosen = options.get("runtime") or default_runtime()
    schedule = Schedule(steps, chosen.registry, only)
    answers = run_transaction(schedule.run_async, key=key, dry_run=False, **options | {"runtime": chosen})
    return _results(await answers)


def step_of(
    steps: Steps, *, only: Collection[str] | None = None, registry: ToolRegistry | None = None
) -> Callable[[Transaction], Any]:
    """The steps as a function of a transaction, async if one of their tools is. Pass it to `run_transaction(...,
    dry_run=True)`, `countersign plan` or `replay`.

    Raises:
        StepsRefused: with every problem found.
    """
    schedule = Schedule(steps, default_registry if registry is None else registry, only)
    return schedule.run_async if schedule.is_async else schedule.run


def _results(answers: Mapping[str, Any]) -> dict[str, Any]:
    """A call that may fail and did has no result: its placeholder is returned, with its `.error`."""
    return {
        name: one.result if isinstance(one, Placeholder) and one.outcome != "failed" else one
        for name, one in answers.items()
    }
