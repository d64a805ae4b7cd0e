"""What the live lane asks of a resource: run effects at once, undo them all, or commit them all.

An adapter belongs to one resource (a database, a folder). For every transaction that touches it, the SDK
opens one session, runs each live effect inside `session.effect(...)`, and ends it:

    begin -> effect, effect, ... -> verify_unmoved -> prepare -> (staged effects fire) -> commit -> close
                                 \\-> undo                     \\-> undo                          \\-> undo

Rules: an effect that raises leaves nothing behind of itself; what cannot be undone is refused with
`NotStageable` while the effect runs; after `undo` nothing of the session is visible; a session whose transaction was
ended by something else keeps nothing, runs nothing more and answers all but `undo` with `SessionLost`; no session is
open while people decide; `landed` and `recover` never guess. After a crash `recover` is asked first, then `landed`.

Whoever writes an adapter inherits from the two classes below: what has a default is optional, and the default
is what a database does whose open transaction ends with its process. `contract.py` is the exam.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from countersign.errors import NotStageable, OutsideTransaction


@dataclass(frozen=True, slots=True)
class LiveCall:
    """One live effect: what is called with what, for adapters that must look before they leap (before-
    images).
    """

    tool: str
    args: Mapping[str, Any] = field(repr=False)  # some may be secret
    effect_id: str


@dataclass(frozen=True, slots=True)
class ObservedVersion:
    """One thing the effects have read or written, and the version of it they saw: None if it was not there."""

    key: str
    version: str | None
    read: bool = False
    written: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """One thing as it was before the session, and as the session would leave it; None if it is not there."""

    key: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A place in a session. One of the two is called, once; a forked child calls neither: dropping it does nothing."""

    release: Callable[[], object]
    """What came after it stays part of the session."""

    rollback: Callable[[], object]
    """What came after it is taken back."""


class LiveSession(Protocol):
    """One transaction's work on one resource."""

    @abstractmethod
    def effect(self, call: LiveCall) -> AbstractContextManager[None]:
        """The block in which one live effect runs; if it raises, that effect alone leaves nothing behind."""
        ...

    def savepoint(self) -> Savepoint:
        """A place to go back to, while the session goes on: where a nested transaction began. They lie between effects,
        and the last one set is the first one ended. If going back fails, the whole session has to be undone.

        Raises:
            NotStageable: this resource has no such thing; the default.
        """
        raise NotStageable(
            "a live adapter without savepoints cannot take part in a nested transaction; make its calls in the "
            "outer block"
        )

    def versions(self) -> tuple[ObservedVersion, ...]:
        """The read and the write set, in the order of first use. Empty where the resource keeps others out until the
        end, so that nothing can move.
        """
        return ()

    def changes(self) -> tuple[Change, ...] | None:
        """What a commit would change, for a dry run; None where the resource cannot tell. Asked last: the session is
        undone then. What `prepare` would refuse is raised.
        """
        return None

    def verify_isolation(self) -> None:
        """Raise `Moved`, with key and versions, if what the effects saw was changed by somebody else since (design
        section 7, step 2). Nothing to do where nothing can move.
        """
        return

    @abstractmethod
    def prepare(self, attempt_id: str) -> None:
        """Do everything that could make `commit` fail, before the releases are redeemed. May raise `Moved`."""
        ...

    @abstractmethod
    def commit(self, attempt_id: str) -> None:
        """Make the effects permanent, and with them, atomically, the mark that this attempt landed. If it raises,
        nothing of the session stands. After an interrupt (what it raises is no `Exception`) it is called once more,
        unless `landed` says that it landed.

        Raises:
            CommitUnknown: no answer came, and the resource cannot be asked now; the session has ended. It may stand:
            `landed` is asked until it knows.
        """
        ...

    @abstractmethod
    def undo(self) -> None:
        """Leave nothing of the session behind. Never raises for a session that is already ended.

        Raises:
            SessionLost: the resource has ended the session by itself, and what it had written may stand.
            JournalError: somebody else has changed since what it would put back.
        """
        ...

    def let_go(self) -> None:
        """Another adapter's commit has no answer, so that nobody knows whether this one is to follow: what is prepared
        is left to `recover`, where it outlives the session; else it is undone, as by default.
        """
        self.undo()

    def close(self) -> None:
        """The whole transaction stands: drop what an undo of a committed session would have needed."""
        return


class LiveAdapter(Protocol):
    """One resource that can undo."""

    commits_last: bool = False
    """Whether `undo` takes back a commit until `close`. Such adapters commit after those whose commit is final."""

    @property
    def name(self) -> str:
        """Its name in the journal and in errors."""
        ...

    @abstractmethod
    def begin(self, txn: str) -> LiveSession:
        """Open the session of one transaction.

        Raises:
            Moved: others kept it locked for too long.
            NotStageable: the resource is not there, or cannot be reached.
        """
        ...

    @abstractmethod
    def landed(self, attempt_id: str) -> bool | None:
        """Whether that attempt's commit is permanent; None when it cannot be told. Asked after a crash."""
        ...

    def recover(self, txn: str, attempt_id: str | None) -> LiveSession | None:
        """What a dead process left of this transaction.

        With an attempt that was redeemed: the session it had prepared, to be committed or undone by the caller; with
        None, or where another attempt was prepared, it is undone here. None: nothing is left to finish, `landed`
        knows the rest. A session of a living process is never touched. Doing it again changes nothing.

        The default is right where everything uncommitted vanishes with its process.

        Raises:
            TransactionBusy: a living process has prepared it.
            JournalError: what was decided cannot be done.
        """
        return None


T = TypeVar("T")


class _ActiveEffect(Generic[T]):
    def __init__(self, subject: T) -> None:
        self.subject, self.over, self.used = subject, False, threading.RLock()


class EffectContext(Generic[T]):
    """Of one adapter: what its tools work on at this place of the program, if anything."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._turn: ContextVar[_ActiveEffect[T] | None] = ContextVar(f"countersign_{name}", default=None)

    @contextmanager
    def effect(self, subject: T) -> Iterator[None]:
        """Inside, tools work on it. Whatever has to happen as the effect ends happens after this."""
        turn = _ActiveEffect(subject)
        token = self._turn.set(turn)
        try:
            yield
        finally:
            turn.over = True
            with turn.used:  # whoever is in the middle of it ends first
                self._turn.reset(token)

    @contextmanager
    def use(self, otherwise: str) -> Iterator[T]:
        """What the effect works on that runs here. It does not end meanwhile.

        Raises:
            OutsideTransaction: none runs, in the words of `otherwise`; or this is what one has left behind.
        """
        turn = self._turn.get()
        if turn is None:
            raise OutsideTransaction(otherwise)
        with turn.used:
            if turn.over:
                raise OutsideTransaction(
                    f"{self._name} was used by a thread or task that a live effect has started and that goes on after "
                    "it; wait for it inside that effect"
                )
            yield turn.subject

    @property
    def is_over(self) -> bool:
        """Whether this place belongs to an effect that has ended."""
        turn = self._turn.get()
        return turn is not None and turn.over

    def held(self) -> AbstractContextManager[object]:
        """Inside, the effect that this place belongs to does not end; if it belongs to one."""
        turn = self._turn.get()
        return nullcontext() if turn is None else turn.used
