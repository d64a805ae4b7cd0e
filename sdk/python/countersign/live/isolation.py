"""Isolation of live work: `isolation=` between transactions, and turns among the live effects of one.

    Abort()      what live effects saw is compared before anything is asked; if it has moved, `Moved`. Always done
    Retry(n)     `run_transaction` runs the body again when it has, n times in all; each run is a list of its own
    Serialize()  first waits until no other Serialize transaction on this journal has the resources, then holds them

`Serialize` spares the work that a conflict would undo; the comparison still decides, for others need not use Serialize.
It takes every resource as the transaction is entered, all of them at once, so there is no deadlock and no wait in the
middle of a tool. It holds nothing while people decide.

A session is one connection, and two effects that run at once in it would undo each other's work: each live effect waits
until the one before it has ended. A live tool may call another of the same transaction, as a part of itself.
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

_TURN_POLL_SECONDS: Final = 0.002  # a task waits for a thread: no event of one loop reaches both


class _Holder:
    """One live effect that runs; whoever it starts has it too, and keeps it when it is over."""

    def __init__(self, turns: SessionLock) -> None:
        self.turns, self.over = turns, False


_inside: ContextVar[_Holder | None] = ContextVar("countersign_inside_live_effect", default=None)


class SessionLock:
    """Who may run a live effect now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: ExecutionContext | None = None
        self._block = 0  # which block may run effects now

    @property
    def is_held_here(self) -> bool:
        """Whether the code that asks is part of a live effect."""
        turn = _inside.get()
        return turn is not None and turn.turns is self

    def end_block(self) -> bool:
        """The block is over: who still waits for a turn is refused. Answers whether nobody is in the middle of one."""
        self._block += 1
        return not self._lock.locked() or self._holder == execution_context()

    @contextmanager
    def blocking(self, tool: str) -> Iterator[None]:
        """The turn of a plain tool.

        Raises:
            NotStageable: waiting for the effect that is running would never end.
            OutsideTransaction: the block was over first.
        """
        if self._is_part(tool):
            yield
            return
        block = self._block
        if not self._lock.acquire(blocking=False):
            holder = self._holder
            if holder is not None and holder.thread == execution_context().thread:
                raise NotStageable(
                    f"{tool} would stop the event loop for ever, for another task's live effect runs in it; make it "
                    "async, or call it with asyncio.to_thread"
                )
            self._lock.acquire()
        with self._held():
            self._require_same(block, tool)
            yield

    @asynccontextmanager
    async def awaiting(self, tool: str) -> AsyncIterator[None]:
        """The turn of an async tool.

        Raises:
            NotStageable: as above.
        """
        if self._is_part(tool):
            yield
            return
        block = self._block
        while not self._lock.acquire(blocking=False):  # noqa: ASYNC110 - a thread may hold it
            await asyncio.sleep(_TURN_POLL_SECONDS)
        with self._held():
            self._require_same(block, tool)
            yield

    def _require_same(self, block: int, tool: str) -> None:
        if block != self._block:
            raise OutsideTransaction(
                f"{tool} waited for its turn until its block was over; wait inside the block for every thread and task "
                "that it has started"
            )

    def _is_part(self, tool: str) -> bool:
        turn = _inside.get()
        if turn is None or turn.turns is not self:
            return False
        if turn.over:
            raise NotStageable(
                f"{tool} was called by a thread or task that a live effect has started and that goes on after it; wait "
                "for it inside that effect, or start it outside"
            )
        if self._holder != execution_context():
            raise NotStageable(
                f"{tool} was called by a thread or task that another live effect has started, and would wait for it "
                "for ever; call it after that, or from the effect itself"
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


_MAX_ATTEMPTS: Final = 100  # a resource that moved so often needs Serialize, not patience
_PAUSE_SECONDS: Final = 0.02  # before the first repeat; doubled each time, half of it random
_MAX_PAUSE_SECONDS: Final = 0.5
_POLL_SECONDS: Final = 0.05  # between two looks at somebody else's claim


@dataclass(frozen=True, slots=True)
class Abort:
    """Stop with `Moved` when somebody else changed what the live effects saw. What happens where nothing is said."""


ABORT: Final = Abort()


@dataclass(frozen=True, slots=True)
class Retry:
    """Run the body again when somebody else changed what its live effects saw; `attempts` runs in all, then `Moved`.

    Raises:
        MisuseError: fewer than two attempts are no repeat; more than a hundred are none that would help.
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
    """Have the resources to itself, as against all other `Serialize` transactions on the same journal.

    `adapters` are the live adapters that the block will use; without them they are those of every registered live
    tool. A live effect on another one is refused. `timeout_seconds` is how long entering may wait for others.

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


def require_isolation(isolation: object, *, reruns: bool) -> None:
    """Refuse what is no policy, or not one of this place.

    Raises:
        MisuseError: saying what to write.
    """
    if not isinstance(isolation, Abort | Retry | Serialize):
        raise MisuseError(
            f"isolation={isolation!r} is no policy; write isolation=Abort(), Retry(attempts=3) or "
            "Serialize(timeout_seconds=30)"
        )
    if isinstance(isolation, Retry) and not reruns:
        raise MisuseError(
            "a `with` block cannot be run again by the transaction it belongs to; put the body into a function and "
            f"write run_transaction(step, key=..., isolation=Retry(attempts={isolation.attempts}))"
        )


async def lock_resources(engine: Engine, lease: Lease, policy: Serialize) -> frozenset[str]:
    """Wait for the resources and take all of them; answers their names.

    Raises:
        ResourceBusy: somebody alive still has one when the time is up; nothing is taken.
    """
    chosen = policy.adapters or [tool.adapter for tool in engine.registry if tool.adapter is not None]
    resources = frozenset(adapter.name for adapter in chosen if adapter is not READS)
    claims, waited = engine.journal.claims, 0.0
    while resources:
        taken = claims.standing(resources) or claims.take(lease, resources)
        if taken is None:
            break
        if waited >= policy.timeout_seconds:
            raise ResourceBusy(taken.resource, taken.run_key, taken.holder, waited)
        pause = min(_POLL_SECONDS, policy.timeout_seconds - waited)
        await engine.waits.sleep(pause)
        waited += pause
    return resources


@dataclass(slots=True)
class ConflictRetries:
    """The runs of one `run_transaction` that somebody else has spoilt."""

    allowed: int
    spoilt: int = 0

    @classmethod
    def of(cls, isolation: Isolation) -> ConflictRetries:
        """As many as the policy says."""
        return cls(isolation.attempts if isinstance(isolation, Retry) else 1)

    def pause_after(self, moved: IsolationConflict) -> float:
        """How long to let the others go on before the next run.

        Raises:
            Moved: there is no next; it names how many there were.
        """
        self.spoilt += 1
        if self.spoilt >= self.allowed:
            raise moved if self.allowed == 1 else moved.after(self.spoilt)
        return backoff(_PAUSE_SECONDS, self.spoilt - 1, _MAX_PAUSE_SECONDS)
