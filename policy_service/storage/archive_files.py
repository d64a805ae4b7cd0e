"""The archive files: one file a month, one line of canonical JSON for each archived transaction.

A file only grows. A line is durable before the rows it holds are deleted. After a crash in between it is written again,
so the last complete line of a transaction counts, and a torn one is followed by a line break and ignored. The digest of
the line is in the audit log, so a reader can tell whether somebody changed it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from countersign.contract import canonicalize
from countersign.contract.digests import labelled_digest

_LABEL: Final = b"countersign/archive/v1\n"
_SUFFIX: Final = ".jsonl"


def encode_line(txn: str, rows: dict[str, Any], exports: dict[str, bytes]) -> bytes:
    """The line of a transaction. ``exports``: its sealed reviews by id, whose bytes are kept as text."""
    sealed = {review_id: file.decode() for review_id, file in exports.items()}
    return canonicalize({"exports": sealed, "rows": rows, "txn": txn, "v": 1})


def line_digest(line: bytes) -> str:
    """The digest of a line without its line break."""
    return labelled_digest(_LABEL, line)


def file_of(month: datetime) -> str:
    """The name of the file of a month."""
    return f"{month:%Y-%m}{_SUFFIX}"


def append_lines(folder: Path, name: str, lines: Sequence[bytes]) -> None:
    """Append lines to a file of the archive and sync it.

    Raises:
        OSError: they may not be durable; nothing may be deleted.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "ab") as file:
        # Replicas may share the folder, and a lease can have two holders for a moment.
        fcntl.flock(handle, fcntl.LOCK_EX)
        size = os.fstat(handle).st_size
        torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        file.write((b"\n" if torn else b"") + b"".join(line + b"\n" for line in lines))
        file.flush()
        os.fsync(handle)
    for one in (folder, folder.parent):  # the names of a new file and a new folder
        named = os.open(one, os.O_RDONLY)
        try:
            os.fsync(named)
        finally:
            os.close(named)


def archive_files(path: Path) -> list[Path]:
    """The files of an archive folder, oldest first; of a file, the file itself."""
    return sorted(path.glob(f"*{_SUFFIX}")) if path.is_dir() else [path]


def archived_lines(files: Sequence[Path], about: str) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The complete lines that mention an id, in the order of writing, without their line breaks."""
    wanted = about.encode()
    for path in files:
        with path.open("rb") as file:
            for line in file:
                if wanted not in line:
                    continue
                try:
                    record = json.loads(line)
                except ValueError:
                    continue  # torn by a crash; a complete line follows, or the rows were not deleted
                if isinstance(record, dict):
                    yield line.rstrip(b"\n"), record


def find_export(files: Sequence[Path], review_id: str) -> tuple[bytes, str] | None:
    """The sealed export of an archived review, from the last complete line with it; and the digest of that line."""
    found = None
    for line, record in archived_lines(files, review_id):
        exports = record.get("exports")
        if isinstance(exports, dict) and isinstance(file := exports.get(review_id), str):
            found = file.encode(), line_digest(line)
    return found
