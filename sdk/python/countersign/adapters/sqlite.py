"""The SQLite adapter: live effects run in one database transaction, each in a savepoint.

Undo is ROLLBACK, which happens by itself when the process dies. The transaction takes the write lock at its first
effect, so what it read cannot change, and it ends before people are asked. SQLite has no prepare. A COMMIT can still
fail (a full disk; outside WAL mode a reader that stays), and the SDK then compensates the staged effects that fired.

The file must exist: a live tool shares it with others, and a mistyped path would be created. Foreign keys are enforced
only with `foreign_keys=True`, as SQLite does by default; then `prepare` checks the deferred ones (sqlite_diff.py).

SQLite may also end and roll back a transaction by itself. `sqlite_connection.py` ensures that nothing runs afterwards:
the session is lost, every later use raises an error, and nothing is kept.

`prepare` writes the attempt's id into `countersign_landed` in the same transaction, so that after a crash `landed`
knows whether the data is permanent. It reads while it holds the write lock: a suspended owner in the middle of its
transaction has that lock, and may commit when it resumes.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from weakref import WeakSet

from countersign.adapters.protocol import Change, EffectContext, LiveAdapter, LiveCall, LiveSession, Savepoint
from countersign.adapters.sqlite_connection import SAVEPOINT_PREFIX, LiveConnection
from countersign.adapters.sqlite_diff import changes_of, require_references
from countersign.errors import IsolationConflict, MisuseError, NotStageable, SessionLost

_LANDED: Final = (
    "CREATE TABLE IF NOT EXISTS countersign_landed (attempt_id TEXT PRIMARY KEY, landed_at TEXT NOT NULL)"
)
_MARK: Final = "INSERT OR REPLACE INTO countersign_landed VALUES (?, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))"
_EFFECT: Final = f"{SAVEPOINT_PREFIX}effect"
_BLOCK: Final = f"{SAVEPOINT_PREFIX}block"
_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_IN_MEMORY: Final = ":memory:"
_URI: Final = "file:"
_PRIMARY: Final = 0xFF  # the primary result code; the other bits are details


def _file(path: str | Path) -> str:
    """The path of a database that other processes can open too."""
    text = str(path)
    if text in {"", ".", _IN_MEMORY}:
        raise MisuseError(
            f"SQLiteAdapter({text!r}) names no file, and a database in memory or of a temporary file is one "
            "connection's own: name a file, in a test one of tmp_path; or take AgentMemory or MemoryAdapter"
        )
    if text.startswith(_URI):
        raise MisuseError(
            f"SQLiteAdapter({text!r}) is given a URI and takes a path: write the file alone, and './{text}' for a file "
            "of that name; a database in memory cannot be a resource"
        )
    return text


class SQLiteAdapter(LiveAdapter):
    """One SQLite database as a resource. Inside a live tool, `adapter.connection` is the transaction's connection.

    `busy_seconds` is how long it waits for other writers; then it raises `IsolationConflict`. `foreign_keys` enforces
    foreign keys, like `PRAGMA foreign_keys = ON`, which has no effect inside a transaction.

    Raises:
        MisuseError: the path names no file. A database in memory is private to one connection.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        name: str | None = None,
        busy_seconds: float = 5.0,
        foreign_keys: bool = False,
    ) -> None:
        self._path = _file(path)
        self._busy_seconds, self._foreign_keys = busy_seconds, foreign_keys
        self._name = name or Path(path).stem
        self._inside: EffectContext[LiveConnection] = EffectContext(self._name)
        self._begun: WeakSet[SQLiteSession] = WeakSet()

    @property
    def name(self) -> str:
        """Its name in the journal and in errors."""
        return self._name

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection of the live effect that is running.

        Raises:
            OutsideTransaction: none is running here; open your own connection to read.
        """
        otherwise = f"{self.name}.connection was used outside a live tool; only there can its work be undone"
        with self._inside.use(otherwise) as connection:
            return connection

    def begin(self, txn: str) -> SQLiteSession:
        """Open a connection for the transaction and take the write lock.

        Raises:
            NotStageable: there is no such file.
            IsolationConflict: others held the lock for all of `busy_seconds`, or another session of this event loop
                holds it. Once the lock is taken, no conflict can occur before the COMMIT.
        """
        self._require_other_loop()
        if not Path(self._path).is_file():
            raise NotStageable(f"the database of {self.name!r} is missing: {self._path!r}; create it first")
        try:
            connection = LiveConnection(
                self._uri("rw"), self._busy_seconds, self._inside, foreign_keys=self._foreign_keys
            )
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & _PRIMARY not in _BUSY:
                raise
            raise self._conflict(
                f"{error} for longer than busy_seconds={self._busy_seconds:g}; have it run again by "
                "isolation=Retry(), or give SQLiteAdapter more busy_seconds"
            ) from error
        session = SQLiteSession(self.name, connection, self._inside)
        self._begun.add(session)
        return session

    def _require_other_loop(self) -> None:
        """Refuse to wait for another block of this event loop: it cannot release the lock while this one blocks."""
        loop = _loop()
        if loop is not None and any(one.loop is loop and one.is_usable_here for one in list(self._begun)):
            raise self._conflict(
                "another block of this event loop has it, and cannot end while this one waits; have them take turns by "
                "isolation=Serialize(...)"
            )

    def _conflict(self, said: str) -> IsolationConflict:
        return IsolationConflict(self.name, "", read=False, expected=None, now=None, said=said)

    def _uri(self, mode: str) -> str:
        return f"{Path(self._path).resolve().as_uri()}?mode={mode}"

    def landed(self, attempt_id: str) -> bool | None:
        """Whether the attempt's mark exists. None for a file that cannot be read. Also None if there is no mark while a
        session of this very attempt, or a process that held the write lock for all of `busy_seconds`, may be about to
        commit one. A session of ours for anything else, as in a rerun, excludes that.
        """
        internal = [one for one in list(self._begun) if one.is_usable_here]
        if any(one.prepared_for == attempt_id for one in internal):
            return None
        try:
            with closing(self._second_connection()) as connection:
                alone = bool(internal) or _can_lock(connection)
                return _has_mark(connection, attempt_id) or (False if alone else None)
        except sqlite3.Error:
            return None

    def _second_connection(self) -> sqlite3.Connection:
        """A second connection."""
        return sqlite3.connect(self._uri("rw"), uri=True, timeout=self._busy_seconds, isolation_level=None)


class SQLiteSession(LiveSession):
    """One open database transaction."""

    def __init__(self, name: str, connection: LiveConnection, inside: EffectContext[LiveConnection]) -> None:
        self._name, self._connection, self._inside = name, connection, inside
        self._lost: SessionLost | None = None
        self._pid, self.loop = os.getpid(), _loop()
        self.prepared_for: str | None = None  # the attempt

    @property
    def is_usable_here(self) -> bool:
        """Whether it holds the write lock in this process: a forked child has a copy of the object and no lock."""
        return self._pid == os.getpid() and self._connection.is_open

    @contextmanager
    def effect(self, call: LiveCall) -> Iterator[None]:
        """Run one effect in a savepoint. A tool that swallows the end of its transaction has failed all the same."""
        self._require_open()
        self._connection.run_internal(f"SAVEPOINT {_EFFECT}")
        try:
            with self._connection.effect(), self._inside.effect(self._connection):
                yield
            self._connection.run_internal(f"RELEASE {_EFFECT}")
        except BaseException as error:
            self._rollback_to(_EFFECT)
            if self._lost is not None and isinstance(error, Exception):
                raise self._lost from (None if error is self._lost else error)
            self._require_not_ignored(error)
            raise

    def _require_not_ignored(self, error: BaseException) -> None:
        """Raise the reason why the authorizer refused a statement, which SQLite does not report."""
        said, self._connection.ignored_statement = self._connection.ignored_statement, ""
        if (
            said
            and isinstance(error, sqlite3.DatabaseError)
            and error.sqlite_errorcode == sqlite3.SQLITE_AUTH
        ):
            raise MisuseError(
                f"{said} has no effect inside a transaction, and a live tool is always in one; write "
                "SQLiteAdapter(..., foreign_keys=True) instead"
            ) from error

    def savepoint(self) -> Savepoint:
        """A savepoint outside those of the effects."""
        self._require_open()
        self._connection.run_internal(f"SAVEPOINT {_BLOCK}")
        return Savepoint(self._release, self._rollback)

    def _release(self) -> None:
        self._require_open()
        self._connection.run_internal(f"RELEASE {_BLOCK}")

    def _rollback(self) -> None:
        self._rollback_to(_BLOCK)
        self._require_open()

    def _rollback_to(self, savepoint: str) -> None:
        """Roll back to a savepoint, or lose the session: what should be undone must not be committed."""
        try:
            self._connection.run_internal(f"ROLLBACK TO {savepoint}")
            self._connection.run_internal(f"RELEASE {savepoint}")
        except sqlite3.Error as error:
            self._mark_lost(f"what had failed could not be undone alone ({error})")

    def _require_open(self) -> None:
        """Refuse statements after the end of the transaction.

        Raises:
            SessionLost: it has ended, or contains what should have been undone.
        """
        if not self._connection.is_open:
            self._mark_lost()
        if self._lost is not None:
            raise self._lost

    def _mark_lost(self, why: str = "") -> None:
        if not self._connection.is_open:
            why = (
                "something ended its transaction, as SQLite does for ON CONFLICT ROLLBACK, RAISE(ROLLBACK), an "
                "interrupt or a full disk"
            )
        self._lost = self._lost or SessionLost(self._name, why)

    def changes(self) -> tuple[Change, ...] | None:
        """The changed rows, as `table[key]`, and definitions, before and after. Raises what `prepare` would refuse."""
        self._check_references()
        with self._connection.internal():
            return changes_of(self._connection, self._connection.touched)

    def verify_isolation(self) -> None:
        """Only check that the transaction is open: the write lock, held since before the first read, excludes changes
        by others.
        """
        self._require_open()

    def prepare(self, attempt_id: str) -> None:
        """Write the mark, so that a full disk is noticed before the redemption, and check what COMMIT would check."""
        self._check_references()
        self.prepared_for = attempt_id
        self._connection.run_internal(_LANDED)
        self._connection.run_internal(_MARK, (attempt_id,))

    def _check_references(self) -> None:
        self._require_open()
        with self._connection.internal():
            require_references(
                self._connection, self._connection.touched, all_wait=self._connection.may_defer
            )

    def commit(self, attempt_id: str) -> None:
        """Commit with a SQL statement, so that a missing transaction is an error and not a silent success."""
        try:
            self._connection.run_internal("COMMIT")
        except sqlite3.Error:
            self.undo()
            raise
        finally:
            if not self._connection.is_open:  # else an interrupt came before the COMMIT, which is repeated
                self._connection.close()

    def undo(self) -> None:
        """Roll back and close. A transaction that had ended left nothing: it cannot have been committed, and nothing
        ran after it.
        """
        try:
            if self._connection.is_open:
                self._connection.run_internal("ROLLBACK")
        finally:
            self._connection.close()


def _loop() -> asyncio.AbstractEventLoop | None:
    """The event loop of this thread, which blocks while this thread waits."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _can_lock(connection: sqlite3.Connection) -> bool:
    """Whether BEGIN took the write lock. On a read-only file it takes none, so a write tests it; closing the connection
    rolls the write back.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute(f"PRAGMA user_version = {version}")
    except sqlite3.OperationalError:
        return False
    return True


def _has_mark(connection: sqlite3.Connection, attempt_id: str) -> bool:
    table = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'countersign_landed'").fetchone()
    if table is None:
        return False
    found = connection.execute(
        "SELECT 1 FROM countersign_landed WHERE attempt_id = ?", (attempt_id,)
    ).fetchone()
    return found is not None
