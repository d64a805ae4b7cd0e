"""Isolation of live work: `isolation=` between transactions, and one live effect at a time inside one.

    Abort()      compare what live effects read before anything is submitted; `IsolationConflict` if it changed. Always
    Retry(n)     `run_transaction` runs the body again after a conflict, n times in all; each run is a list of its own
    Serialize()  first wait until no other Serialize transaction on this journal holds the resources, then lock them

`Serialize` avoids work that a conflict would undo. The comparison still decides, because others need not use Serialize.
It locks every resource when the transaction is entered, all at once, so there is no deadlock and no wait in the middle
of a tool. It holds no lock while people decide.

A session is one connection, and two concurrent effects in it would undo each other's work, so each live effect waits
for the one before it. A live tool may call another one of the same transaction, as a part of itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from countersign.adapters.reads import READS
from countersign.clock import backoff
from countersign.errors import IsolationConflict, MisuseError, NotStageable, OutsideTransaction, ResourceBusy
from countersign.tools.context import ExecutionContext, execution_context

if TYPE_CHECKING:
    from countersign.adapters.protocol import LiveAdapter
    from countersign.journal import Lease
    from countersign.runtime import Engine

_TURN_POLL_SECONDS: Final = 0.002  # a task waits for a thread: no event of one loop serves both


class _Holder:
    """The live effect that holds the lock. Code it starts inherits it, also after the effect has ended."""

    def __init__(self, turns: SessionLock) -> None:
        self.turns, self.over = turns, False


_inside: ContextVar[_Holder | None] = ContextVar("countersign_inside_live_effect", default=None)


class SessionLock:
    """A lock for the live effects of one transaction."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: ExecutionContext | None = None
        self._block = 0  # the block that may run effects now

    @property
    def is_held_here(self) -> bool:
        """Whether the calling code is part of a live effect."""
        turn = _inside.get()
        return turn is not None and turn.turns is self

    def end_block(self) -> bool:
        """End the block: effects that still wait are refused. Returns whether no other effect is running."""
        self._block += 1
        return not self._lock.locked() or self._holder == execution_context()

    @contextmanager
    def blocking(self, tool: str) -> Iterator[None]:
        """Hold the lock for a plain tool.

        Raises:
            NotStageable: waiting for the running effect would never end.
            OutsideTransaction: the block ended first.
        """
        if self._is_part(tool):
            yield
            return
        block = self._block
        if not self._lock.acquire(blocking=False):
            holder = self._holder
            if holder is not None and holder.thread == execution_context().thread:
                raise NotStageable(
                    f"{tool} would block the event loop forever, because another task's live effect runs in it; "
                    "make it "
                    "async, or call it with asyncio.to_thread"
                )
            self._lock.acquire()
        with self._held():
            self._require_same(block, tool)
            yield

    @asynccontextmanager
    async def awaiting(self, tool: str) -> AsyncIterator[None]:
        """Hold the lock for an async tool.

        Raises:
            NotStageable: as above.
        """
        if self._is_part(tool):
            yield
            return
        block = self._block
        while not self._lock.acquire(blocking=False):  # noqa: ASYNC110 - a thread may hold the lock
            await asyncio.sleep(_TURN_POLL_SECONDS)
        with self._held():
            self._require_same(block, tool)
            yield

    def _require_same(self, block: int, tool: str) -> None:
        if block != self._block:
            raise OutsideTransaction(
                f"{tool} waited for another live effect until its block had ended; wait inside the block for "
                "every thread and task "
                "that it has started"
            )

    def _is_part(self, tool: str) -> bool:
        turn = _inside.get()
        if turn is None or turn.turns is not self:
            return False
        if turn.over:
            raise NotStageable(
                f"{tool} was called by a thread or task that a live effect started and that outlived it; wait "
                "for it inside that effect, or start it outside"
            )
        if self._holder != execution_context():
            raise NotStageable(
                f"{tool} was called by a thread or task that another live effect started, and would wait for it "
                "forever; call it after that, or from the effect itself"
            )
        return True

    @contextmanager
    def _held(self) -> Iterator[None]:
        turn = _Holder(self)
        self._holder, token = execution_context(), _inside.set(turn)
        try:
            yield
        finally:
            turn.over = True
            _inside.reset(token)
            self._holder = None
            self._lock.release()


_MAX_ATTEMPTS: Final = 100  # after so many conflicts a resource needs Serialize
_PAUSE_SECONDS: Final = 0.02  # before the first repeat; doubled each time, half of it random
_MAX_PAUSE_SECONDS: Final = 0.5
_POLL_SECONDS: Final = 0.05  # between two looks at a held lock


@dataclass(frozen=True, slots=True)
class Abort:
    """Raise `IsolationConflict` when another writer changed what the live effects read. The default."""


ABORT: Final = Abort()


@dataclass(frozen=True, slots=True)
class Retry:
    """Run the body again after an `IsolationConflict`, `attempts` runs in all, then raise it.

    Raises:
        MisuseError: fewer than 2 or more than 100 attempts.
    """

    attempts: int = 3

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or not 1 < self.attempts <= _MAX_ATTEMPTS:
            raise MisuseError(
                f"Retry(attempts={self.attempts!r}) must be 2 to {_MAX_ATTEMPTS} runs, the first included; for one "
                "run write Abort()"
            )


@dataclass(frozen=True, slots=True)
class Serialize:
    """Lock the resources against all other `Serialize` transactions on the same journal.

    `adapters` are the live adapters that the block will use; by default those of every registered live tool. A live
    effect on another one is refused. `timeout_seconds` is how long entering may wait for others.

    Raises:
        MisuseError: the time is negative, or something in `adapters` is no live adapter.
    """

    timeout_seconds: float = 30.0
    adapters: Sequence[LiveAdapter] = ()

    def __post_init__(self) -> None:
        if not self.timeout_seconds >= 0:
            raise MisuseError(
                f"Serialize(timeout_seconds={self.timeout_seconds!r}) must be zero seconds or more"
            )
        given: object = self.adapters
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise MisuseError(
                f"adapters={given!r} is no list of live adapters; write Serialize(adapters=[files])"
            )
        for adapter in given:
            if not isinstance(getattr(adapter, "name", None), str):
                raise MisuseError(
                    f"{adapter!r} is no live adapter; write Serialize(adapters=[files]), with the adapter itself"
                )


Isolation: TypeAlias = Abort | Retry | Serialize


async def lock_resources(engine: Engine, lease: Lease, policy: Serialize) -> frozenset[str]:
    """Wait for the resources and lock all of them; returns their names.

    Raises:
        ResourceBusy: a living transaction still holds one when the time is up; nothing is locked.
    """
    chosen = policy.adapters or [tool.adapter for tool in engine.registry if tool.adapter is not None]
    resources = frozenset(adapter.name for adapter in chosen if adapter is not READS)
    locks, waited = engine.journal.resource_locks, 0.0
    while resources:
        taken = locks.first_held(resources) or locks.take(lease, resources)
        if taken is None:
            break
        if waited >= policy.timeout_seconds:
            raise ResourceBusy(taken.resource, taken.run_key, taken.holder, waited)
        pause = min(_POLL_SECONDS, policy.timeout_seconds - waited)
        await engine.executor.sleep(pause)
        waited += pause
    return resources


@dataclass(slots=True)
class ConflictRetries:
    """Counts the runs of one `run_transaction` that ended in an isolation conflict."""

    allowed: int
    spoilt: int = 0

    @classmethod
    def of(cls, isolation: Isolation) -> ConflictRetries:
        """As many runs as the policy allows."""
        return cls(isolation.attempts if isinstance(isolation, Retry) else 1)

    def pause_after(self, conflict: IsolationConflict) -> float:
        """The pause before the next run.

        Raises:
            IsolationConflict: no run is left; it names how many there were.
        """
        self.spoilt += 1
        if self.spoilt >= self.allowed:
            raise conflict if self.allowed == 1 else conflict.after(self.spoilt)
        return backoff(_PAUSE_SECONDS, self.spoilt - 1, _MAX_PAUSE_SECONDS)
