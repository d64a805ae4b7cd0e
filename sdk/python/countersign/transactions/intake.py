"""Accepts tool calls into a transaction: from which code, and in which order.

A transaction accepts calls from the process, thread and task that entered it. A call from elsewhere is refused, because
people approve the list of calls, and a list whose order changes with every run could never be approved. Inside
`parallel()`, threads and tasks that were started inside it may call too; one that outlives its block is refused
afterwards. Such calls have no order among them, so they are sorted by call key, the same in every run.

`repeat()` and `parallel()` apply to the code inside the block and to the tasks and threads it starts, to no others.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from countersign.commit.attempt import describe_block_error
from countersign.commit.plan import require_own_enforcement_point
from countersign.concurrency import AsyncExecutor, run_sync
from countersign.contract import names
from countersign.contract.wire import Claimed
from countersign.errors import MisuseError, NotStageable, OutsideTransaction
from countersign.live.calls import LiveCallRequest
from countersign.tools.context import ExecutionContext, execution_context
from countersign.tools.definition import Tool
from countersign.tools.placeholder import Placeholder
from countersign.tools.tool import CallNames
from countersign.transactions.step import Step

if TYPE_CHECKING:
    from countersign.runtime import Engine

MAX_EFFECTS: Final = 100  # of one transaction, as the API allows: a person can still review them


OpenStep: TypeAlias = Callable[..., Coroutine[Any, Any, Step]]


@dataclass(slots=True)
class _Group:
    """One `parallel()` block."""

    number: int
    start: int
    from_elsewhere: bool = False  # a call came from another thread or task


_group_here: ContextVar[_Group | None] = ContextVar("countersign_parallel_block", default=None)
_repeating_here: ContextVar[Intake | None] = ContextVar("countersign_repeating", default=None)


T = TypeVar("T")


@contextmanager
def _set_in_context(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set a context variable for the block, and for contexts copied meanwhile. Both may outlive the block."""
    before = variable.get()
    variable.set(value)
    try:
        yield
    finally:
        variable.set(before)


class Intake:
    """The calls of one transaction."""

    def __init__(
        self,
        key: str,
        engine: Engine,
        *,
        independent: bool,
        open_step: OpenStep,
        blocking: Engine | None = None,
        claimed: Claimed | None = None,
    ) -> None:
        self.steps: list[Step] = []
        self.placeholders: list[Placeholder[Any]] = []
        self.calls = CallNames(engine.settings.agent, key)
        self.made: list[tuple[str, Coroutine[Any, Any, Any]]] = []  # calls of async tools, awaited or not
        self.owner: Final[ExecutionContext] = execution_context()
        self.is_open = True
        self._open_step = open_step
        self._key = key
        self._engine = engine
        self._blocking = blocking or engine  # the engine for plain live tools, on any thread
        self._claimed = claimed
        self._independent = independent
        self._lock = threading.RLock()
        self._group: _Group | None = None
        self._groups = 0
        self._dropped_secrets = False  # of an inner block of independent effects

    def end(self) -> tuple[str, ...]:
        """Close the intake. Returns the async tools that were called and never awaited. A call that was closed, or
        cancelled before it began, was abandoned on purpose.
        """
        self.is_open = False
        made, self.made = self.made, []
        forgotten = [name for name, call in made if inspect.getcoroutinestate(call) == inspect.CORO_CREATED]
        return tuple(dict.fromkeys(forgotten))

    # --------------------------------------------------------------------------------------- what tools call

    def accept(self, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Stage a call, or run it live. An async live tool returns an awaitable.

        Raises:
            OutsideTransaction: called from an unknown process, thread or task, or after the block.
            NotStageable: the call cannot be written as bytes.
            Stopped, WorldError: the policy was evaluated for this live tool and did not release it (live/calls.py).
        """
        self._require_known(tool)
        self._require_kind(tool)
        raw = tool.signature.freeze(args, kwargs)
        if tool.lane == "live":
            return self._run_live(tool, raw)
        self.require_stageable(tool)
        with self._lock:
            self._require_known(tool)  # again: a parallel block may have ended meanwhile
            return self._stage(tool, raw)

    def _stage(self, tool: Tool, raw: bytes) -> Placeholder[Any]:
        known = self.calls.known(tool, raw, repeating=_repeating_here.get() is self)
        if known is not None:
            return known
        if len(self.placeholders) >= MAX_EFFECTS:
            raise NotStageable(f"a transaction holds at most {MAX_EFFECTS} staged effects; split the step")
        if self._group is not None and not (tool.own_thread or tool.is_async):
            raise NotStageable(
                f"{tool.name} is bound to one thread (own_thread=False), and `txn.parallel()` fires in several; "
                "call it outside that block"
            )
        n, call_key = self.calls.next(tool, raw)
        group = 0 if self._group is None else self._group.number
        placeholder = self._step_for(call_key).stage(
            tool, raw, n, call_key, group, self._engine.manifests.staged_secret_pointers(tool)
        )
        self.calls.staged(tool, raw, placeholder)
        self.placeholders.append(placeholder)
        return placeholder

    def _run_live(self, tool: Tool, raw: bytes) -> Any:
        """A live effect runs at every call: equal live calls are not merged."""
        if self._independent:
            raise NotStageable(
                f"{tool.name} is live, and effects of transaction(independent=True) each stand alone; use a plain one"
            )
        with self._lock:
            self._require_known(tool)
            n, call_key = self.calls.next(tool, raw)
            self.calls.ran(tool, raw)
        call = LiveCallRequest(tool, raw, n, call_key)
        if tool.is_async:
            return self._run_after_check(call)
        with self._named(call):
            run_sync(self.steps[0].require_released(self._blocking, call, self._claimed))
        return self._begin_live(call)()

    async def _run_after_check(self, call: LiveCallRequest) -> Any:
        with self._named(call):
            await self.steps[0].require_released(self._engine, call, self._claimed)
        answer = self._begin_live(call)()
        return await answer if inspect.isawaitable(answer) else answer  # a replay returns a recorded result

    def _begin_live(self, call: LiveCallRequest) -> Callable[[], Any]:
        """The policy check took time, so the block may have ended meanwhile."""
        with self._lock:
            self._require_known(call.tool)
            secret = self._engine.manifests.live_secret_pointers(call.tool)
            return self.steps[0].begin_live(call.tool, call.args, call.call_key, secret)

    @contextmanager
    def _named(self, call: LiveCallRequest) -> Iterator[None]:
        """Give the call's number back if the call was refused before it ran."""
        calls = self.calls
        try:
            yield
        except BaseException:
            with self._lock:
                calls.refused(call.tool, call.args, call.n)
            raise

    def live_call_has_secrets(self, tool: Tool) -> bool:
        """Whether a live tool has secret arguments."""
        return bool(self._engine.manifests.live_secret_pointers(tool))

    def _step_for(self, call_key: str) -> Step:
        if not self._independent:
            return self.steps[0]
        agent = self._engine.settings.agent
        txn = names.independent_txn_id(agent=agent, run_key=self._key, call_key=call_key)
        # Staging may run on an event loop, so it does not wait: a busy effect is refused at once.
        step = run_sync(
            self._open_step(self._engine, txn=txn, run_key=self._key, independent=True, patient=False)
        )
        self.steps.append(step)
        return step

    # -------------------------------------------------------------------------------------- blocks inside it

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A block that is rolled back if it raises; earlier work of the transaction stays.

        Raises:
            OutsideTransaction: not where the transaction was opened.
            MisuseError: it is inside `txn.parallel()`.
            NotStageable: a live adapter has no savepoints, or a live effect is running.
            SavepointLost, SessionLost: a live effect could not be rolled back alone.
        """
        self._require_own_block("a nested transaction")
        staged, steps, calls = len(self.placeholders), len(self.steps), self.calls.copy()
        made = len(self.made)
        try:
            if self._independent:
                yield
            else:
                with self.steps[0].savepoint(self._blocking):
                    yield
        except BaseException as error:
            if execution_context().pid != self.owner.pid:
                raise
            self.calls = calls
            del self.placeholders[staged:], self.made[made:]
            dropped = self.steps[steps:]
            del self.steps[steps:]
            run_sync(self._fail(dropped, self.steps, self._blocking, error, "the inner block"))
            raise

    async def fail(self, error: BaseException) -> None:
        """The body raised: roll everything back. The journal keeps the calls it made."""
        await self._fail(self.steps, (), self._engine, error, "the body")

    async def _fail(
        self, steps: Sequence[Step], others: Sequence[Step], engine: Engine, error: BaseException, where: str
    ) -> None:
        """End these steps. The error may also quote secrets of the `others`."""
        try:
            for step in steps:
                step.undo_live()
            for step in (*others, *steps):
                await step.learn_secrets(engine)
        finally:
            self._dropped_secrets |= any(step.has_secrets for step in steps)
            hidden = self._dropped_secrets or any(step.has_secrets for step in others)
            note = f"{where} raised {describe_block_error(error, has_secrets=hidden)}"
            for step in steps:
                step.abort(note)

    def repeat(self) -> AbstractContextManager[None]:
        """A block in which an equal call counts as another call."""
        return _set_in_context(_repeating_here, self)

    @contextmanager
    def parallel(self) -> Iterator[None]:
        """A block whose staged calls may come from any thread or task, and fire concurrently.

        Raises:
            OutsideTransaction: not where the transaction was opened.
            MisuseError: it is inside another one, or the transaction is independent.
        """
        self._require_own_block("a parallel block")
        if self._independent:
            raise MisuseError(
                "transaction(independent=True) commits one effect after the other; use a plain transaction"
            )
        self._groups += 1
        group = self._group = _Group(self._groups, len(self.placeholders))
        try:
            with _set_in_context(_group_here, group):
                yield
        finally:
            with self._lock:
                self._group = None
                if execution_context().pid == self.owner.pid:
                    self._end_of(group)

    def _end_of(self, group: _Group) -> None:
        """Sort calls of several threads by call key, which is the same in every run."""
        calls = self.steps[0].calls[group.start :]
        if group.from_elsewhere:
            calls = tuple(sorted(calls, key=lambda call: call.call_key))
            self.placeholders[group.start :] = sorted(
                self.placeholders[group.start :], key=lambda one: one.call_key
            )
        self.steps[0].end_block(group.start, calls if group.from_elsewhere else None)

    # --------------------------------------------------------------------------------------------- refusals

    def _require_known(self, tool: Tool) -> None:
        if not self.is_open:
            raise OutsideTransaction(f"{tool.name} was called after transaction {self._key!r} had ended")
        place, group = execution_context(), self._group
        if place == self.owner:
            return
        if group is not None and place.pid == self.owner.pid:
            if _group_here.get() is not group:
                raise OutsideTransaction(
                    f"{tool.name} was called by a thread or task that was begun before the parallel block of "
                    f"{self._key!r} that is open now; begin it inside that `with txn.parallel():`, and wait for it "
                    "there"
                )
            group.from_elsewhere = True
            return
        raise OutsideTransaction(
            f"{tool.name} was called from a process, thread or task that transaction {self._key!r} does not know; "
            "call it from where the transaction was opened, or inside `with txn.parallel():`"
        )

    def _require_own_block(self, what: str) -> None:
        if not self.is_open or execution_context() != self.owner:
            raise OutsideTransaction(
                f"{what} is opened where transaction {self._key!r} was, and before that has ended"
            )
        if self._group is not None:
            raise MisuseError(
                f"{what} cannot be opened inside `txn.parallel()`, whose calls have no order; open it around that"
            )

    def _require_kind(self, tool: Tool) -> None:
        if tool.is_async and not isinstance(self._engine.executor, AsyncExecutor):
            raise NotStageable(
                f"{tool.name} is async; open the transaction with `async with transaction(...)`"
            )

    def require_stageable(self, tool: Tool) -> None:
        """Refuse early, with the information at hand; the rest is checked when the list is frozen.

        Raises:
            RegistrationError: a compensation is not registered, or the manifest is invalid.
            NotStageable: it has another enforcement point.
        """
        registry = self._engine.registry
        if tool.draft.compensate is not None:
            registry.require(tool.draft.compensate, f"{tool.name!r} names it as its compensation")
        manifest = self._engine.manifests.local_manifest(tool)
        if manifest is None:
            return
        require_own_enforcement_point(manifest, self._engine.settings.agent)
        if manifest.compensation is not None:
            registry.require(manifest.compensation.tool, f"the manifest of {tool.name!r} compensates with it")
