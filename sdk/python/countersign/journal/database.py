"""The journal's database: short writing transactions, and a say in how durable each one is. The same on each engine.

Rules: a unit is written as a whole or not at all; units of one journal follow one another, whichever process and host
they are of, so what one reads holds until it writes; a commit that was not confirmed is an error, never a success. A
`durable` unit survives a loss of power, the others the process. A forked child gets a connection of its own. What goes
wrong leaves as `JournalError`: without its journal the SDK fires nothing.

The statements of this package are written once, in the SQL that both engines read, with `?` and `:name` for values.
`sqlite.py` and `postgres.py` are the engines.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, Protocol
from weakref import WeakSet

from countersign.errors import JournalError, MisuseError


class ForkAware(Protocol):
    """Something with a lock and with what must not be shared with a child."""

    fork_order: int
    """Those that lock others while they are locked have the smaller number."""

    def hold(self) -> None:
        """Wait until nobody is in the middle of anything, and keep it so."""
        ...

    def let_go(self) -> None:
        """The fork is over, this is the parent."""
        ...

    def begin_anew(self) -> None:
        """The fork is over, this is the child: nothing of the parent's is used or closed."""
        ...


class _ForkHandlers:
    """All of them, at one fork after another."""

    def __init__(self) -> None:
        self.known: WeakSet[ForkAware] = WeakSet()
        self._one_at_a_time = threading.Lock()
        self._held: list[ForkAware] = []

    def before(self) -> None:
        self._one_at_a_time.acquire()
        # One order for all, the one in which they lock each other: a unit that ends a lease holds its database first.
        self._held = sorted(self.known, key=lambda one: one.fork_order)
        for one in self._held:
            one.hold()

    def in_parent(self) -> None:
        held, self._held = self._held, []
        for one in held:
            one.let_go()
        self._one_at_a_time.release()

    def in_child(self) -> None:
        self._held = []
        self._one_at_a_time = threading.Lock()
        for one in list(self.known):
            one.begin_anew()


_fork_handlers = _ForkHandlers()
os.register_at_fork(
    before=_fork_handlers.before,
    after_in_parent=_fork_handlers.in_parent,
    after_in_child=_fork_handlers.in_child,
)


def register_fork_aware(one: ForkAware) -> None:
    """Hold it at every fork from now on, as long as it lives."""
    _fork_handlers.known.add(one)


_LEFT_TO_PARENTS: Final[
    list[object]
] = []  # connections of processes we were forked from: never used, never closed

Parameters = tuple[Any, ...] | Mapping[str, Any]


class Row(Protocol):
    """One row: by name or by position."""

    def __getitem__(self, key: int | str, /) -> Any:
        """One column."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """The values, in order."""
        ...

    def keys(self) -> list[str]:
        """The names, in order."""
        ...


class Cursor(Protocol):
    """What a statement found or changed."""

    @property
    def rowcount(self) -> int:
        """How many rows were changed."""
        ...

    def fetchone(self) -> Any:
        """The next row, or None."""
        ...

    def fetchall(self) -> list[Any]:
        """The rows that are left."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """The rows, one by one."""
        ...


class Unit(Protocol):
    """An open connection, inside a unit."""

    def execute(self, sql: str, parameters: Parameters = (), /) -> Cursor:
        """Run one statement."""
        ...


class Database(ABC):
    """One journal. `name` is how errors tell it."""

    fork_order = 0

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._open_unit: bool | None = None  # whether the unit that is open is durable, if one is
        self._part_failed = False
        self._at_end: list[tuple[Callable[[], object], Callable[[], object]]] = []  # if kept, and if not
        register_fork_aware(self)

    @contextmanager
    def unit(self, *, durable: bool) -> Iterator[Unit]:
        """One writing transaction: all of it or nothing. A unit inside a unit is part of it, also where it fails.

        Raises:
            MisuseError: a durable unit inside one that is not: it would not be durable when it ends.
            JournalError: a part had failed; or the database did. Where the answer to COMMIT was lost it says that
                nobody knows whether the unit was written.
        """
        self._mind_process()
        with self._lock, self.told():
            if self._open_unit is not None:
                with self._part(durable):
                    yield self._connected()
                return
            try:
                self._begin(durable)
                self._open_unit, self._part_failed = durable, False
                yield self._connected()
                if self._part_failed:
                    raise JournalError("a part of this unit of the journal failed, so nothing of it is kept")
                self._commit()
            except BaseException:
                for _, otherwise in self._take_at_end():
                    otherwise()
                self._undo()
                raise
            finally:
                self._open_unit = None
            for do, _ in self._take_at_end():
                do()

    def at_end(self, kept: Callable[[], object], otherwise: Callable[[], object]) -> None:
        """Inside a unit: call `kept` once all of it is written, `otherwise` where it is not, or where nobody knows.

        Raises:
            MisuseError: no unit is open.
        """
        with self._lock:
            if self._open_unit is None:
                raise MisuseError("nothing of the journal is being written that this could wait for")
            self._at_end.append((kept, otherwise))

    def _take_at_end(self) -> list[tuple[Callable[[], object], Callable[[], object]]]:
        taken, self._at_end = self._at_end, []
        return taken

    @contextmanager
    def _part(self, durable: bool) -> Iterator[None]:
        if durable and not self._open_unit:
            raise MisuseError("a durable unit of the journal cannot be part of one that is not")
        try:
            yield
        except BaseException:
            self._part_failed = True
            raise

    def rows(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """Read."""
        self._mind_process()
        with self._lock, self.told():
            return self._read(sql, parameters)

    def row(self, sql: str, parameters: Parameters = ()) -> Row | None:
        """Read the first row."""
        found = self.rows(sql, parameters)
        return found[0] if found else None

    @abstractmethod
    def is_there(self) -> bool:
        """Whether there is a journal to read. Making none where there is none.

        Raises:
            JournalError: nobody can tell.
        """

    def close(self) -> None:
        """Close the connection; using the journal again opens another."""
        self._mind_process()
        with self._lock:
            self._disconnect()

    # -------------------------------------------------------------------------------------------- at a fork

    def hold(self) -> None:
        """No unit is open while this process forks."""
        self._lock.acquire()

    def let_go(self) -> None:
        """This is the parent."""
        self._lock.release()

    def begin_anew(self) -> None:
        """This is the child: the parent's connection is not even closed, for that would end the parent's session or
        drop its locks.
        """
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._open_unit, self._at_end = None, []
        _LEFT_TO_PARENTS.append(self._leave())

    def _mind_process(self) -> None:
        """Where a process was forked past Python, nobody told us."""
        if self._pid != os.getpid():
            self.begin_anew()

    # ------------------------------------------------------------------------------------------- the engine

    @abstractmethod
    def _connected(self) -> Unit:
        """The connection of this process; opened, and its tables made or checked, where there is none yet."""

    @abstractmethod
    def _disconnect(self) -> None:
        """Close the connection, if there is one."""

    @abstractmethod
    def _leave(self) -> object:
        """Forget the connection without closing it, and answer it."""

    def _read(self, sql: str, parameters: Parameters) -> list[Row]:
        """All rows of one question."""
        found: list[Row] = self._connected().execute(sql, parameters).fetchall()
        return found

    @abstractmethod
    def _begin(self, durable: bool) -> None:
        """Begin a transaction that nobody else writes beside."""

    @abstractmethod
    def _commit(self) -> None:
        """Commit it, and know that it was."""

    @abstractmethod
    def _undo(self) -> None:
        """Roll it back, whatever state it is in."""

    @abstractmethod
    def told(self) -> AbstractContextManager[None]:
        """The engine's errors as JournalError."""
