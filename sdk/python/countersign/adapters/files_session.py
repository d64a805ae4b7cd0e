"""One transaction's changes to files: new contents lie beside, and reading sees through to what is below.

Rules: nothing below the root changes before `commit`; an effect that raises takes its writes with it, while
what it read stays read; the version seen first is the one that must not have moved.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from countersign.adapters.confined_folder import ConfinedFolder, Parts, content_version, split_path
from countersign.adapters.protocol import (
    Change,
    EffectContext,
    LiveCall,
    LiveSession,
    ObservedVersion,
    Savepoint,
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


class FilesSession(LiveSession):
    """What one transaction has changed below the folder; on disk beside it until the commit."""

    def __init__(
        self,
        name: str,
        txn: str,
        work: SessionFolder,
        inside: EffectContext[FilesSession],
        unfinished: tuple[UnfinishedSession, ...] = (),
    ) -> None:
        self._name, self._txn, self._work, self._inside = name, txn, work, inside
        self._unfinished = unfinished  # of other processes; what they touch is in doubt
        self._jail: ConfinedFolder = work.store.jail
        self._over: dict[Parts, str | None] = {}  # the number of the new content; None: removed
        self._seen: dict[str, ObservedVersion] = {}
        self._numbers = 0
        self._ended = False

    @contextmanager
    def effect(self, call: LiveCall) -> Iterator[None]:
        """Run one effect; what it wrote is forgotten if it raises, what it read is not."""
        before = dict(self._over)
        try:
            with self._inside.effect(self):
                yield
        except BaseException:
            self._over = before
            raise

    def savepoint(self) -> Savepoint:
        """What was written until now."""
        before = dict(self._over)
        return Savepoint(lambda: None, lambda: self._compensate_all(before))

    def _compensate_all(self, before: dict[Parts, str | None]) -> None:
        self._over = before

    # -------------------------------------------------------------------------------------- looking

    def read(self, parts: Parts) -> bytes | None:
        """The content of a file; None if there is none."""
        if parts in self._over:
            number = self._over[parts]
            return None if number is None else (self._work.new / number).read_bytes()
        self._require_no_file_above(parts)
        content = self._jail.read(parts)
        self._note(parts, None if content is None else content_version(content), read=True)
        return content

    def exists(self, parts: Parts) -> bool:
        """Whether a file is there, or a folder."""
        if parts in self._over:
            return self._over[parts] is not None
        if any(one[: len(parts)] == parts for one in self._written()):
            return True
        version = self._version("/".join(parts))
        self._note(parts, version, read=True)
        return version is not None

    def names(self, parts: Parts) -> tuple[str, ...]:
        """What is in a folder."""
        found = self._jail.names(parts)
        below = {one[len(parts)] for one in self._written() if one[: len(parts)] == parts}
        if found is None and not below:
            raise NotStageable(f"there is no folder {'/'.join(parts)!r} in {self._name!r}")
        self._seen.setdefault(
            _folder_key(parts), ObservedVersion(_folder_key(parts), _names_version(found), read=True)
        )
        gone = {one[-1] for one, number in self._over.items() if number is None and one[:-1] == parts}
        return tuple(sorted({*(found or ())} - gone | below))

    # ------------------------------------------------------------------------------------- changing

    def write(self, parts: Parts, content: bytes, *, like: Parts | None = None) -> None:
        """Put a new content beside, to be put in place by the commit."""
        mode = self._require_room(parts)
        if like is not None:
            old = self._jail.stat(like)
            mode = mode if old is None else stat.S_IMODE(old.st_mode)
        number, self._numbers = str(self._numbers), self._numbers + 1
        with (self._work.new / number).open("xb") as file:
            file.write(content)
            if mode is not None:
                os.fchmod(file.fileno(), mode)
        self._over[parts] = number

    def remove(self, parts: Parts) -> None:
        """Have the commit remove a file."""
        if self.read(parts) is None:
            raise NotStageable(f"there is no file {'/'.join(parts)!r} in {self._name!r} to remove")
        self._note(parts, self._version("/".join(parts)), written=True)
        self._over[parts] = None

    # ---------------------------------------------------------------------------- what the live lane calls

    def versions(self) -> tuple[ObservedVersion, ...]:
        """Every file and listing that was looked at or replaced."""
        return tuple(self._seen.values())

    def changes(self) -> tuple[Change, ...]:
        """Every file that the commit would make, replace or remove, with its content before and after."""
        found = (
            Change("/".join(parts), self._jail.read(parts), self.read(parts)) for parts in sorted(self._over)
        )
        return tuple(one for one in found if one.before != one.after)

    def verify_isolation(self) -> None:
        """Compare every version with what is there now.

        Raises:
            Moved: one is another.
            JournalError: it is of a session that could not be finished.
        """
        self._require_none_in_doubt()
        for seen in self._seen.values():
            now = self._version(seen.key)
            if now != seen.version:
                raise IsolationConflict(self._name, seen.key, read=seen.read, expected=seen.version, now=now)

    def prepare(self, attempt_id: str) -> None:
        """Make the new contents and the record durable. From here on nobody else may prepare what we touch."""
        with self._work.store.locked():
            done = self._work.record()
            if done is not None and done.attempt_id == attempt_id:
                return  # at an earlier round, or by the process that died
            self._unfinished = self._work.store.tidy()
            self.verify_isolation()
            self._put_away_earlier()
            self._require_undisputed()
            for number in self._over.values():
                if number is not None:
                    _sync_file(self._work.new / number)
            for folder in (self._work.new, self._work.before, self._work.store.sessions):
                sync_folder(folder)
            self._work.write(self._record(attempt_id))

    def commit(self, attempt_id: str) -> None:
        """Put everything in place. What fails half way is taken back before the error is shown; after an interrupt it
        is done again from where it was, by this session or by whoever recovers it.
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
                self._take_back(record)
                raise

    def undo(self) -> None:
        """Take back what was committed, and put everything away.

        Raises:
            JournalError: somebody else has changed some of it since, so it is not undone.
        """
        if self._ended:
            return
        with self._work.store.locked():
            record = self._work.record()
            if record is None or record.state == PREPARED:
                self._work.discard_files()
            else:
                self._take_back(record)
            self._ended = True

    def let_go(self) -> None:
        """What is prepared stays on disk, and whoever recovers may take it."""
        self._ended = True
        self._work.let_go()

    def close(self) -> None:
        """Drop the before-images."""
        if not self._ended:
            self._ended = True
            with self._work.store.locked():
                self._work.discard_files()

    # --------------------------------------------------------------------------------------- inside

    def _take_back(self, record: RedoRecord) -> None:
        try:
            self._work.restore(self._work.write(replace(record, state=UNDOING)))
        finally:
            self._work.let_go()  # what could not be taken back now, the next to come here takes back

    def _put_away_earlier(self) -> None:
        """A dead run of this transaction had prepared, and was not redeemed: its list is replaced by ours."""
        store = self._work.store
        for folder in store.folders(self._txn):
            earlier = store.take(folder) if folder != self._work.folder else None
            if earlier is not None:
                earlier.discard_files()

    def _require_none_in_doubt(self) -> None:
        """What a session that could not be finished touches is half done; and of our own transaction nothing may be
        replaced before it is.
        """
        for one in self._unfinished:
            if one.record.txn == self._txn or _conflict(self._record(""), one.record):
                raise one.error

    def _require_undisputed(self) -> None:
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
        for parts, number in sorted(self._over.items()):
            there = self._jail.stat(parts) is not None
            if number is None and not there:
                continue  # made and removed within the transaction
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

    def _require_room(self, parts: Parts) -> int | None:
        """Look at what is replaced; the mode it has.

        Raises:
            NotStageable: a file cannot be put there, or what is there cannot be snapshotted.
        """
        path = "/".join(parts)
        self._require_no_file_above(parts)
        there = self._jail.stat(parts)
        if (there is not None and stat.S_ISDIR(there.st_mode)) or self._is_folder_of_ours(parts):
            raise NotStageable(f"{path!r} is a folder")
        for depth in reversed(range(len(parts))):  # the innermost folder that is there
            with self._jail.folder(parts[:depth]) as held:
                if held is not None:
                    self._require_writable(held, path)
                    break
        self._note(parts, self._version(path), written=True)
        return None if there is None else stat.S_IMODE(there.st_mode)

    def _require_writable(self, folder: int, path: str) -> None:
        if os.fstat(folder).st_dev != self._work.folder.stat().st_dev:
            raise NotStageable(f"{path!r} is on another file system than the root of {self._name!r}")
        if not os.access(".", os.W_OK | os.X_OK, dir_fd=folder):
            raise NotStageable(f"{path!r} cannot be written: its folder is closed to this process")

    def _require_no_file_above(self, parts: Parts) -> None:
        for depth in range(1, len(parts)):
            if self._over.get(parts[:depth]) is not None:
                raise NotStageable(f"{'/'.join(parts[:depth])!r} is a file in this transaction")

    def _is_folder_of_ours(self, parts: Parts) -> bool:
        return any(len(one) > len(parts) and one[: len(parts)] == parts for one in self._written())

    def _written(self) -> Iterator[Parts]:
        return (one for one, number in self._over.items() if number is not None)

    def _version(self, key: str) -> str | None:
        """What is there now, under the key of a file or of a listing."""
        if key.endswith("/"):
            return _names_version(self._jail.names(tuple(key.split("/")[:-1]) if key != "/" else ()))
        parts = split_path(key)
        there = self._jail.stat(parts)
        if there is not None and stat.S_ISDIR(there.st_mode):
            return _FOLDER_VERSION
        content = self._jail.read(parts)
        return None if content is None else content_version(content)

    def _note(self, parts: Parts, version: str | None, *, read: bool = False, written: bool = False) -> None:
        """The version that was seen first is the one that must not have moved."""
        key = "/".join(parts)
        seen = self._seen.get(key) or ObservedVersion(key, version)
        self._seen[key] = replace(seen, read=seen.read or read, written=seen.written or written)


def _conflict(one: RedoRecord, other: RedoRecord) -> set[str]:
    """What both write, or one reads and the other writes. Two may each put a file of their own into a folder."""
    both = {key for key in {*one.written} & {*other.written} if not key.endswith("/")}
    return both | {*one.written} & {*other.read} | {*one.read} & {*other.written}


def _folder_key(parts: Parts) -> str:
    return "/".join(parts) + "/"


def _names_version(names: tuple[str, ...] | None) -> str | None:
    return None if names is None else content_version("/".join(names).encode(errors="surrogateescape"))


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
