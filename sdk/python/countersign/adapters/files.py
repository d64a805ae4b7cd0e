"""The files adapter: live effects on the files below one folder, invisible to others until the commit.

A live tool works through the adapter: `read`, `write`, `remove`, `rename`, `list`, `exists`. It sees its own writes.
Others see them when the transaction commits, and never half of them once a dead process was recovered. Versions are
content digests: a commit is refused (`IsolationConflict`) if another process has changed what was read or overwritten,
or is about to. Paths cannot leave the folder (confined_folder.py). What cannot be snapshotted is refused while the tool
runs. `prepare` makes everything durable; `commit` renames it into place and keeps before-images (redo_log.py).

Not isolated: programs that write below the folder without this adapter between `prepare` and `commit`; the before-image
then contains their change. What they write later is kept: the commit can then not be undone, and reports it. Folders
are created as files need them and are not removed. A file is replaced, never written in place, so other hard links keep
the old content. For POSIX systems.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from countersign.adapters.confined_folder import split_path
from countersign.adapters.files_session import FilesSession
from countersign.adapters.protocol import EffectContext, LiveAdapter
from countersign.adapters.redo_log import RedoStore
from countersign.adapters.redo_record import read_record
from countersign.errors import NotStageable, TransactionBusy


class FilesAdapter(LiveAdapter):
    """One folder as a resource."""

    commits_last = True

    def __init__(self, root: str | Path, *, name: str | None = None) -> None:
        self._root = Path(root).resolve()
        self._store = RedoStore(self._root)
        self._name = name or self._root.name
        self._inside: EffectContext[FilesSession] = EffectContext(self._name)

    @property
    def name(self) -> str:
        """Its name in the journal and in errors."""
        return self._name

    # ---------------------------------------------------------------------------- called by live tools

    def read(self, path: str) -> bytes:
        """The content of a file, as this transaction sees it.

        Raises:
            FileNotFoundError: there is none; its absence counts as read.
            NotStageable: the path leaves the folder, or is not a regular file.
        """
        with self._session() as session:
            content = session.read(split_path(path))
        if content is None:
            raise FileNotFoundError(f"there is no file {path!r} in {self.name!r}")
        return content

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder."""
        with self._session() as session:
            return session.exists(split_path(path))

    def list(self, folder: str = "") -> tuple[str, ...]:
        """The sorted names in a folder; the empty path is the root."""
        with self._session() as session:
            return session.names(split_path(folder) if folder else ())

    def write(self, path: str, content: bytes | str) -> None:
        """Create or replace a file, with missing folders."""
        with self._session() as session:
            session.write(split_path(path), content.encode() if isinstance(content, str) else content)

    def remove(self, path: str) -> None:
        """Remove a file.

        Raises:
            NotStageable: there is none.
        """
        with self._session() as session:
            session.remove(split_path(path))

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing a file of the new name."""
        source, target = split_path(old), split_path(new)
        with self._session() as session:
            content = session.read(source)
            if content is None:
                raise NotStageable(f"there is no file {old!r} in {self.name!r} to rename")
            if source != target:
                session.write(target, content, like=source)
                session.remove(source)

    def _session(self) -> AbstractContextManager[FilesSession]:
        return self._inside.use(
            f"{self.name} was used outside a live tool; only there can its work be undone"
        )

    # --------------------------------------------------------------------------- called by the SDK

    def begin(self, txn: str) -> FilesSession:
        """Create the session's folder, and finish what dead processes had decided. What cannot be finished blocks only
        transactions that touch its files.
        """
        if not self._root.is_dir():
            raise NotStageable(f"the root of {self.name!r} is missing: {str(self._root)!r}")
        self._store.create()
        with self._store.locked():
            unfinished = self._store.tidy()
            return FilesSession(self.name, txn, self._store.new(txn), self._inside, unfinished)

    def landed(self, attempt_id: str) -> bool | None:
        """Whether the attempt's mark exists; None while the folder itself is unreachable."""
        return self._store.mark(attempt_id).exists() if self._root.is_dir() else None

    def recover(self, txn: str, attempt_id: str | None) -> FilesSession | None:
        """The session that was prepared for this attempt; others of the transaction are undone.

        Raises:
            TransactionBusy: a living process has prepared a session of it.
            JournalError: the decision cannot be carried out, or its files were changed by others since.
        """
        if not self._store.sessions.is_dir():
            return None
        with self._store.locked():
            for one in self._store.tidy():
                if one.record.txn == txn:
                    raise one.error
            found = None
            for folder in self._store.folders(txn):
                record, work = read_record(folder), self._store.take(folder)
                if work is None and record is not None:
                    raise TransactionBusy(txn[:12], f"a living process, in {self.name!r}", 0.0)
                if work is None:
                    continue  # a running rerun of the same transaction
                if record is None or record.attempt_id != attempt_id:
                    work.discard_files()
                else:
                    work.let_go()  # if this process dies before it is finished, the folder stays as it was
                    found = FilesSession(self.name, txn, work, self._inside)
            return found
