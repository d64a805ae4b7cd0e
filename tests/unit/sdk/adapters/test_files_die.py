"""kill -9 before each act on the disk, from the first effect to the end: files are as before or as after, never half.

Each act of the operating system that changes or syncs a name is a point; a run that nobody kills says how many
there are, so that none is forgotten when the code changes.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from countersign.adapters import LiveCall
from countersign.adapters.files import FilesAdapter
from countersign.adapters.overlay import FilesSession

CALL = LiveCall("exam", {}, "e-1")
ACTS = ("rename", "link", "unlink", "fsync", "mkdir", "rmdir", "write", "open")
OLD = {"a": "old a", "b": "old b", "d/c": "old c"}
NEW = {"a": "new a", "d/c": "new c", "d/e/f": "new f"}
Deed = Callable[[FilesAdapter], object]


def standing(folder: Path) -> Path:
    """A root with the old files."""
    root = folder / "root"
    (root / "d").mkdir(parents=True)
    for path, content in OLD.items():
        (root / path).write_text(content)
    FilesAdapter(root).begin("t-0").undo()
    return root


def seen(root: Path) -> dict[str, str]:
    found = (path for path in root.rglob("*") if path.is_file() and ".countersign" not in path.parts)
    return {str(path.relative_to(root)): path.read_text() for path in found}


def left(root: Path) -> list[str]:
    return [path.name for path in (root / ".countersign" / "sessions").iterdir()]


def prepared(files: FilesAdapter) -> FilesSession:
    session = files.begin("t-1")
    with session.effect(CALL):
        files.write("a", "new a")
        files.remove("b")
    with session.effect(CALL):
        files.write("d/e/f", "new f")
        files.write("d/c", "new c")
    session.prepare("a-1")
    return session


def whole(files: FilesAdapter) -> None:
    session = prepared(files)
    session.commit("a-1")
    session.close()


def committed_and_taken_back(files: FilesAdapter) -> None:
    session = prepared(files)
    session.commit("a-1")
    session.undo()


def prepared_and_undone(files: FilesAdapter) -> None:
    prepared(files).undo()


def die(root: Path, deed: Deed, at: int | None) -> int:
    """Run it in a process that is killed before its nth act, and say how many acts there were."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            count = _counting(at)
            deed(FilesAdapter(root))
            os.close(reader)
            _REAL_WRITE(writer, str(count[0]).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == (0 if at is None or said else -signal.SIGKILL)
    return int(said or 0)


_REAL_WRITE = os.write


def _counting(at: int | None) -> list[int]:
    count = [0]

    def watched(act: Callable[..., Any]) -> Callable[..., Any]:
        def acting(*args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            if count[0] == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return act(*args, **kwargs)

        return acting

    for name in ACTS:
        setattr(os, name, watched(getattr(os, name)))
    return count


EVERY = pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.long)], ids=["some", "every"])
"""Which acts a process is killed before: each third on every day, each one in `make test-long`."""


def killed(folder: Path, deed: Deed, step: int) -> Iterator[tuple[int, Path]]:
    """A root for each act, in which a process was killed before it, and which act that was."""
    for at in range(1, die(standing(folder / "survivor"), deed, None) + 1, step):
        root = standing(folder / str(at))
        die(root, deed, at)
        yield at, root
        shutil.rmtree(root)


def was_prepared(root: Path) -> bool:
    return any((root / ".countersign" / "sessions" / name / "record.json").exists() for name in left(root))


def recovered_as_not_redeemed(root: Path) -> None:
    assert FilesAdapter(root).recover("t-1", None) is None


def recovered_as_redeemed(root: Path) -> None:
    files = FilesAdapter(root)
    session = files.recover("t-1", "a-1")
    if session is not None:
        session.prepare("a-1")
        session.commit("a-1")
        session.close()


@EVERY
@pytest.mark.timeout(300)
def test_killed_anywhere_and_not_redeemed_the_files_are_as_before_unless_the_commit_was_decided(
    tmp_path: Path, step: int
) -> None:
    ends = set()
    for at, root in killed(tmp_path, whole, step):
        decided = any("committ" in text for text in records(root)) or FilesAdapter(root).landed("a-1")
        for _ in range(2):
            recovered_as_not_redeemed(root)
            assert seen(root) == (NEW if decided else OLD), f"act {at}"
            assert FilesAdapter(root).landed("a-1") is bool(decided), f"act {at}"
        assert left(root) == []
        ends.add(bool(decided))
    assert ends == {True, False}


@EVERY
@pytest.mark.timeout(300)
def test_killed_anywhere_and_redeemed_the_files_are_as_after_once_it_was_prepared(
    tmp_path: Path, step: int
) -> None:
    ends = set()
    for at, root in killed(tmp_path, whole, step):
        prepared = was_prepared(root) or FilesAdapter(root).landed("a-1")
        for _ in range(2):
            recovered_as_redeemed(root)
            assert seen(root) == (NEW if prepared else OLD), f"act {at}"
            assert FilesAdapter(root).landed("a-1") is bool(prepared), f"act {at}"
        assert left(root) == []
        ends.add(bool(prepared))
    assert ends == {True, False}


@EVERY
@pytest.mark.timeout(300)
def test_killed_while_a_commit_is_taken_back_it_is_taken_back_or_stands_whole(
    tmp_path: Path, step: int
) -> None:
    ends = set()
    for at, root in killed(tmp_path, committed_and_taken_back, step):
        FilesAdapter(root).begin("t-9").undo()  # whoever comes next finishes what was decided
        FilesAdapter(root).recover("t-1", None)
        landed = FilesAdapter(root).landed("a-1")
        assert seen(root) == (NEW if landed else OLD), f"act {at}"
        assert left(root) == []
        ends.add(landed)
    assert ends == {True, False}


@EVERY
@pytest.mark.timeout(300)
def test_killed_while_what_was_prepared_is_undone_half_of_it_is_never_finished(
    tmp_path: Path, step: int
) -> None:
    ends = set()
    for at, root in killed(tmp_path, prepared_and_undone, step):
        recovered_as_redeemed(root)
        assert seen(root) in (OLD, NEW), f"act {at}"
        assert FilesAdapter(root).landed("a-1") is (seen(root) == NEW), f"act {at}"
        ends.add(seen(root) == NEW)
    assert ends == {True, False}


@EVERY
@pytest.mark.timeout(300)
def test_recovery_itself_may_be_killed_anywhere(tmp_path: Path, step: int) -> None:
    middle = next(at for at, root in killed(tmp_path, whole, 3) if seen(root) not in (OLD, NEW))

    def recover(files: FilesAdapter) -> None:
        session = files.recover("t-1", "a-1")
        if session is not None:
            session.commit("a-1")
            session.close()

    root = standing(tmp_path / "again")
    die(root, whole, middle)
    acts = die(root, recover, None)
    assert acts > 10
    for at in range(1, acts + 1, step):
        root = standing(tmp_path / f"twice{at}")
        die(root, whole, middle)
        die(root, recover, at)
        recovered_as_redeemed(root)
        assert (seen(root), left(root)) == (NEW, []), f"act {at} of the recovery"


def records(root: Path) -> list[str]:
    paths = (root / ".countersign" / "sessions").glob("*/record.json")
    return [path.read_text() for path in paths]
