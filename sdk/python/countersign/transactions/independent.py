"""Commits the effects of `transaction(independent=True)`, each on its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from countersign.errors import CountersignError, IndependentFailures
from countersign.transactions.live_step import LiveStep


async def commit_each(steps: Sequence[LiveStep], commit: Callable[[LiveStep], Awaitable[None]]) -> None:
    """Commit every effect on its own; a refused one does not block the others.

    Raises:
        IndependentFailures: with what was refused, and what fired.
    """
    failures: list[CountersignError] = []
    failed: list[str] = []
    fired: list[str] = []
    for position, step in enumerate(steps):
        names = [call.tool.name for call in step.calls]
        try:
            await commit(step)
            fired += names
        except CountersignError as failure:
            failures.append(failure)
            failed += names
        except BaseException as interrupt:
            for rest in steps[position + 1 :]:
                rest.abort(f"interrupted by {type(interrupt).__name__}")
            raise
    if failures:
        raise IndependentFailures.from_failures(failures, failed, fired)
