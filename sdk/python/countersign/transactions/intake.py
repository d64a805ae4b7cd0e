"""Accepts tool calls into a transaction: from which code, and in which order.

A transaction accepts calls from the process, thread and task that entered it. A call from elsewhere is refused, because
people approve the list of calls, and a list whose order changes with every run could never be approved. Inside
`parallel()`, threads and tasks that were started inside it may call too; one that outlives its block is refused
afterwards. Such calls have no order among them, so they are sorted by call key, the same in every run.
"""

from __future__ import annotations

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from countersign.async_executor import AsyncExecutor
from countersign.commit.plan import require_own_enforcement_point
from countersign.concurrency import run_sync
from countersign.contract import digests
from countersign.contract.admission import load
from countersign.contract.wire import Claimed
from countersign.errors import NotStageable, OutsideTransaction
from countersign.tools.context import ExecutionContext, execution_context
from countersign.tools.definition import Tool
from countersign.tools.results import Placeholder
from countersign.transactions.live_step import LiveStep

if TYPE_CHECKING:
    from countersign.runtime import Engine

MAX_EFFECTS: Final = 100  # of one transaction, as the API allows: a person can still review them
OpenStep: TypeAlias = Callable[..., Coroutine[Any, Any, LiveStep]]


@dataclass(slots=True)
class Group:
    """One `parallel()` block."""

    number: int
    start: int
    from_elsewhere: bool = False  # a call came from another thread or task


group_here: ContextVar[Group | None] = ContextVar("countersign_parallel_block", default=None)
repeating_here: ContextVar[Intake | None] = ContextVar("countersign_repeating", default=None)


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
        self.steps: list[LiveStep] = []
        self.placeholders: list[Placeholder[Any]] = []
        self.calls = CallNames(engine.settings.agent, key)
        self.made: list[tuple[str, Coroutine[Any, Any, Any]]] = []  # calls of async tools, awaited or not
        self.owner: Final[ExecutionContext] = execution_context()
        self.is_open = True
        self._open_step = open_step
        self.key = key
        self.engine = engine
        self.blocking = blocking or engine  # the engine for plain live tools, on any thread
        self.claimed = claimed
        self.independent = independent
        self.lock = threading.RLock()
        self.group: Group | None = None
        self.groups = 0
        self.dropped_secrets = False  # of an inner block of independent effects

    def end(self) -> tuple[str, ...]:
        """Close the intake. Returns the async tools that were called and never awaited. A call that was closed, or
        cancelled before it began, was abandoned on purpose.
        """
        self.is_open = False
        made, self.made = self.made, []
        forgotten = [name for name, call in made if inspect.getcoroutinestate(call) == inspect.CORO_CREATED]
        return tuple(dict.fromkeys(forgotten))

    # --------------------------------------------------------------------------------------- what tools call

    def freeze(self, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """A call from here as bytes.

        Raises:
            OutsideTransaction: called from an unknown process, thread or task, or after the block.
            NotStageable: the call cannot be written as bytes.
        """
        self.require_known(tool)
        self._require_kind(tool)
        return tool.signature.freeze(args, kwargs)

    def stage(self, tool: Tool, raw: bytes) -> Placeholder[Any]:
        """Stage a call and return its placeholder.

        Raises:
            RegistrationError, NotStageable: as `require_stageable`, or the transaction is full.
        """
        self.require_stageable(tool)
        with self.lock:
            self.require_known(tool)  # again: a parallel block may have ended meanwhile
            return self._stage(tool, raw)

    def _stage(self, tool: Tool, raw: bytes) -> Placeholder[Any]:
        known = self.calls.known(tool, raw, repeating=repeating_here.get() is self)
        if known is not None:
            return known
        if len(self.placeholders) >= MAX_EFFECTS:
            raise NotStageable(f"a transaction holds at most {MAX_EFFECTS} staged effects; split the step")
        if self.group is not None and not (tool.own_thread or tool.is_async):
            raise NotStageable(
                f"{tool.name} is bound to one thread (own_thread=False), and `txn.parallel()` fires in several; "
                "call it outside that block"
            )
        n, call_key = self.calls.next(tool, raw)
        group = 0 if self.group is None else self.group.number
        placeholder = self._step_for(call_key).stage(
            tool, raw, n, call_key, group, self.engine.manifests.staged_secret_pointers(tool)
        )
        self.calls.staged(tool, raw, placeholder)
        self.placeholders.append(placeholder)
        return placeholder

    def live_call_has_secrets(self, tool: Tool) -> bool:
        """Whether a live tool has secret arguments."""
        return bool(self.engine.manifests.live_secret_pointers(tool))

    def _step_for(self, call_key: str) -> LiveStep:
        if not self.independent:
            return self.steps[0]
        agent = self.engine.settings.agent
        txn = digests.independent_txn_id(agent=agent, run_key=self.key, call_key=call_key)
        # Staging may run on an event loop, so it does not wait: a busy effect is refused at once.
        step = run_sync(
            self._open_step(self.engine, txn=txn, run_key=self.key, independent=True, patient=False)
        )
        self.steps.append(step)
        return step

    # --------------------------------------------------------------------------------------------- refusals

    def require_known(self, tool: Tool) -> None:
        if not self.is_open:
            raise OutsideTransaction(f"{tool.name} was called after transaction {self.key!r} had ended")
        place, group = execution_context(), self.group
        if place == self.owner:
            return
        if group is not None and place.pid == self.owner.pid:
            if group_here.get() is not group:
                raise OutsideTransaction(
                    f"{tool.name} was called by a thread or task that was begun before the parallel block of "
                    f"{self.key!r} that is open now; begin it inside that `with txn.parallel():`, and wait for it "
                    "there"
                )
            group.from_elsewhere = True
            return
        raise OutsideTransaction(
            f"{tool.name} was called from a process, thread or task that transaction {self.key!r} does not know; "
            "call it from where the transaction was opened, or inside `with txn.parallel():`"
        )

    def _require_kind(self, tool: Tool) -> None:
        if tool.is_async and not isinstance(self.engine.executor, AsyncExecutor):
            raise NotStageable(
                f"{tool.name} is async; open the transaction with `async with transaction(...)`"
            )

    def require_stageable(self, tool: Tool) -> None:
        """Refuse early, with the information at hand; the rest is checked when the list is frozen.

        Raises:
            RegistrationError: a compensation is not registered, or the manifest is invalid.
            NotStageable: it has another enforcement point.
        """
        registry = self.engine.registry
        if tool.draft.compensate is not None:
            registry.require(tool.draft.compensate, f"{tool.name!r} names it as its compensation")
        manifest = self.engine.manifests.local_manifest(tool)
        if manifest is None:
            return
        require_own_enforcement_point(manifest, self.engine.settings.agent)
        if manifest.compensation is not None:
            registry.require(manifest.compensation.tool, f"the manifest of {tool.name!r} compensates with it")


class CallNames:
    """The calls of one transaction so far."""

    def __init__(self, agent: str, run_key: str) -> None:
        self._agent = agent
        self._run_key = run_key
        self._first: dict[tuple[str, bytes], Placeholder[Any]] = {}
        self._times: Counter[tuple[str, bytes]] = Counter()
        self._free: dict[tuple[str, bytes], set[int]] = {}  # of live calls that were refused

    def known(self, tool: Tool, raw: bytes, *, repeating: bool) -> Placeholder[Any] | None:
        """The placeholder of an equal call, unless this one is a repeat."""
        return None if tool.repeat or repeating else self._first.get((tool.name, raw))

    def next(self, tool: Tool, raw: bytes) -> tuple[int, str]:
        """`n` and the call key of the next call with these bytes."""
        free = self._free.get((tool.name, raw))
        n = min(free) if free else self._times[(tool.name, raw)]
        key = digests.call_key(agent=self._agent, run_key=self._run_key, tool=tool.name, args=load(raw), n=n)
        return n, key

    def staged(self, tool: Tool, raw: bytes, placeholder: Placeholder[Any]) -> None:
        """Register a staged call."""
        self._first.setdefault((tool.name, raw), placeholder)
        self.ran(tool, raw)

    def refused(self, tool: Tool, raw: bytes, n: int) -> None:
        """A live call did not run, so the next one reuses its `n`."""
        self._free.setdefault((tool.name, raw), set()).add(n)

    def copy(self) -> CallNames:
        """A copy to restore when what follows is rolled back."""
        other = CallNames(self._agent, self._run_key)
        other._first, other._times = dict(self._first), self._times.copy()
        other._free = {call: set(free) for call, free in self._free.items()}
        return other

    def ran(self, tool: Tool, raw: bytes) -> None:
        """Count a call."""
        free = self._free.get((tool.name, raw))
        if free:
            free.remove(min(free))
            return
        self._times[(tool.name, raw)] += 1
