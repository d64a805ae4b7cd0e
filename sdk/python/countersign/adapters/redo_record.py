"""The redo record of the files adapter: what a session is going to do to which files, and how far that is decided; and
what is told of a session that cannot be brought to its end.

Rules: an old record stays readable; of one that is damaged nobody guesses; what is told names the session's folder and
no file, for a file may be named by a secret: whoever is to act finds its name in the record.
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
    """One file as the session leaves it: the number of its new content, or None where it is removed."""

    path: str
    new: str | None
    inode: int  # of the new content: tells ours from what somebody else put there since
    modified_ns: int = 0  # the same, for the inode of a file that is gone is given again; 0 in older records

    def wrote(self, found: os.stat_result) -> bool:
        """Whether that is what the session has put there, as it has put it there."""
        return found.st_ino == self.inode and self.modified_ns in (0, found.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class RedoRecord:
    """What is to be done, and how far that is decided."""

    txn: str
    attempt_id: str
    state: str
    ops: tuple[FileOperation, ...]
    folders: tuple[str, ...]  # that have to be made, outermost first
    read: tuple[str, ...] = field(default=())
    written: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class UnfinishedSession:
    """A session of a dead process whose end is decided and cannot be brought about now. What it touches is nobody's
    until it can.
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
            f"the redo record in {str(folder)!r} is damaged ({error}), so nobody can tell which of its files were "
            "written: compare them with what lies beside the record, then move that folder out of the way; nothing "
            "else below this root begins before"
        ) from error


def rollback_conflict_error(folder: Path, numbers: Sequence[int]) -> JournalError:
    """Somebody else has changed these since; theirs stays, and so does what was there before."""
    kept = ", ".join(f"before/{number}" for number in sorted(numbers))
    return JournalError(
        f"a session of live files was not taken back whole, for somebody else has changed what it had written. Theirs "
        f"was left, and what was there before is kept in {str(folder)!r} as {kept} (the nth of the ops in record.json "
        "is the file of before/n; where there is no such file, there was none). Put that back, or delete it to keep "
        f"theirs; {_NEXT_STEP}"
    )


def unfinished_session_error(folder: Path, why: Exception) -> JournalError:
    """Something is in the way of what was decided."""
    if isinstance(why, JournalError):
        return why
    said = why.strerror if isinstance(why, OSError) else "a folder of its files is a link or a file now"
    return JournalError(
        f"a session of live files could not be finished ({said or type(why).__name__}). All of it is in "
        f"{str(folder)!r}, and record.json in it names its files: put right what is in their way, or put them right "
        f"yourself and move that folder out of the way; {_NEXT_STEP}"
    )


_NEXT_STEP: Final = (
    "the next transaction below this root, or `countersign resume --tools MODULE`, finishes it then. Until it is "
    "finished, only transactions that touch its files are refused"
)
