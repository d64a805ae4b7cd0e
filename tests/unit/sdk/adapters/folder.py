"""A folder of files as a live resource: what transactions do there, and what everybody else sees."""

from collections.abc import Callable
from pathlib import Path

from countersign.adapters.files import FilesAdapter
from countersign.adapters.files_session import FilesSession
from tests.unit.sdk.adapters.rows import CALL

PRIVATE = ".countersign"
OLD = {"a": "old a", "d/b": "old b"}
Deed = Callable[[FilesAdapter], object]


def tree(root: Path) -> dict[str, str]:
    """Every file that others see."""
    found = (path for path in root.rglob("*") if path.is_file() and PRIVATE not in path.parts)
    return {str(path.relative_to(root)): path.read_text() for path in found}


def sessions(root: Path) -> list[Path]:
    """What is kept of sessions that are open, or could not be ended."""
    return sorted((root / PRIVATE / "sessions").iterdir())


def acted(files: FilesAdapter, act: Deed, txn: str = "t-1") -> FilesSession:
    """A session of one effect."""
    session = files.begin(txn)
    with session.effect(CALL):
        act(files)
    return session


def prepared(files: FilesAdapter, act: Deed) -> FilesSession:
    session = acted(files, act)
    session.prepare("a-1")
    return session


def committed(files: FilesAdapter, act: Deed) -> FilesSession:
    """Committed, and not closed: it may still be taken back."""
    session = prepared(files, act)
    session.commit("a-1")
    return session


def done(files: FilesAdapter, act: Deed, txn: str = "t-1") -> None:
    """A whole transaction of one effect; any exception undoes it."""
    session = files.begin(txn)
    try:
        with session.effect(CALL):
            act(files)
        session.verify_isolation()
        session.prepare("a-2")
        session.commit("a-2")
        session.close()
    finally:
        session.undo()
