"""What is current in this context: the transaction, the effect that is firing and its requests, or an import of tools.

A context variable follows code into tasks and `asyncio.to_thread`; whether the transaction knows that task, thread or
process is the transaction's own question (transactions/intake.py).

Rules for requests: a request has its place in the order in which the tool first sent each, in whichever try, and with
it its idempotency key: it keeps both in every later try; an equal one is that one again, so a tool that tries again by
itself does nothing twice. A later try sends new requests only once it has sent all that earlier ones did: else it may
repeat one with another body, or under the key of another. Two that differ are never under way at once, for the next try
might send them in the other order. What was begun and not refused may have been done, and then no later refusal says
that nothing happened.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from countersign.errors import MisuseError, NotDone, OutsideTransaction

if TYPE_CHECKING:
    from countersign.llm.ledger import Ledger
    from countersign.tools.definition import Tool


class RequestOrder:
    """Where the requests of all tries of a call stand, by their digests. `sent` are those of earlier tries, asked for
    once there is one; `keep` writes all of them down before a new one is sent.
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
        """Its place, counted from 1. `sent` are those of this try.

        Raises:
            NotDone: it is new, and others of earlier tries have not been sent again.
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
    """Those of one try. Any number of threads of the tool may use it."""

    def __init__(self, places: RequestOrder | None = None) -> None:
        self._lock = threading.Lock()
        self._places = places or RequestOrder()
        self._sent: set[str] = set()
        self._under_way: list[tuple[str, str]] = []
        self._acted = False

    @property
    def may_have_acted(self) -> bool:
        """Whether one of them was not refused, or has no answer yet."""
        with self._lock:
            return self._acted or bool(self._under_way)

    @contextmanager
    def sending(self, request: str, what: str) -> Iterator[int]:
        """While it is made, sent and judged: its place. `NotDone` says that it was refused or not sent; whatever else
        ends it, it may have been done.

        Raises:
            MisuseError: another one is under way.
            NotDone: no earlier try sent it, and this one leaves out what they did.
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
            for other, told in self._under_way:
                if other != request:
                    raise MisuseError(
                        f"{what} was not sent: {told} of the same call is under way, and they must come in the same "
                        "order in every try; send them one after the other, or make each a tool of its own"
                    )
            place = self._places.of(request, what, self._sent)
            self._sent.add(request)
            self._under_way.append((request, what))
            return place


_PLACE: Final = 4  # characters at the end of a call key that give way to a request's place


class OpenTransaction(Protocol):
    """A transaction, as tools and calls to models see it (transactions/transaction.py)."""

    key: str

    @property
    def has_ended(self) -> bool:
        """Whether its block was left."""

    @property
    def ledger(self) -> Ledger:
        """What counts the calls to models inside."""

    @property
    def run_key_for_budgets(self) -> str:
        """The run that they belong to."""

    def accept(self, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Stage a call, or run it live."""

    def made(self, tool: Tool, call: Coroutine[Any, Any, Any]) -> None:
        """An async tool was called."""


current_transaction: ContextVar[OpenTransaction | None] = ContextVar("countersign_transaction", default=None)


def open_transaction() -> OpenTransaction | None:
    """The one that this code is inside of. A task outlives the block that it was begun in, and is inside none then."""
    txn = current_transaction.get()
    return None if txn is None or txn.has_ended else txn


@dataclass(frozen=True, slots=True)
class FiringEffect:
    """What a tool may know about the effect it is being called for."""

    effect_id: str
    call_key: str  # the idempotency key: hand it to the service you call
    txn: str
    tool: str
    attempt_id: str
    run_key: str
    ledger: Ledger = field(compare=False, repr=False)  # counts what the tool asks of models
    is_probe: bool = False  # nothing fires: somebody asks whether it has happened
    in_doubt: bool = False  # an earlier call for it may have acted, whatever this one says
    requests: RequestTracker = field(default_factory=RequestTracker, compare=False, repr=False)
    """With which the tool changes something by `RestApi`, in this call for it."""
    over: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)
    """Set once nobody waits for the tool any more: what it still does, it does not do for this effect."""

    def request_key(self, place: int) -> str:
        """The idempotency key of a request with which the tool changes something, by its place among them: the call key
        of the first, and its first 60 characters with `-002` of the second. Some services take no longer ones.

        Raises:
            MisuseError: there is no such place.
        """
        if place < 1:
            raise MisuseError(f"there is no request {place} of a call: they are counted from 1")
        return self.call_key if place == 1 else f"{self.call_key[:-_PLACE]}-{place:0{_PLACE - 1}}"


firing_effect: ContextVar[FiringEffect | None] = ContextVar("countersign_firing_effect", default=None)


@contextmanager
def bind_effect(effect: FiringEffect) -> Iterator[None]:
    """What runs inside acts for this effect. A tool or a probe that calls another gated tool would fire it unasked: it
    is inside no transaction.
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
"""The script or module that is being imported for its tools, as its user named it."""


def require_no_probe(what: str) -> None:
    """Refuse what a probe must not do: it asks, and changes nothing.

    Raises:
        MisuseError: a probe does it.
    """
    asked = firing_effect.get()
    if asked is not None and asked.is_probe:
        raise MisuseError(
            f"the probe of {asked.tool} {what}; a probe asks whether a call has happened, and acts not"
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
    """A process, a thread of it, and a task if there is one; a forked child is another process."""

    pid: int
    thread: int
    task: asyncio.Task[Any] | None


def execution_context() -> ExecutionContext:
    """Where this code runs."""
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
            f"{effect.tool} goes on after nobody waits for it any more (its timeout, or an interrupt); its outcome "
            "is noted as unknown, and it must not act for that effect now"
        )
    return effect
