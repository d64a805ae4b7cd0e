"""The journal's database: short writing transactions, each durable or not. The same interface for each engine.

Rules: a unit is written as a whole or not at all. Units of one journal are serialized across processes and hosts, so
what a unit reads stays valid until it writes. A commit without confirmation is an error, never a success. A `durable`
unit survives a power failure, the others a crash of the process. A forked child gets a connection of its own. Errors
leave as `JournalError`: without its journal the SDK fires nothing.

The statements of this package are written once, in the SQL that both engines read, with `?` and `:name` for values.
The engines are `sqlite.py` and `postgres.py`.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, Final, Protocol

from countersign.errors import JournalError, MisuseError
from countersign.journal.forks import register_fork_aware

_LEFT_TO_PARENTS: Final[list[object]] = []  # connections of the parent process: never used, never closed

Names = tuple[str, ...]
Values = tuple[Any, ...]
Columns = Mapping[str, Any]
Parameters = Values | Columns
Updated = tuple[list[Values], Columns]
Row = Any
"""A row of either engine, by name or by position."""

Cursor = Any
"""The result of a statement of either engine."""


class Unit(Protocol):
    """An open connection inside a unit."""

    def execute(self, sql: str, parameters: Parameters = (), /) -> Cursor: ...

    def update(self, table: str, key: Names, columns: Columns, where: str, parameters: Values) -> Updated:
        """Set these columns of the matching rows. Returns their keys, and the values as they are stored."""
        ...


@cache
def update_statements(table: str, key: Names, columns: Names, where: str) -> tuple[str, str]:
    """The UPDATE of these columns, and the query for the keys of the rows it concerns. Names and conditions are
    constants of this package; every value is bound.
    """
    changes = ", ".join(f"{name} = ?" for name in columns)
    return (
        f"UPDATE {table} SET {changes} WHERE {where}",  # noqa: S608
        f"SELECT {', '.join(key)} FROM {table} WHERE {where}",  # noqa: S608
    )


class _ErrorTranslation:
    """Raises an error as what it is translated into. A class, because it is entered for every unit and query."""

    def __init__(self, translated: Callable[[BaseException], JournalError | None]) -> None:
        self._translated = translated

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and (translated := self._translated(error)) is not None:
            raise translated from error


class Database(ABC):
    """One journal. `name` identifies it in errors."""

    fork_order = 0

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._open_unit: bool | None = None  # whether the open unit is durable; None without one
        self._part_failed = False
        self._callbacks: list[
            tuple[Callable[[], object], Callable[[], object]]
        ] = []  # called on commit, and otherwise
        register_fork_aware(self)

    @contextmanager
    def unit(self, *, durable: bool) -> Iterator[Unit]:
        """One writing transaction, all or nothing. A nested unit is part of the outer one, also if it fails.

        Raises:
            MisuseError: a durable unit inside one that is not: it would not be durable when it ends.
            JournalError: a part or the database failed. If the answer to COMMIT was lost, the text says that it is
                unknown whether the unit was written.
        """
        self._mind_process()
        with self._lock, self.translate_errors():
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
                for _, otherwise in self._take_callbacks():
                    otherwise()
                self._undo()
                raise
            finally:
                self._open_unit = None
            for do, _ in self._take_callbacks():
                do()

    def after_unit(self, kept: Callable[[], object], otherwise: Callable[[], object]) -> None:
        """Inside a unit: call `kept` once all of it is written, `otherwise` if it is not, or if that is unknown.

        Raises:
            MisuseError: no unit is open.
        """
        with self._lock:
            if self._open_unit is None:
                raise MisuseError("no unit of the journal is open")
            self._callbacks.append((kept, otherwise))

    def _take_callbacks(self) -> list[tuple[Callable[[], object], Callable[[], object]]]:
        taken, self._callbacks = self._callbacks, []
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
        """Run a query."""
        self._mind_process()
        with self._lock, self.translate_errors():
            return self._read(sql, parameters)

    def row(self, sql: str, parameters: Parameters = ()) -> Row | None:
        """Run a query and return its first row."""
        found = self.rows(sql, parameters)
        return found[0] if found else None

    def translate_errors(self) -> AbstractContextManager[None]:
        """Raise the engine's errors as `JournalError`."""
        return _ErrorTranslation(self._translated)

    @abstractmethod
    def exists(self) -> bool:
        """Whether the journal exists. It is not created.

        Raises:
            JournalError: the database cannot be reached.
        """

    def close(self) -> None:
        """Close the connection. Further use opens another one."""
        self._mind_process()
        with self._lock:
            self._disconnect()

    # -------------------------------------------------------------------------------------------- at a fork

    def before_fork(self) -> None:
        """Wait until no unit is open."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Do not even close the parent's connection: that would end the parent's session or drop its locks."""
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._open_unit, self._callbacks = None, []
        _LEFT_TO_PARENTS.append(self._leave())

    def _mind_process(self) -> None:
        """Detect a fork that bypassed Python's hooks."""
        if self._pid != os.getpid():
            self.after_fork_in_child()

    # ------------------------------------------------------------------------------------------- the engine

    @abstractmethod
    def _connected(self) -> Unit:
        """This process's connection, opened and checked at first use."""

    @abstractmethod
    def _disconnect(self) -> None: ...

    @abstractmethod
    def _leave(self) -> object:
        """Drop the connection without closing it, and return it."""

    def _read(self, sql: str, parameters: Parameters) -> list[Row]:
        found: list[Row] = self._connected().execute(sql, parameters).fetchall()
        return found

    @abstractmethod
    def _begin(self, durable: bool) -> None:
        """Begin a transaction that excludes other writers."""

    @abstractmethod
    def _commit(self) -> None:
        """Commit, and require the confirmation."""

    @abstractmethod
    def _undo(self) -> None:
        """Roll back, in any state of the transaction."""

    @abstractmethod
    def _translated(self, error: BaseException) -> JournalError | None:
        """An error of the engine as `JournalError`; None for another one."""
