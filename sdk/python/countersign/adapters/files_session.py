"""One transaction's changes to files: new contents are stored separately, and reads fall through to the files below.

Nothing below the root changes before `commit`. An effect that raises loses its writes, while its reads stay in the read
set. The first version seen is the one that must not have changed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from countersign.adapters.confined_folder import ConfinedFolder, Parts, content_version, split_path
from countersign.adapters.protocol import (
    BufferedSession,
    Change,
    EffectContext,
    ObservedVersion,
)
from countersign.adapters.redo_log import SessionFolder, sync_folder
from countersign.adapters.redo_record import (
    COMMITTING,
    PREPARED,
    UNDOING,
    FileOperation,
    RedoRecord,
    UnfinishedSession,
)
from countersign.errors import IsolationConflict, NotStageable

_FOLDER_VERSION: Final = "folder"


class FilesSession(BufferedSession[Parts, str | None]):
    """The changes of one transaction below the folder, kept in the adapter's own folder until the commit."""

    def __init__(
        self,
        name: str,
        txn: str,
        work: SessionFolder,
        inside: EffectContext[FilesSession],
        unfinished: tuple[UnfinishedSession, ...] = (),
    ) -> None:
        super().__init__(name, inside)  # writes: the number of the new content; None: removed
        self._txn, self._work = txn, work
        self._unfinished = unfinished  # of dead processes; the state of their files is unknown
        self._jail: ConfinedFolder = work.store.jail
        self._numbers = 0
        self._ended = False

    # -------------------------------------------------------------------------------------- reads

    def read(self, parts: Parts) -> bytes | None:
        """The content of a file; None if there is none."""
        if parts in self._writes:
            number = self._writes[parts]
            return None if number is None else (self._work.new / number).read_bytes()
        self._require_no_file_above(parts)
        content = self._jail.read(parts)
        self._note("/".join(parts), None if content is None else content_version(content), read=True)
        return content

    def exists(self, parts: Parts) -> bool:
        """Whether a file or folder exists."""
        if parts in self._writes:
            return self._writes[parts] is not None
        if any(one[: len(parts)] == parts for one in self._written()):
            return True
        version = self._version("/".join(parts))
        self._note("/".join(parts), version, read=True)
        return version is not None

    def names(self, parts: Parts) -> tuple[str, ...]:
        """The names in a folder."""
        found = self._jail.names(parts)
        below = {one[len(parts)] for one in self._written() if one[: len(parts)] == parts}
        if found is None and not below:
            raise NotStageable(f"there is no folder {'/'.join(parts)!r} in {self._name!r}")
        self._seen.setdefault(
            _folder_key(parts), ObservedVersion(_folder_key(parts), _names_version(found), read=True)
        )
        gone = {one[-1] for one, number in self._writes.items() if number is None and one[:-1] == parts}
        return tuple(sorted({*(found or ())} - gone | below))

    # ------------------------------------------------------------------------------------- writes

    def write(self, parts: Parts, content: bytes, *, like: Parts | None = None) -> None:
        """Store a new content for the commit to put in place."""
        mode = self._require_replaceable(parts)
        if like is not None:
            old = self._jail.stat(like)
            mode = mode if old is None else stat.S_IMODE(old.st_mode)
        number, self._numbers = str(self._numbers), self._numbers + 1
        with (self._work.new / number).open("xb") as file:
            file.write(content)
            if mode is not None:
                os.fchmod(file.fileno(), mode)
        self._writes[parts] = number

    def remove(self, parts: Parts) -> None:
        """Have the commit remove a file."""
        if self.read(parts) is None:
            raise NotStageable(f"there is no file {'/'.join(parts)!r} in {self._name!r} to remove")
        self._note("/".join(parts), self._version("/".join(parts)), written=True)
        self._writes[parts] = None

    # ---------------------------------------------------------------------------- called by the SDK

    def changes(self) -> tuple[Change, ...]:
        """Every file that the commit would create, replace or remove, with its content before and after."""
        found = (
            Change("/".join(parts), self._jail.read(parts), self.read(parts))
            for parts in sorted(self._writes)
        )
        return tuple(one for one in found if one.before != one.after)

    def verify_isolation(self) -> None:
        """Compare every version with the current one.

        Raises:
            IsolationConflict: one differs.
            JournalError: it belongs to a session that could not be finished.
        """
        self._require_no_unfinished()
        super().verify_isolation()

    def prepare(self, attempt_id: str) -> None:
        """Make new contents and record durable. No other transaction may prepare the same files from here on."""
        with self._work.store.locked():
            done = self._work.record()
            if done is not None and done.attempt_id == attempt_id:
                return  # prepared before, or by the process that died
            self._unfinished = self._work.store.tidy()
            self.verify_isolation()
            self._discard_earlier()
            self._require_no_conflict()
            for number in self._writes.values():
                if number is not None:
                    _sync_file(self._work.new / number)
            for folder in (self._work.new, self._work.before, self._work.store.sessions):
                sync_folder(folder)
            self._work.write(self._record(attempt_id))

    def commit(self, attempt_id: str) -> None:
        """Put everything in place. A failure part-way is rolled back before the error is raised; after an interrupt,
        this session or a recovery continues from there.
        """
        with self._work.store.locked():
            self._work.hold()
            record = self._work.record()
            if record is None or record.attempt_id != attempt_id:
                raise NotStageable(f"{self._name!r} was not prepared for this attempt")
            record = self._work.write(replace(record, state=COMMITTING))
            try:
                self._work.apply(record)
            except Exception:
                self._rollback(record)
                raise

    def undo(self) -> None:
        """Undo what was committed, and discard the session.

        Raises:
            JournalError: some of it was changed by others since, so it is not undone.
        """
        if self._ended:
            return
        with self._work.store.locked():
            record = self._work.record()
            if record is None or record.state == PREPARED:
                self._work.discard_files()
            else:
                self._rollback(record)
            self._ended = True

    def let_go(self) -> None:
        """Keep what is prepared on disk for `recover`."""
        self._ended = True
        self._work.let_go()

    def close(self) -> None:
        """Drop the before-images."""
        if not self._ended:
            self._ended = True
            with self._work.store.locked():
                self._work.discard_files()

    # --------------------------------------------------------------------------------------- internal

    def _rollback(self, record: RedoRecord) -> None:
        try:
            self._work.restore(self._work.write(replace(record, state=UNDOING)))
        finally:
            self._work.let_go()  # the next recovery undoes what could not be undone now

    def _discard_earlier(self) -> None:
        """A dead run of this transaction had prepared and was not redeemed: ours replaces it."""
        store = self._work.store
        for folder in store.folders(self._txn):
            earlier = store.take(folder) if folder != self._work.folder else None
            if earlier is not None:
                earlier.discard_files()

    def _require_no_unfinished(self) -> None:
        """Files of a session that could not be finished are half written. A session of our own transaction must be
        finished before it is replaced.
        """
        for one in self._unfinished:
            if one.record.txn == self._txn or _conflict(self._record(""), one.record):
                raise one.error

    def _require_no_conflict(self) -> None:
        mine = self._record("")
        for other in self._work.store.records(self._work.folder):
            disputed = _conflict(mine, other)
            if disputed:
                key = min(disputed)
                seen = self._seen.get(key) or ObservedVersion(key, None, written=True)
                holder = f"transaction {other.txn[:12]}, which is prepared"
                raise IsolationConflict(
                    self._name, key, read=seen.read, expected=seen.version, now=seen.version, holder=holder
                )

    def _record(self, attempt_id: str) -> RedoRecord:
        ops, folders, written = [], dict.fromkeys([""]), []
        for parts, number in sorted(self._writes.items()):
            there = self._jail.stat(parts) is not None
            if number is None and not there:
                continue  # created and removed within the transaction
            new = None if number is None else (self._work.new / number).stat()
            written_as = (0, 0) if new is None else (new.st_ino, new.st_mtime_ns)
            ops.append(FileOperation("/".join(parts), number, *written_as))
            written.append("/".join(parts))
            if number is None or not there:
                written.append(_folder_key(parts[:-1]))
            above = (parts[:depth] for depth in range(1, len(parts)) if number is not None)
            folders |= {"/".join(one): None for one in above if self._jail.stat(one) is None}
        read = tuple(key for key, seen in self._seen.items() if seen.read)
        made = tuple(folder for folder in folders if folder)
        return RedoRecord(self._txn, attempt_id, PREPARED, tuple(ops), made, read, tuple(written))

    def _require_replaceable(self, parts: Parts) -> int | None:
        """Check what would be replaced; returns its mode.

        Raises:
            NotStageable: a file cannot be put there, or the current content cannot be snapshotted.
        """
        path = "/".join(parts)
        self._require_no_file_above(parts)
        there = self._jail.stat(parts)
        if (there is not None and stat.S_ISDIR(there.st_mode)) or self._is_new_folder(parts):
            raise NotStageable(f"{path!r} is a folder")
        for depth in reversed(range(len(parts))):  # the innermost existing folder
            with self._jail.folder(parts[:depth]) as held:
                if held is not None:
                    self._require_writable(held, path)
                    break
        self._note("/".join(parts), self._version(path), written=True)
        return None if there is None else stat.S_IMODE(there.st_mode)

    def _require_writable(self, folder: int, path: str) -> None:
        if os.fstat(folder).st_dev != self._work.folder.stat().st_dev:
            raise NotStageable(f"{path!r} is on another file system than the root of {self._name!r}")
        if not os.access(".", os.W_OK | os.X_OK, dir_fd=folder):
            raise NotStageable(f"{path!r} cannot be written: its folder is closed to this process")

    def _require_no_file_above(self, parts: Parts) -> None:
        for depth in range(1, len(parts)):
            if self._writes.get(parts[:depth]) is not None:
                raise NotStageable(f"{'/'.join(parts[:depth])!r} is a file in this transaction")

    def _is_new_folder(self, parts: Parts) -> bool:
        return any(len(one) > len(parts) and one[: len(parts)] == parts for one in self._written())

    def _written(self) -> Iterator[Parts]:
        return (one for one, number in self._writes.items() if number is not None)

    def _version(self, key: str) -> str | None:
        """The current version of a file or of a listing."""
        if key.endswith("/"):
            return _names_version(self._jail.names(tuple(key.split("/")[:-1]) if key != "/" else ()))
        parts = split_path(key)
        there = self._jail.stat(parts)
        if there is not None and stat.S_ISDIR(there.st_mode):
            return _FOLDER_VERSION
        content = self._jail.read(parts)
        return None if content is None else content_version(content)


def _conflict(one: RedoRecord, other: RedoRecord) -> set[str]:
    """Whether both write the same, or one reads what the other writes. Two may each add a file of their own to a
    folder.
    """
    both = {key for key in {*one.written} & {*other.written} if not key.endswith("/")}
    return both | {*one.written} & {*other.read} | {*one.read} & {*other.written}


def _folder_key(parts: Parts) -> str:
    return "/".join(parts) + "/"


def _names_version(names: tuple[str, ...] | None) -> str | None:
    return None if names is None else content_version("/".join(names).encode(errors="surrogateescape"))


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
