"""The blocks inside one transaction: nested, parallel and repeating ones, and what an error in one ends.

`repeat()` and `parallel()` apply to the code inside the block and to the tasks and threads it starts, to no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TypeVar

from countersign.commit.tool_errors import describe_block_error
from countersign.concurrency import run_sync
from countersign.errors import MisuseError, OutsideTransaction
from countersign.runtime import Engine
from countersign.tools.context import execution_context
from countersign.transactions.intake import Group, Intake, group_here, repeating_here
from countersign.transactions.live_step import LiveStep

T = TypeVar("T")


@contextmanager
def savepoint(intake: Intake) -> Iterator[None]:
    """A block that is rolled back if it raises; earlier work of the transaction stays.

    Raises:
        OutsideTransaction: not where the transaction was opened.
        MisuseError: it is inside `txn.parallel()`.
        NotStageable: a live adapter has no savepoints, or a live effect is running.
        SavepointLost, SessionLost: a live effect could not be rolled back alone.
    """
    _require_own_block(intake, "a nested transaction")
    staged, steps, calls = len(intake.placeholders), len(intake.steps), intake.calls.copy()
    made = len(intake.made)
    try:
        if intake.independent:
            yield
        else:
            with intake.steps[0].savepoint(intake.blocking):
                yield
    except BaseException as error:
        if execution_context().pid != intake.owner.pid:
            raise
        intake.calls = calls
        del intake.placeholders[staged:], intake.made[made:]
        dropped = intake.steps[steps:]
        del intake.steps[steps:]
        run_sync(_fail(intake, dropped, intake.steps, intake.blocking, error, "the inner block"))
        raise


async def fail(intake: Intake, error: BaseException) -> None:
    """The body raised: roll everything back. The journal keeps the calls it made."""
    await _fail(intake, intake.steps, (), intake.engine, error, "the body")


async def _fail(
    intake: Intake,
    steps: Sequence[LiveStep],
    others: Sequence[LiveStep],
    engine: Engine,
    error: BaseException,
    where: str,
) -> None:
    """End these steps. The error may also quote secrets of the `others`."""
    try:
        for step in steps:
            step.undo_live()
        for step in (*others, *steps):
            await step.learn_secrets(engine)
    finally:
        intake.dropped_secrets |= any(step.has_secrets for step in steps)
        hidden = intake.dropped_secrets or any(step.has_secrets for step in others)
        note = f"{where} raised {describe_block_error(error, has_secrets=hidden)}"
        for step in steps:
            step.abort(note)


def repeat(intake: Intake) -> AbstractContextManager[None]:
    """A block in which an equal call counts as another call."""
    return _set_in_context(repeating_here, intake)


@contextmanager
def parallel(intake: Intake) -> Iterator[None]:
    """A block whose staged calls may come from any thread or task, and fire concurrently.

    Raises:
        OutsideTransaction: not where the transaction was opened.
        MisuseError: it is inside another one, or the transaction is independent.
    """
    _require_own_block(intake, "a parallel block")
    if intake.independent:
        raise MisuseError(
            "transaction(independent=True) commits one effect after the other; use a plain transaction"
        )
    intake.groups += 1
    group = intake.group = Group(intake.groups, len(intake.placeholders))
    try:
        with _set_in_context(group_here, group):
            yield
    finally:
        with intake.lock:
            intake.group = None
            if execution_context().pid == intake.owner.pid:
                _end_of(intake, group)


def _end_of(intake: Intake, group: Group) -> None:
    """Sort calls of several threads by call key, which is the same in every run."""
    calls = intake.steps[0].calls[group.start :]
    if group.from_elsewhere:
        calls = tuple(sorted(calls, key=lambda call: call.call_key))
        intake.placeholders[group.start :] = sorted(
            intake.placeholders[group.start :], key=lambda one: one.call_key
        )
    intake.steps[0].end_block(group.start, calls if group.from_elsewhere else None)


def _require_own_block(intake: Intake, what: str) -> None:
    if not intake.is_open or execution_context() != intake.owner:
        raise OutsideTransaction(
            f"{what} is opened where transaction {intake.key!r} was, and before that has ended"
        )
    if intake.group is not None:
        raise MisuseError(
            f"{what} cannot be opened inside `txn.parallel()`, whose calls have no order; open it around that"
        )


@contextmanager
def _set_in_context(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set a context variable for the block, and for contexts copied meanwhile. Both may outlive the block."""
    before = variable.get()
    variable.set(value)
    try:
        yield
    finally:
        variable.set(before)
