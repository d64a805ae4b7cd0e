"""The files adapter: live effects on the files below one folder, invisible to others until the commit.

A live tool works through the adapter: `read`, `write`, `remove`, `rename`, `list`, `exists`. It sees its own
writes; everybody else sees them when the transaction commits, and never half of them once a dead process was
recovered. What was read or overwritten is known by the digest of its content, and a commit is refused
(`Moved`) when somebody else has changed it since, or is about to. Paths cannot leave the folder (jail.py);
what cannot be snapshotted is refused while the tool runs. `prepare` makes everything durable, `commit` renames
it into place with before-images beside it (redo.py).

Not kept apart: programs that write below the folder without this adapter between `prepare` and `commit`; their
change is then the before-image. What they write after it is theirs: then the commit cannot be taken back, and says
so. Folders are made as files need them and are not removed. A file is replaced, never written in place: other names
of it (hard links) keep the old content. For POSIX systems.
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

    # ---------------------------------------------------------------------------- what live tools call

    def read(self, path: str) -> bytes:
        """The content of a file, as this transaction sees it.

        Raises:
            FileNotFoundError: there is none; that it is missing counts as read.
            NotStageable: the path leaves the folder, or is no regular file.
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
        """The names in a folder, in order; the empty path is the root."""
        with self._session() as session:
            return session.names(split_path(folder) if folder else ())

    def write(self, path: str, content: bytes | str) -> None:
        """Replace or make a file; missing folders are made with it."""
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
        """Give a file another name, which it takes from whoever had it."""
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
            f"{self.name} was used outside a live tool; only there is its work undone on failure"
        )

    # --------------------------------------------------------------------------- what the live lane calls

    def begin(self, txn: str) -> FilesSession:
        """Make room for the session, and finish what dead processes had decided. What cannot be finished keeps up those
        who touch its files.
        """
        if not self._root.is_dir():
            raise NotStageable(f"the root of {self.name!r} is not there: {str(self._root)!r}")
        self._store.create()
        with self._store.locked():
            unfinished = self._store.tidy()
            return FilesSession(self.name, txn, self._store.new(txn), self._inside, unfinished)

    def landed(self, attempt_id: str) -> bool | None:
        """Whether the attempt's mark is there; None while the folder itself is away."""
        return self._store.mark(attempt_id).exists() if self._root.is_dir() else None

    def recover(self, txn: str, attempt_id: str | None) -> FilesSession | None:
        """The session that was prepared for this attempt; others of the transaction are undone.

        Raises:
            TransactionBusy: a living process has prepared a session of it.
            JournalError: what was decided about it cannot be done, or somebody else has changed its files since.
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
                    continue  # a rerun's that is under way
                if record is None or record.attempt_id != attempt_id:
                    work.discard_files()
                else:
                    work.let_go()  # whoever dies before it is finished leaves it as it was
                    found = FilesSession(self.name, txn, work, self._inside)
            return found
