"""The files adapter's data on disk for one session: new contents, before-images, and a redo record.

Nothing below the root changes before the record is durable. What the record decides can be redone from it any number of
times, with the same result. Before-images are hard links, durable before the first rename, and stay until the session
is closed. The record is deleted first when a session is discarded. A process may therefore die at any point, and the
next one finishes what was decided. Files that others have changed since are not overwritten on rollback: their
before-images stay, and the rollback is incomplete until a person resolves it. A session that cannot be finished blocks
only transactions that touch its files.

    (no record) -> prepared -> committing -> committed -> (gone)
                        \\--------> undoing <----/----------> (gone)
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from countersign.adapters.confined_folder import PRIVATE, ConfinedFolder, Parts, split_path
from countersign.adapters.redo_record import (
    COMMITTED,
    COMMITTING,
    RECORD,
    UNDOING,
    FileOperation,
    RedoRecord,
    UnfinishedSession,
    read_record,
    rollback_conflict_error,
    unfinished_session_error,
)
from countersign.errors import JournalError, NotStageable, TransactionBusy

log: Final = logging.getLogger("countersign")

_NAME_LENGTH: Final = 32


class RedoStore:
    """The adapter's own folder below its root."""

    def __init__(self, root: Path) -> None:
        self.jail = ConfinedFolder(root)
        self.private = root / PRIVATE
        self.sessions, self.marks = self.private / "sessions", self.private / "landed"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """A lock between the processes that use this adapter; it ends with its process."""
        with _held(os.open(self.private / "lock", os.O_RDWR | os.O_CREAT, 0o600), fcntl.LOCK_EX):
            yield

    def create(self) -> None:
        """Create the folder with private access.

        Raises:
            NotStageable: something else exists under its name.
        """
        for folder in (self.private, self.sessions, self.marks):
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
                sync_folder(folder.parent)
            if folder.is_symlink() or not folder.is_dir():
                raise NotStageable(f"{str(folder)!r} is not a folder of our own")

    def new(self, txn: str) -> SessionFolder:
        """A new session folder, held by this process. Call it while locked."""
        folder = self.sessions / f"{file_name_for(txn)}.{os.urandom(8).hex()}"
        for one in (folder, folder / "new", folder / "before"):
            one.mkdir(mode=0o700)
        work = self.take(folder)
        if work is None:
            raise JournalError(f"{str(folder)!r} was taken by another process while it was created")
        return work

    def take(self, folder: Path) -> SessionFolder | None:
        """The session in that folder, if no living process holds it."""
        held = os.open(folder / "owner", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            return None
        return SessionFolder(self, folder, held)

    def folders(self, txn: str | None = None) -> list[Path]:
        """The folders of all sessions, or of those of one transaction."""
        start = "" if txn is None else f"{file_name_for(txn)}."
        return sorted(one for one in self.sessions.iterdir() if one.name.startswith(start))

    def tidy(self) -> tuple[UnfinishedSession, ...]:
        """Finish what is decided and discard what is unusable; returns the sessions that could not be finished, because
        the state of their files is unknown. Call it while locked.

        Raises:
            JournalError: a record is damaged, so that it is not known which files it concerns.
        """
        left = []
        for folder in self.folders():
            work = self.take(folder)
            if work is None:
                continue
            try:
                record = work.record()
                left += _finish_or_report(work, record)
            finally:  # on any failure: while this process holds it, no other one can finish it
                work.let_go()
        return tuple(left)

    def records(self, but: Path) -> list[RedoRecord]:
        """The records of all other prepared sessions."""
        found = [read_record(folder) for folder in self.folders() if folder != but]
        return [one for one in found if one is not None]

    def mark(self, attempt_id: str) -> Path:
        """The file that exists if that attempt is permanent."""
        return self.marks / file_name_for(attempt_id)


class SessionFolder:
    """One session's folder, held by this process."""

    def __init__(self, store: RedoStore, folder: Path, held: int) -> None:
        self.store, self.folder, self._held = store, folder, held
        self.new, self.before = folder / "new", folder / "before"

    def record(self) -> RedoRecord | None:
        """The record, if the session has one."""
        return read_record(self.folder)

    def write(self, record: RedoRecord) -> RedoRecord:
        """Write the record durably and atomically."""
        raw = json.dumps(asdict(record)).encode()
        draft = self.folder / f"{RECORD}.draft"
        with draft.open("wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(self.folder / RECORD)
        sync_folder(self.folder)
        return record

    def finish(self, record: RedoRecord | None) -> None:
        """Carry out what was decided, and discard what is unusable."""
        if record is None or record.state == COMMITTED:
            self.discard_files()
        elif record.state == COMMITTING:
            self.apply(record)
            self.discard_files()
        elif record.state == UNDOING:
            self.restore(record)

    def apply(self, record: RedoRecord) -> None:
        """Carry out what is decided, or what remains of it."""
        for path in record.folders:
            self._make_folder(split_path(path))
        for number, op in enumerate(record.ops):
            self._keep_before(number, op)
        sync_folder(self.before)
        for number, op in enumerate(record.ops):
            self._apply(number, op)
        self._sync_parents(record)
        mark = self.store.mark(record.attempt_id)
        mark.touch(mode=0o600)
        sync_folder(mark.parent)
        self.write(replace(record, state=COMMITTED))

    def restore(self, record: RedoRecord) -> None:
        """Roll back what was done, newest first, and discard the session.

        Raises:
            JournalError: others have changed some of it since. All the rest is rolled back.
        """
        if record.state != UNDOING:
            self.write(replace(record, state=UNDOING))
        self.store.mark(record.attempt_id).unlink(missing_ok=True)
        sync_folder(self.store.marks)
        newest_first = reversed(list(enumerate(record.ops)))
        theirs = [number for number, op in newest_first if not self._restored(number, op)]
        for path in reversed(record.folders):
            self._remove_folder(split_path(path))
        if theirs:
            raise rollback_conflict_error(self.folder, theirs)
        self.discard_files()

    def discard_files(self) -> None:
        """Delete the session. The record goes first: a partial session must not look like a valid one."""
        try:
            if self.folder.is_dir():
                (self.folder / RECORD).unlink(missing_ok=True)
                sync_folder(self.folder)
                shutil.rmtree(self.folder)
        finally:
            self.let_go()

    def hold(self) -> None:
        """Lock the folder until it is discarded or this process ends.

        Raises:
            TransactionBusy: another process holds it.
        """
        if self._held >= 0:
            return
        held = self.store.take(self.folder)
        if held is None:
            raise TransactionBusy(self.folder.name, "a living process", 0.0)
        self._held = held._held

    def let_go(self) -> None:
        """Unlock the folder for other processes."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    # ------------------------------------------------------------------------------------------ one file

    def _keep_before(self, number: int, op: FileOperation) -> None:
        """Link the current file as before-image. A file that has been replaced already has one."""
        applied = op.new is not None and not (self.new / op.new).exists()
        kept = self.before / str(number)
        if applied or kept.exists():
            return
        parts = split_path(op.path)
        with self.store.jail.folder(parts[:-1]) as parent:
            if parent is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.link(parts[-1], kept, src_dir_fd=parent, follow_symlinks=False)

    def _apply(self, number: int, op: FileOperation) -> None:
        parts = split_path(op.path)
        with self.store.jail.folder(parts[:-1]) as parent:
            if op.new is None:
                now = None if parent is None else _inode(parts[-1], parent)
                # else others have changed it
                if now is not None and now == _inode(self.before / str(number)):
                    os.unlink(parts[-1], dir_fd=parent)
            elif (self.new / op.new).exists():
                if parent is None:
                    raise FileNotFoundError(f"the folder of {op.path!r} is gone")
                os.rename(self.new / op.new, parts[-1], dst_dir_fd=parent)

    def _restored(self, number: int, op: FileOperation) -> bool:
        """Roll back one file; False if it is not as this session left it, because others changed it."""
        kept = self.before / str(number)
        before = _inode(kept)
        if (before is None) if op.new is None else (self.new / op.new).exists():
            return True  # it was never removed, or never put in place
        try:
            with self.store.jail.folder(split_path(op.path)[:-1]) as parent:
                return _restore_file(kept if before is not None else None, op, parent)
        except NotStageable:
            return False  # the path now leads through a link and is not followed

    def _make_folder(self, parts: Parts) -> None:
        with self.store.jail.folder(parts[:-1]) as parent:
            with contextlib.suppress(FileExistsError):
                os.mkdir(parts[-1], dir_fd=parent)
            if parent is not None:
                os.fsync(parent)

    def _remove_folder(self, parts: Parts) -> None:
        """Remove the folder if it is empty: files of others keep it."""
        with contextlib.suppress(OSError, NotStageable), self.store.jail.folder(parts[:-1]) as parent:
            if parent is not None:
                os.rmdir(parts[-1], dir_fd=parent)

    def _sync_parents(self, record: RedoRecord) -> None:
        for parts in {split_path(op.path)[:-1] for op in record.ops}:
            with self.store.jail.folder(parts) as parent:
                if parent is not None:
                    os.fsync(parent)


def _finish_or_report(work: SessionFolder, record: RedoRecord | None) -> list[UnfinishedSession]:
    """Finish a session, or return what prevents it. If only deleting it failed, no files are affected."""
    try:
        work.finish(record)
    except (OSError, NotStageable, JournalError) as error:
        if record is not None and record.state in {COMMITTING, UNDOING}:
            return [UnfinishedSession(record, unfinished_session_error(work.folder, error))]
        log.warning("%s could not be deleted: %s", work.folder, error)
    return []


def _restore_file(kept: Path | None, op: FileOperation, parent: int | None) -> bool:
    """Replace our file with the before-image, or remove it if there was nothing before."""
    name = split_path(op.path)[-1]
    now, before = _stat_entry(name, parent), None if kept is None else _inode(kept)
    if now is not None and not op.wrote(now):
        return now.st_ino == before or (before is None and now.st_ino != op.inode)
    if parent is None:
        return kept is None
    if kept is not None:
        os.rename(kept, name, dst_dir_fd=parent)
    elif now is not None:
        os.unlink(name, dir_fd=parent)
    os.fsync(parent)
    return True


def file_name_for(anything: str) -> str:
    """A file name for any id."""
    return hashlib.sha256(anything.encode()).hexdigest()[:_NAME_LENGTH]


def sync_folder(folder: Path) -> None:
    """Make the directory entries durable."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(held)
    finally:
        os.close(held)


def _inode(name: str | Path, parent: int | None = None) -> int | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False).st_ino
    except FileNotFoundError:
        return None


def _stat_entry(name: str, parent: int | None) -> os.stat_result | None:
    try:
        return None if parent is None else os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


@contextmanager
def _held(descriptor: int, how: int) -> Iterator[None]:
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)
