"""What the files adapter has on disk of one session: the new contents, the before-images, and a redo record.

Rules: nothing below the root changes before the record is durable; whatever the record says is decided is done
again from the record as often as need be, with the same result; before-images are linked and durable before
the first rename, and stay until the session is closed; the record goes first when a session is put away. So a
process may die anywhere, and whoever comes next finishes what was decided.

    (no record) -> prepared -> committing -> committed -> (gone)
                       \\--------> undoing <----/----------> (gone)
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from countersign.adapters.jail import PRIVATE, Jail, Parts, parts_of
from countersign.errors import JournalError, NotStageable, TransactionBusy

PREPARED: Final = "prepared"
COMMITTING: Final = "committing"
COMMITTED: Final = "committed"
UNDOING: Final = "undoing"
_RECORD: Final = "record.json"
_NAME_LENGTH: Final = 32


@dataclass(frozen=True, slots=True)
class Op:
    """One file as the session leaves it: the number of its new content, or None where it is removed."""

    path: str
    new: str | None
    inode: int  # of the new content: tells ours from what somebody else put there since


@dataclass(frozen=True, slots=True)
class Record:
    """What is to be done, and how far that is decided."""

    txn: str
    attempt_id: str
    state: str
    ops: tuple[Op, ...]
    folders: tuple[str, ...]  # that have to be made, outermost first
    read: tuple[str, ...] = field(default=())
    written: tuple[str, ...] = field(default=())


class Store:
    """The adapter's own folder below its root."""

    def __init__(self, root: Path) -> None:
        self.jail = Jail(root)
        self.private = root / PRIVATE
        self.sessions, self.marks = self.private / "sessions", self.private / "landed"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time, among those that use this adapter; the lock ends with its process."""
        with _held(os.open(self.private / "lock", os.O_RDWR | os.O_CREAT, 0o600), fcntl.LOCK_EX):
            yield

    def create(self) -> None:
        """Make the folder, privately.

        Raises:
            NotStageable: something else is there under its name.
        """
        for folder in (self.private, self.sessions, self.marks):
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
                sync(folder.parent)
            if folder.is_symlink() or not folder.is_dir():
                raise NotStageable(f"{str(folder)!r} is not a folder of our own")

    def new(self, txn: str) -> Work:
        """Room for one session, held by this process. Called while locked."""
        folder = self.sessions / f"{name_of(txn)}.{os.urandom(8).hex()}"
        for one in (folder, folder / "new", folder / "before"):
            one.mkdir(mode=0o700)
        work = self.take(folder)
        if work is None:
            raise JournalError(f"{str(folder)!r} was taken by another process while it was made")
        return work

    def take(self, folder: Path) -> Work | None:
        """What is in that folder, if no living process holds it."""
        held = os.open(folder / "owner", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            return None
        return Work(self, folder, held)

    def folders(self, txn: str | None = None) -> list[Path]:
        """Of every session, or of those of one transaction."""
        start = "" if txn is None else f"{name_of(txn)}."
        return sorted(one for one in self.sessions.iterdir() if one.name.startswith(start))

    def tidy(self) -> None:
        """Finish what is decided and put away what nobody can use any more. Called while locked."""
        for folder in self.folders():
            work = self.take(folder)
            if work is None:
                continue
            try:
                work.finish()
            finally:  # whatever is in the way: held by us it could be finished by nobody else, nor by us again
                work.let_go()

    def records(self, but: Path) -> list[Record]:
        """Of all other sessions that are prepared."""
        found = [read_record(folder) for folder in self.folders() if folder != but]
        return [one for one in found if one is not None]

    def mark(self, attempt_id: str) -> Path:
        """Is there when that attempt is permanent."""
        return self.marks / name_of(attempt_id)


class Work:
    """One session's folder, held by this process."""

    def __init__(self, store: Store, folder: Path, held: int) -> None:
        self.store, self.folder, self._held = store, folder, held
        self.new, self.before = folder / "new", folder / "before"

    def record(self) -> Record | None:
        """What is decided, if anything is."""
        return read_record(self.folder)

    def write(self, record: Record) -> Record:
        """Make it durable, whole or not at all."""
        raw = json.dumps(asdict(record)).encode()
        draft = self.folder / f"{_RECORD}.draft"
        with draft.open("wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(self.folder / _RECORD)
        sync(self.folder)
        return record

    def finish(self) -> None:
        """Do what was decided, and put away what nobody can use any more."""
        record = self.record()
        if record is None or record.state == COMMITTED:
            self.put_away()
        elif record.state == COMMITTING:
            self.apply(record)
            self.put_away()
        elif record.state == UNDOING:
            self.restore(record)

    def apply(self, record: Record) -> None:
        """Do what is decided, or what is left of it."""
        for path in record.folders:
            self._make_folder(parts_of(path))
        for number, op in enumerate(record.ops):
            self._keep_before(number, op)
        sync(self.before)
        for number, op in enumerate(record.ops):
            self._apply(number, op)
        self._sync_parents(record)
        mark = self.store.mark(record.attempt_id)
        mark.touch(mode=0o600)
        sync(mark.parent)
        self.write(replace(record, state=COMMITTED))

    def restore(self, record: Record) -> None:
        """Take back what was done of it, newest first, and put it away."""
        if record.state != UNDOING:
            self.write(replace(record, state=UNDOING))
        self.store.mark(record.attempt_id).unlink(missing_ok=True)
        sync(self.store.marks)
        for number, op in reversed(list(enumerate(record.ops))):
            self._restore(number, op)
        for path in reversed(record.folders):
            self._remove_folder(parts_of(path))
        self._sync_parents(record)
        self.put_away()

    def put_away(self) -> None:
        """Nothing more will be asked of it. The record goes first: half of a session must not look like one."""
        try:
            if self.folder.is_dir():
                (self.folder / _RECORD).unlink(missing_ok=True)
                sync(self.folder)
                shutil.rmtree(self.folder)
        finally:
            self.let_go()

    def hold(self) -> None:
        """Keep it from everybody else, until it is put away or this process ends.

        Raises:
            TransactionBusy: another process has it.
        """
        if self._held >= 0:
            return
        held = self.store.take(self.folder)
        if held is None:
            raise TransactionBusy(self.folder.name, "a living process", 0.0)
        self._held = held._held

    def let_go(self) -> None:
        """Another process may take it."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    # ------------------------------------------------------------------------------------------ one file

    def _keep_before(self, number: int, op: Op) -> None:
        """Link the file as it is now. What has been renamed over already has its before-image."""
        applied = op.new is not None and not (self.new / op.new).exists()
        kept = self.before / str(number)
        if applied or kept.exists():
            return
        parts = parts_of(op.path)
        with self.store.jail.folder(parts[:-1]) as parent:
            if parent is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.link(parts[-1], kept, src_dir_fd=parent, follow_symlinks=False)

    def _apply(self, number: int, op: Op) -> None:
        parts = parts_of(op.path)
        with self.store.jail.folder(parts[:-1]) as parent:
            if op.new is None:
                now = None if parent is None else _inode(parts[-1], parent)
                if now is not None and now == _inode(self.before / str(number)):  # else it is somebody else's
                    os.unlink(parts[-1], dir_fd=parent)
            elif (self.new / op.new).exists():
                if parent is None:
                    raise FileNotFoundError(f"the folder of {op.path!r} is gone")
                os.rename(self.new / op.new, parts[-1], dst_dir_fd=parent)

    def _restore(self, number: int, op: Op) -> None:
        parts, kept = parts_of(op.path), self.before / str(number)
        if op.new is not None and (self.new / op.new).exists():
            return  # it was never put in place
        with self.store.jail.folder(parts[:-1]) as parent:
            if parent is None:
                return
            now = _inode(parts[-1], parent)
            if kept.exists() and (op.new is not None or now is None):
                os.rename(kept, parts[-1], dst_dir_fd=parent)
            elif op.new is not None and now == op.inode:
                os.unlink(parts[-1], dir_fd=parent)

    def _make_folder(self, parts: Parts) -> None:
        with self.store.jail.folder(parts[:-1]) as parent:
            with contextlib.suppress(FileExistsError):
                os.mkdir(parts[-1], dir_fd=parent)
            if parent is not None:
                os.fsync(parent)

    def _remove_folder(self, parts: Parts) -> None:
        """If it is still empty: what somebody else has put there meanwhile keeps it."""
        with self.store.jail.folder(parts[:-1]) as parent:
            if parent is not None:
                with contextlib.suppress(OSError):
                    os.rmdir(parts[-1], dir_fd=parent)

    def _sync_parents(self, record: Record) -> None:
        for parts in {parts_of(op.path)[:-1] for op in record.ops}:
            with self.store.jail.folder(parts) as parent:
                if parent is not None:
                    os.fsync(parent)


def name_of(anything: str) -> str:
    """A file name for any id."""
    return hashlib.sha256(anything.encode()).hexdigest()[:_NAME_LENGTH]


def read_record(folder: Path) -> Record | None:
    """The record in that folder.

    Raises:
        JournalError: it is not one that this version writes.
    """
    try:
        found: dict[str, Any] = json.loads((folder / _RECORD).read_bytes())
        ops = tuple(Op(**one) for one in found.pop("ops"))
        for name in ("folders", "read", "written"):
            found[name] = tuple(found[name])
        return Record(ops=ops, **found)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise JournalError(
            f"the redo record in {str(folder)!r} is damaged ({error}), so nobody can tell which of its files were "
            "written: compare them with what lies beside the record, then move that folder out of the way; nothing "
            "else below this root begins before"
        ) from error


def sync(folder: Path) -> None:
    """Make the names in a folder durable."""
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


@contextmanager
def _held(descriptor: int, how: int) -> Iterator[None]:
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)
