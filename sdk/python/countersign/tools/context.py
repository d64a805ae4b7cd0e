"""Context variables: the open transaction, which gated tools call, the effect that is firing and its requests.

Context variables follow code into tasks and `asyncio.to_thread`. The transaction itself checks whether it knows the
task, thread or process (transactions/intake.py).

Requests of one effect are numbered in the order in which the tool first sent each, over all tries. The number
determines the idempotency key, and both stay the same in every later try. An equal request is the same request, so a
tool that retries by itself does nothing twice. A later try may send new requests only after it has repeated all earlier
ones; otherwise it could send one with another body, or under the key of another. Two different requests are never in
flight at once, because the next try might send them in the other order. After a request that may have been carried out,
a later refusal no longer means that nothing happened.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import CoroutineType, FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from countersign.errors import MisuseError, NotDone, OutsideTransaction

if TYPE_CHECKING:
    from countersign.llm.ledger import Ledger
    from countersign.tools.definition import Tool


class RequestOrder:
    """The request digests of all tries of a call, in order. `sent` loads those of earlier tries, on first use; `keep`
    stores all of them before a new one is sent.
    """

    def __init__(
        self,
        sent: Callable[[], Sequence[str]] = tuple,
        keep: Callable[[Sequence[str]], None] = lambda known: None,
    ) -> None:
        self._lock = threading.Lock()
        self._sent, self._keep = sent, keep
        self._known: list[str] | None = None

    def of(self, request: str, what: str, sent: Collection[str]) -> int:
        """The number of a request, counted from 1. `sent` are the requests of this try.

        Raises:
            NotDone: it is new, and this try has not repeated all requests of earlier tries.
        """
        with self._lock:
            known = self._known = [*self._sent()] if self._known is None else self._known
            if request not in known:
                if not set(known) <= set(sent):
                    raise NotDone(
                        f"{what} was not sent: no earlier try of this call has sent it (with this body, to this "
                        "address), and not all that was sent then came again; send the same in every try"
                    )
                self._keep([*known, request])
                known.append(request)
            return known.index(request) + 1


class RequestTracker:
    """The requests of one try. Thread-safe."""

    def __init__(self, places: RequestOrder | None = None) -> None:
        self._lock = threading.Lock()
        self._places = places or RequestOrder()
        self._sent: set[str] = set()
        self._under_way: list[tuple[str, str]] = []
        self._acted = False

    @property
    def may_have_acted(self) -> bool:
        """Whether one of them was not refused, or has no response yet."""
        with self._lock:
            return self._acted or bool(self._under_way)

    @contextmanager
    def sending(self, request: str, what: str) -> Iterator[int]:
        """Surrounds sending a request and interpreting its response; yields the request's number. `NotDone` means that
        it was refused or not sent; any other end means that it may have been carried out.

        Raises:
            MisuseError: another request is in flight.
            NotDone: no earlier try sent it, and this one has not repeated theirs.
        """
        place = self._begin(request, what)
        acted = True
        try:
            yield place
        except NotDone:
            acted = False
            raise
        finally:
            with self._lock:
                self._under_way.remove((request, what))
                self._acted = self._acted or acted

    def _begin(self, request: str, what: str) -> int:
        with self._lock:
            for other, running in self._under_way:
                if other != request:
                    raise MisuseError(
                        f"{what} was not sent: {running} of the same call is in flight, and requests must keep "
                        "their order in every try; send them one after the other, or make each a tool of its "
                        "own"
                    )
            place = self._places.of(request, what, self._sent)
            self._sent.add(request)
            self._under_way.append((request, what))
            return place


_PLACE: Final = 4  # characters at the end of a call key that a request's number replaces


class OpenTransaction(Protocol):
    """A transaction, as tools and calls to models see it (transactions/transaction.py)."""

    key: str

    @property
    def has_ended(self) -> bool:
        """Whether its block has ended."""

    @property
    def ledger(self) -> Ledger:
        """Counts the calls to models inside."""

    @property
    def run_key_for_budgets(self) -> str:
        """The run that these calls are counted for."""

    def accept(self, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Stage a call, or run it live."""

    def made(self, tool: Tool, call: Coroutine[Any, Any, Any]) -> None:
        """Register the coroutine of an async tool."""


current_transaction: ContextVar[OpenTransaction | None] = ContextVar("countersign_transaction", default=None)


def open_transaction() -> OpenTransaction | None:
    """The transaction around this code. A task that outlives the block is inside none."""
    txn = current_transaction.get()
    return None if txn is None or txn.has_ended else txn


@dataclass(frozen=True, slots=True)
class FiringEffect:
    """The effect that a tool is called for, as the tool may see it."""

    effect_id: str
    call_key: str  # the idempotency key: pass it to the service you call
    txn: str
    tool: str
    attempt_id: str
    run_key: str
    ledger: Ledger = field(compare=False, repr=False)  # counts the tool's calls to models
    is_probe: bool = False  # a probe runs: nothing fires
    in_doubt: bool = False  # an earlier call for it may have acted, regardless of this one's result
    requests: RequestTracker = field(default_factory=RequestTracker, compare=False, repr=False)
    """The state-changing requests of this call, made with `RestApi`."""
    over: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)
    """Set when the caller no longer waits for the tool: what it still does no longer counts for this effect."""

    def request_key(self, place: int) -> str:
        """The idempotency key of the request with this number: the call key for the first; for the second its first 60
        characters and `-002`. Some services accept no longer keys.

        Raises:
            MisuseError: there is no such number.
        """
        if place < 1:
            raise MisuseError(f"there is no request {place} of a call: they are counted from 1")
        return self.call_key if place == 1 else f"{self.call_key[:-_PLACE]}-{place:0{_PLACE - 1}}"


firing_effect: ContextVar[FiringEffect | None] = ContextVar("countersign_firing_effect", default=None)


@contextmanager
def bind_effect(effect: FiringEffect) -> Iterator[None]:
    """Run the block for this effect, outside any transaction, so that a tool or probe that calls another gated tool is
    refused.
    """
    token, outer = firing_effect.set(effect), current_transaction.get()
    current_transaction.set(None)
    try:
        yield
    finally:
        effect.over.set()
        current_transaction.set(outer)
        firing_effect.reset(token)


importing: ContextVar[str | None] = ContextVar("countersign_importing", default=None)
"""The script or module that is being imported for its tools, as the user named it."""


def require_no_probe(what: str) -> None:
    """Refuse an action in a probe, which may only read.

    Raises:
        MisuseError: a probe is running.
    """
    asked = firing_effect.get()
    if asked is not None and asked.is_probe:
        raise MisuseError(
            f"the probe of {asked.tool} {what}; a probe only finds out whether a call has happened"
        )


def require_not_importing() -> None:
    """Refuse to begin a step in a probe, or in a script that is only being imported for its tools.

    Raises:
        MisuseError: naming the probe, or the line and what to write above it.
    """
    require_no_probe("begins a transaction")
    name = importing.get()
    if name is not None:
        raise MisuseError(
            f"{_caller_location()} begins a transaction while {name!r} is only imported for its tools, so it would "
            'run each time anybody looks; write `if __name__ == "__main__":` above it and indent what follows'
        )


def _caller_location() -> str:
    """`file:line` of the nearest caller outside this package."""
    ours = f"{Path(__file__).parents[1]}{os.sep}"
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(ours):
        frame = frame.f_back
    return "this program" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


class ExecutionContext(NamedTuple):
    """A process, a thread of it, and a task if there is one. A forked child is another process."""

    pid: int
    thread: int
    task: asyncio.Task[Any] | None


def execution_context() -> ExecutionContext:
    """The current process, thread and task."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return ExecutionContext(os.getpid(), threading.get_ident(), task)


def current_effect() -> FiringEffect:
    """The effect the calling tool is fired for; pass its `call_key` on as the idempotency key.

    Raises:
        OutsideTransaction: no effect is firing here.
    """
    effect = firing_effect.get()
    if effect is None:
        raise OutsideTransaction(
            "current_effect() was called outside a firing tool; only a tool's body has an effect"
        )
    if effect.over.is_set():
        raise OutsideTransaction(
            f"{effect.tool} still runs after its caller stopped waiting (its timeout, or an interrupt); its "
            "outcome is recorded as unknown, and it must not act for that effect now"
        )
    return effect


TOOL_ATTRIBUTE: Final = "__countersign_tool__"


def gate(one: Tool) -> Callable[..., Any]:
    """The function callers get: it stages the call or runs it live in the open transaction, or refuses."""
    gated: Callable[..., Any]
    if one.is_async:
        gated = _GatedAsync(one)
    else:

        @functools.wraps(one.fn)
        def gated_plain(*args: Any, **kwargs: Any) -> Any:
            return _watching(one).accept(one, args, kwargs)

        gated = gated_plain
    setattr(gated, TOOL_ATTRIBUTE, one)
    return gated


class _GatedAsync:
    """The same for an async tool. Nothing of a call happens before it is awaited, so its coroutine is registered with
    the transaction. A plain function that returns a coroutine could do that, but Python 3.11 would take it for a plain
    tool, going by `__code__` alone.
    """

    def __init__(self, one: Tool) -> None:
        functools.update_wrapper(self, one.fn)
        self._tool = one
        self.__code__ = one.fn.__code__
        self.__defaults__, self.__kwdefaults__ = one.fn.__defaults__, one.fn.__kwdefaults__

    def __repr__(self) -> str:
        return f"<async tool {self._tool.name} of {self.__module__}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        call = cast("CoroutineType[Any, Any, Any]", self._call(args, kwargs))
        # the name in Python's warning if it is never awaited
        call.__name__ = call.__qualname__ = self._tool.name
        txn = open_transaction()
        if txn is not None:
            txn.made(self._tool, call)
        return call

    async def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        answer = _watching(self._tool).accept(self._tool, args, kwargs)
        return await answer if inspect.isawaitable(answer) else answer


def _watching(one: Tool) -> OpenTransaction:
    txn = current_transaction.get()
    if txn is None:
        raise OutsideTransaction(
            f"{one.name} was called outside a transaction, so it would be neither decided nor recorded; call it "
            "inside `with transaction(...)` (a new thread starts outside, one of a pool too: inside `with "
            "txn.parallel():` hand it `contextvars.copy_context().run`)"
        )
    return txn
