"""The SQLite adapter: live effects run in one database transaction, each in a savepoint.

Undo is ROLLBACK, and it happens by itself when the process dies. The transaction takes the write lock at its
first effect, so what it read cannot move; it is ended before anybody is asked. SQLite has no prepare: a
COMMIT can still fail (disk full; outside WAL mode a reader who stays), and the SDK then treats the staged
effects that fired as its failure path says.

The file has to be there: a live tool works on what others have too, and a mistyped path would be made. References are
looked at as SQLite does by itself, that is not, or with `foreign_keys=True`; then `prepare` looks at those that wait
for the COMMIT (sqlite_references.py).

SQLite also ends transactions by itself, and takes them back then. `sqlite_connection.py` sees to it that nothing runs
afterwards; the session is lost, says so to whoever goes on with it, and keeps nothing.

`prepare` writes the attempt's id into `countersign_landed` in the same transaction, so that after a crash
`landed` knows whether the data is permanent. It looks with the write lock in hand: an owner that stands still in the
middle of its transaction has that lock, and may commit when it wakes.
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
_PRIMARY: Final = 0xFF  # the part of a result code that says what it is; the rest says where


def _file(path: str | Path) -> str:
    """The path of a database that others can open too."""
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
    """One SQLite database as a resource. Inside a live tool, `adapter.connection` is the transaction's
    connection.

    `busy_seconds` is how long it waits for others who write; then `Moved`. `foreign_keys` has SQLite keep references,
    as `PRAGMA foreign_keys = ON` would: inside a transaction that has no effect, so say it here.

    Raises:
        MisuseError: the path names no file. A database in memory is one connection's own.
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
        otherwise = (
            f"{self.name}.connection was used outside a live tool; only there is its work undone on failure"
        )
        with self._inside.use(otherwise) as connection:
            return connection

    def begin(self, txn: str) -> SQLiteSession:
        """Open a connection of the transaction's own and take the write lock.

        Raises:
            NotStageable: there is no such file.
            Moved: others kept it locked for all of `busy_seconds`, or another session of this event loop has it. Once
                the lock is taken, nobody can be in the way before the COMMIT.
        """
        self._require_end_of_wait()
        if not Path(self._path).is_file():
            raise NotStageable(f"the database of {self.name!r} is not there: {self._path!r}; make it first")
        try:
            connection = LiveConnection(
                self._uri("rw"), self._busy_seconds, self._inside, foreign_keys=self._foreign_keys
            )
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & _PRIMARY not in _BUSY:
                raise
            raise self._moved(
                f"{error} for longer than busy_seconds={self._busy_seconds:g}; have it run again by "
                "isolation=Retry(), or give SQLiteAdapter more busy_seconds"
            ) from error
        session = SQLiteSession(self.name, connection, self._inside)
        self._begun.add(session)
        return session

    def _require_end_of_wait(self) -> None:
        """Two blocks of one event loop: waiting here would keep the other from ever giving the lock up."""
        loop = _loop()
        if loop is not None and any(one.loop is loop and one.is_usable_here for one in list(self._begun)):
            raise self._moved(
                "another block of this event loop has it, and cannot end while this one waits; have them take turns by "
                "isolation=Serialize(...)"
            )

    def _moved(self, said: str) -> IsolationConflict:
        return IsolationConflict(self.name, "", read=False, expected=None, now=None, said=said)

    def _uri(self, mode: str) -> str:
        return f"{Path(self._path).resolve().as_uri()}?mode={mode}"

    def landed(self, attempt_id: str) -> bool | None:
        """Whether the attempt's mark is in the database. None for a file that cannot be read; and where no mark is
        there, while somebody who may be about to commit one has the write lock: a session of this very attempt, or
        whoever kept it for all of `busy_seconds`. A session of ours for anything else, as a rerun has, keeps those out.
        """
        ours = [one for one in list(self._begun) if one.is_usable_here]
        if any(one.prepared_for == attempt_id for one in ours):
            return None
        try:
            with closing(self._another()) as connection:
                alone = bool(ours) or _takes_lock(connection)
                return _has_mark(connection, attempt_id) or (False if alone else None)
        except sqlite3.Error:
            return None

    def _another(self) -> sqlite3.Connection:
        """A connection beside the one of a transaction."""
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
        """Whether it has the write lock, and for this process: a fork copied it, and has nothing of it."""
        return self._pid == os.getpid() and self._connection.goes_on

    @contextmanager
    def effect(self, call: LiveCall) -> Iterator[None]:
        """Run one effect in a savepoint. A tool that swallows the end of its transaction has failed all the same."""
        self._require_whole()
        self._connection.say(f"SAVEPOINT {_EFFECT}")
        try:
            with self._connection.effect(), self._inside.effect(self._connection):
                yield
            self._connection.say(f"RELEASE {_EFFECT}")
        except BaseException as error:
            self._take_back(_EFFECT)
            if self._lost is not None and isinstance(error, Exception):
                raise self._lost from (None if error is self._lost else error)
            self._require_heeded(error)
            raise

    def _require_heeded(self, error: BaseException) -> None:
        """SQLite has no words of its own for why the guard refused a statement."""
        said, self._connection.unheeded = self._connection.unheeded, ""
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
        """A savepoint around those of the effects."""
        self._require_whole()
        self._connection.say(f"SAVEPOINT {_BLOCK}")
        return Savepoint(self._release, self._rollback)

    def _release(self) -> None:
        self._require_whole()
        self._connection.say(f"RELEASE {_BLOCK}")

    def _rollback(self) -> None:
        self._take_back(_BLOCK)
        self._require_whole()

    def _take_back(self, savepoint: str) -> None:
        """Or lose the session: what was to be taken back must not be committed."""
        try:
            self._connection.say(f"ROLLBACK TO {savepoint}")
            self._connection.say(f"RELEASE {savepoint}")
        except sqlite3.Error as error:
            self._lose(f"what had failed could not be taken back alone ({error})")

    def _require_whole(self) -> None:
        """Refuse whatever would come after the transaction.

        Raises:
            SessionLost: it is over, or holds what should have been taken back.
        """
        if not self._connection.goes_on:
            self._lose()
        if self._lost is not None:
            raise self._lost

    def _lose(self, why: str = "") -> None:
        if not self._connection.goes_on:
            why = (
                "something ended its transaction, as SQLite does for ON CONFLICT ROLLBACK, RAISE(ROLLBACK), an "
                "interrupt or a full disk"
            )
        self._lost = self._lost or SessionLost(self._name, why)

    def changes(self) -> tuple[Change, ...] | None:
        """The rows that a commit would change, as `table[key]`, and definitions, before and after; what it would refuse
        is raised, as `prepare` does.
        """
        self._check_references()
        with self._connection.ours():
            return changes_of(self._connection, self._connection.touched)

    def verify_isolation(self) -> None:
        """Nothing can have moved: the session holds the write lock since before its first read, as long as its
        transaction goes on.
        """
        self._require_whole()

    def prepare(self, attempt_id: str) -> None:
        """Write the mark, so that at least a full disk is noticed before anything is redeemed; and check what COMMIT
        would check.
        """
        self._check_references()
        self.prepared_for = attempt_id
        self._connection.say(_LANDED)
        self._connection.say(_MARK, (attempt_id,))

    def _check_references(self) -> None:
        self._require_whole()
        with self._connection.ours():
            require_references(self._connection, self._connection.touched, all_wait=self._connection.defers)

    def commit(self, attempt_id: str) -> None:
        """Make it permanent. SQL says COMMIT, so that a transaction that is gone is an error, not a silent
        success.
        """
        try:
            self._connection.say("COMMIT")
        except sqlite3.Error:
            self.undo()
            raise
        finally:
            if not self._connection.goes_on:  # else an interrupt came before it, and it is said once more
                self._connection.close()

    def undo(self) -> None:
        """Roll back and close. Of a transaction that is over nothing stands: it cannot have been a COMMIT, and nothing
        ran after it.
        """
        try:
            if self._connection.goes_on:
                self._connection.say("ROLLBACK")
        finally:
            self._connection.close()


def _loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs on this thread: nothing else of it goes on while somebody waits here."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _takes_lock(connection: sqlite3.Connection) -> bool:
    """Until it is closed, which takes back the write that shows it: of a file that is only read BEGIN locks nothing."""
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
