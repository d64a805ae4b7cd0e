"""The interface of live adapters: run effects at once, undo them all, or commit them all.

An adapter belongs to one resource (a database, a folder). For every transaction that touches it, the SDK opens one
session, runs each live effect inside `session.effect(...)`, and ends it:

    begin -> effect, effect, ... -> verify_isolation -> prepare -> (staged effects fire) -> commit -> close
                                 \\-> undo                       \\-> undo                          \\-> undo

An effect that raises leaves nothing of itself. What cannot be undone is refused with `NotStageable` while the effect
runs. After `undo` nothing of the session is visible. A session whose transaction was ended from outside keeps nothing,
runs nothing more and raises `SessionLost` on every call but `undo`. No session is open while people decide. `landed`
and `recover` never guess. After a crash `recover` is called first, then `landed`.

Adapters inherit from `LiveAdapter` and `LiveSession`. Methods with a default are optional; the default fits a database
whose open transaction ends with its process. `contract_suite.py` tests an adapter.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from countersign.errors import IsolationConflict, NotStageable, OutsideTransaction


@dataclass(frozen=True, slots=True)
class LiveCall:
    """A live effect: the tool and its arguments, for adapters that take before-images."""

    tool: str
    args: Mapping[str, Any] = field(repr=False)  # may contain secrets
    effect_id: str


@dataclass(frozen=True, slots=True)
class ObservedVersion:
    """A key that effects have read or written, and the version they saw; None if nothing was there."""

    key: str
    version: str | None
    read: bool = False
    written: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """A value before the session and as the session would leave it; None if nothing is there."""

    key: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A point in a session. Exactly one of the two is called, once. A forked child calls neither: dropping it does
    nothing.
    """

    release: Callable[[], object]
    """Keep what came after it."""

    rollback: Callable[[], object]
    """Undo what came after it."""


class LiveSession(Protocol):
    """The work of one transaction on one resource."""

    @abstractmethod
    def effect(self, call: LiveCall) -> AbstractContextManager[None]:
        """The block in which one live effect runs. If it raises, that effect alone is undone."""
        ...

    def savepoint(self) -> Savepoint:
        """The start of a nested transaction, to which the session can roll back. Savepoints lie between effects, and
        the last one set ends first. If the rollback fails, the whole session must be undone.

        Raises:
            NotStageable: this resource has no savepoints; the default.
        """
        raise NotStageable(
            "a live adapter without savepoints cannot take part in a nested transaction; make its calls in the "
            "outer block"
        )

    def versions(self) -> tuple[ObservedVersion, ...]:
        """The read and write sets, in the order of first use. Empty if the resource locks others out until the end, so
        that no conflict is possible.
        """
        return ()

    def changes(self) -> tuple[Change, ...] | None:
        """What a commit would change, for a dry run; None if the resource cannot determine it. Called last: the session
        is undone afterwards. Raises what `prepare` would refuse.
        """
        return None

    def verify_isolation(self) -> None:
        """Raise `IsolationConflict`, with key and versions, if others changed what the effects saw (design section 7,
        step 2). The default is for resources where no conflict is possible.
        """
        return

    @abstractmethod
    def prepare(self, attempt_id: str) -> None:
        """Do everything that could make `commit` fail, before the redemption. May raise `IsolationConflict`."""
        ...

    @abstractmethod
    def commit(self, attempt_id: str) -> None:
        """Make the effects permanent, atomically with the mark that this attempt landed. If it raises, nothing of the
        session is kept. After an interrupt (an exception that is not an `Exception`) it is called once more, unless
        `landed` says that it landed.

        Raises:
            CommitUnknown: there is no answer, and the resource cannot be queried now; the session has ended. It may be
                committed: `landed` is called until it knows.
        """
        ...

    @abstractmethod
    def undo(self) -> None:
        """Leave nothing of the session. Never raises for a session that has already ended.

        Raises:
            SessionLost: the resource ended the session by itself, and what it had written may be permanent.
            JournalError: others have since changed what it would restore.
        """
        ...

    def let_go(self) -> None:
        """Another adapter's commit has no answer, so it is not known whether this one should follow. Prepared work that
        outlives the session is left to `recover`; otherwise it is undone, which is the default.
        """
        self.undo()

    def close(self) -> None:
        """The whole transaction is committed: discard what undoing this session would have needed."""
        return


class LiveAdapter(Protocol):
    """One resource that can undo."""

    commits_last: bool = False
    """Whether `undo` can undo a commit until `close`. Such adapters commit after those whose commit is final."""

    @property
    def name(self) -> str:
        """Its name in the journal and in errors."""
        ...

    @abstractmethod
    def begin(self, txn: str) -> LiveSession:
        """Open the session of one transaction.

        Raises:
            IsolationConflict: others held a lock for too long.
            NotStageable: the resource is missing or unreachable.
        """
        ...

    @abstractmethod
    def landed(self, attempt_id: str) -> bool | None:
        """Whether that attempt's commit is permanent; None if that cannot be determined. Called after a crash."""
        ...

    def recover(self, txn: str, attempt_id: str | None) -> LiveSession | None:
        """What a dead process left of this transaction.

        If `attempt_id` was redeemed: the session prepared for it, to be committed or undone by the caller. If it is
        None, or another attempt was prepared, the session is undone here. None: nothing is left to finish, and `landed`
        knows the rest. A session of a living process is never touched. Idempotent.

        The default fits resources where everything uncommitted vanishes with its process.

        Raises:
            TransactionBusy: a living process has prepared it.
            JournalError: what was decided cannot be carried out.
        """
        return None


T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class _ActiveEffect(Generic[T]):
    def __init__(self, subject: T) -> None:
        self.subject, self.over, self.used = subject, False, threading.RLock()


class EffectContext(Generic[T]):
    """What an adapter's tools currently work on, by context (thread or task)."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._turn: ContextVar[_ActiveEffect[T] | None] = ContextVar(f"countersign_{name}", default=None)

    @contextmanager
    def effect(self, subject: T) -> Iterator[None]:
        """Run a block in which tools work on the subject. Code that ends the effect comes after this block."""
        turn = _ActiveEffect(subject)
        token = self._turn.set(turn)
        try:
            yield
        finally:
            turn.over = True
            with turn.used:  # wait for threads that are using it
                self._turn.reset(token)

    @contextmanager
    def use(self, otherwise: str) -> Iterator[T]:
        """Run a block with the subject of the current effect, which does not end meanwhile.

        Raises:
            OutsideTransaction: no effect runs (the text is `otherwise`), or the effect of this thread or task has
                ended.
        """
        turn = self._turn.get()
        if turn is None:
            raise OutsideTransaction(otherwise)
        with turn.used:
            if turn.over:
                raise OutsideTransaction(
                    f"{self._name} was used by a thread or task that a live effect has started and that outlived "
                    "it; wait for it inside that effect"
                )
            yield turn.subject

    @property
    def is_over(self) -> bool:
        """Whether this context belongs to an effect that has ended."""
        turn = self._turn.get()
        return turn is not None and turn.over

    def held(self) -> AbstractContextManager[object]:
        """Keep the current effect, if any, from ending during the block."""
        turn = self._turn.get()
        return nullcontext() if turn is None else turn.used


class BufferedSession(LiveSession, Generic[K, V]):
    """Base of sessions that buffer writes until the commit and detect conflicts by versions."""

    def __init__(self, name: str, context: EffectContext[Any]) -> None:
        self._name, self._context = name, context
        self._writes: dict[K, V] = {}
        self._seen: dict[str, ObservedVersion] = {}

    @contextmanager
    def effect(self, call: LiveCall) -> Iterator[None]:
        """Run one effect. If it raises, its writes are dropped and its reads are kept."""
        before = dict(self._writes)
        try:
            with self._context.effect(self):
                yield
        except BaseException:
            self._writes = before
            raise

    def savepoint(self) -> Savepoint:
        """A savepoint of the writes so far."""
        before = dict(self._writes)
        return Savepoint(lambda: None, lambda: setattr(self, "_writes", before))

    def versions(self) -> tuple[ObservedVersion, ...]:
        """Every key that was read or written, with its version."""
        return tuple(self._seen.values())

    def verify_isolation(self) -> None:
        """Compare every version with the current one.

        Raises:
            IsolationConflict: one differs.
        """
        for seen in self._seen.values():
            now = self._version(seen.key)
            if now != seen.version:
                raise IsolationConflict(self._name, seen.key, read=seen.read, expected=seen.version, now=now)

    @abstractmethod
    def _version(self, key: str) -> str | None:
        """The current version of a key; None if nothing is there."""
        ...

    def _note(self, key: str, version: str | None, *, read: bool = False, written: bool = False) -> None:
        """Record a version; the first one seen is the one that must not have changed."""
        seen = self._seen.get(key) or ObservedVersion(key, version)
        self._seen[key] = replace(seen, read=seen.read or read, written=seen.written or written)
