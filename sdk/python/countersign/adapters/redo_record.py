"""The redo record of the files adapter: what a session does to which files and how far that is decided, and the errors
for a session that cannot be finished.

Old records stay readable; a damaged one is never guessed at. Errors name the session's folder and no file, because a
file name may be a secret: the record contains the names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from countersign.errors import JournalError

PREPARED: Final = "prepared"
COMMITTING: Final = "committing"
COMMITTED: Final = "committed"
UNDOING: Final = "undoing"
RECORD: Final = "record.json"


@dataclass(frozen=True, slots=True)
class FileOperation:
    """The final state of one file: the number of its new content, or None if it is removed."""

    path: str
    new: str | None
    inode: int  # of the new content: distinguishes our file from one that others put there
    modified_ns: int = 0  # the same, because the inode of a deleted file is reused; 0 in older records

    def wrote(self, found: os.stat_result) -> bool:
        """Whether this is the file that the session wrote, unchanged."""
        return found.st_ino == self.inode and self.modified_ns in (0, found.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class RedoRecord:
    """The operations of a session, and its state."""

    txn: str
    attempt_id: str
    state: str
    ops: tuple[FileOperation, ...]
    folders: tuple[str, ...]  # to be created, outermost first
    read: tuple[str, ...] = field(default=())
    written: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class UnfinishedSession:
    """A session of a dead process that is decided and cannot be finished now. The state of its files is unknown until
    it is.
    """

    record: RedoRecord
    error: JournalError


def read_record(folder: Path) -> RedoRecord | None:
    """The record in that folder.

    Raises:
        JournalError: it is not one that this version writes.
    """
    try:
        found: dict[str, Any] = json.loads((folder / RECORD).read_bytes())
        ops = tuple(FileOperation(**one) for one in found.pop("ops"))
        for name in ("folders", "read", "written"):
            found[name] = tuple(found[name])
        return RedoRecord(ops=ops, **found)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise JournalError(
            f"the redo record in {str(folder)!r} is damaged ({error}), so it is not known which of its files "
            "were written: compare them with what is stored with the record, then move that folder out of the "
            "way; nothing else below this root begins before"
        ) from error


def rollback_conflict_error(folder: Path, numbers: Sequence[int]) -> JournalError:
    """The error for files that others have changed: theirs stay, and so do the before-images."""
    kept = ", ".join(f"before/{number}" for number in sorted(numbers))
    return JournalError(
        "a session of live files was not undone completely, because others have changed what it had written. "
        f"Their files were left, and what was there before is kept in {str(folder)!r} as {kept} (the nth of the "
        "ops in record.json is the file of before/n; where there is no such file, there was none). Restore "
        f"that, or delete it to keep theirs; {_NEXT_STEP}"
    )


def unfinished_session_error(folder: Path, why: Exception) -> JournalError:
    """The error for an obstacle to finishing what was decided."""
    if isinstance(why, JournalError):
        return why
    said = why.strerror if isinstance(why, OSError) else "a folder of its files is a link or a file now"
    return JournalError(
        f"a session of live files could not be finished ({said or type(why).__name__}). All of it is in "
        f"{str(folder)!r}, and record.json in it names its files: remove what prevents it, or restore the files "
        f"yourself and move that folder out of the way; {_NEXT_STEP}"
    )


_NEXT_STEP: Final = (
    "the next transaction below this root, or `countersign resume --tools MODULE`, finishes it then. Until it is "
    "finished, only transactions that touch its files are refused"
)
