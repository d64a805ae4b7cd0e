"""`@step(NAME)`: a function that `countersign resume` and workers may run again under its key.

A step with live work must run again once people have approved it, because its live work was undone while they decided.
`run_transaction` records the name of a registered step and its arguments before it calls it, so that another process
can do that without the program that began it. Arguments are bound by name with `functools.partial`.

Its live effects run again and its staged effects fire, if it stages exactly the list that was approved. Another list is
not submitted: nothing of it fires, and its live work is undone.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from countersign.async_executor import AsyncExecutor
from countersign.commit.review import CommitOptions
from countersign.concurrency import Executor, SyncExecutor
from countersign.contract.pointers import pointer_to
from countersign.errors import RegistrationError
from countersign.journal import TransactionRecord
from countersign.journal.steps import RecordedStep
from countersign.llm.ledger import Ledger
from countersign.runtime import Engine, Host
from countersign.settings import Settings
from countersign.tools.registered_steps import STEP_ATTRIBUTE, RegisteredStep
from countersign.tools.registry import ToolRegistry, default_registry
from countersign.tools.signature import Signature
from countersign.transactions.rerun import ListGuard, run_body
from countersign.transactions.transaction import Transaction

F = TypeVar("F", bound=Callable[..., Any])
_MAX_NAME: Final = 200  # characters


def step(
    name: str, /, *, secret: tuple[str, ...] | list[str] = (), registry: ToolRegistry | None = None
) -> Callable[[F], F]:
    """Register a function whose first argument is the transaction. It stays as it is; `run_transaction(fn, key=...)` or
    `run_transaction(partial(fn, order_id="o-1"), key=...)` records it. The journal encrypts the arguments in `secret`.

    Raises:
        RegistrationError: the name is in use or no text, the function takes no transaction, or an argument cannot be
            written as JSON.
    """
    if not 0 < len(name) <= _MAX_NAME:
        raise RegistrationError(f"a step has a name of 1 to {_MAX_NAME} characters: write @step('restock')")

    def decorate(fn: F) -> F:
        signature = Signature(_arguments(fn, name), name)
        pointers = tuple(one if one.startswith("/") else pointer_to(one) for one in secret)
        made = RegisteredStep(name, fn, signature, pointers, _run_again)
        (registry or default_registry).add_step(made)
        setattr(fn, STEP_ATTRIBUTE, made)
        return fn

    return decorate


def _arguments(fn: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function with the arguments after the transaction, for their types."""
    parameters = list(inspect.signature(fn).parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise RegistrationError(
            f"step {name!r} is called with the transaction first: write `def {name}(txn, ...):`"
        )

    @functools.wraps(fn)
    def arguments(**_: object) -> None: ...

    hints = {one: hint for one, hint in fn.__annotations__.items() if one != parameters[0].name}
    arguments.__annotations__ = hints
    arguments.__signature__ = inspect.Signature(parameters[1:])  # type: ignore[attr-defined]
    return arguments


@dataclass(frozen=True, slots=True)
class _Stoppable:
    """The host of a step: its process, whose worker may be stopping."""

    host: Host
    stopping: Callable[[], bool]

    @property
    def settings(self) -> Settings:
        return self.host.settings

    @property
    def registry(self) -> ToolRegistry:
        return self.host.registry

    @property
    def ledger(self) -> Ledger:
        return self.host.ledger

    def engine(self, executor: Executor) -> Engine:
        return replace(self.host.engine(executor), stopping=self.stopping)

    def sync_executor(self) -> SyncExecutor:
        return self.host.sync_executor()

    def async_executor(self) -> AsyncExecutor:
        return self.host.async_executor()


async def _run_again(
    step: RegisteredStep,
    engine: Engine,
    record: TransactionRecord,
    recorded: RecordedStep,
    approved: Sequence[tuple[str, str]],
) -> None:
    """Run the step under its key, with its recorded arguments. `approved`: tools and call keys.

    Raises:
        RerunDiffers: it staged another list, of which nothing was submitted.
        NotStageable: it does not take the recorded arguments any more.
        JournalSealed, JournalError: they cannot be read.
        CountersignError: as leaving a transaction does.
    """
    body = step.bound_to(engine.journal.steps.args(record.txn, recorded))
    terms = CommitOptions(accept_edits=engine.journal.edits.of(record.txn), keep_approved=True)
    guard = ListGuard(record.run_key, approved)
    host = _Stoppable(engine.host, engine.stopping)
    await run_body(Transaction(host, record.run_key, terms, guard=guard.require_same), engine.executor, body)
