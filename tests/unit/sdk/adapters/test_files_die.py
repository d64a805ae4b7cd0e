"""kill -9 before each act on the disk, from the first effect to the end: files are as before or as after, never half.

Each act of the operating system that changes or syncs a name is a point; a run that nobody kills says how many
there are, so that none is forgotten when the code changes.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from countersign.adapters import LiveCall
from countersign.adapters.files import FilesAdapter
from countersign.adapters.redo import Work
from countersign.adapters.redo_record import COMMITTING
from countersign.errors import JournalError

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


def whole(files: FilesAdapter) -> None:
    session = files.begin("t-1")
    with session.effect(CALL):
        files.write("a", "new a")
        files.remove("b")
    with session.effect(CALL):
        files.write("d/e/f", "new f")
        files.write("d/c", "new c")
    session.prepare("a-1")
    session.commit("a-1")
    session.close()


def committed_and_taken_back(files: FilesAdapter) -> None:
    session = files.begin("t-1")
    with session.effect(CALL):
        files.write("a", "new a")
        files.remove("b")
        files.write("d/e/f", "new f")
        files.write("d/c", "new c")
    session.prepare("a-1")
    session.commit("a-1")
    session.undo()


def prepared_and_undone(files: FilesAdapter) -> None:
    session = files.begin("t-1")
    with session.effect(CALL):
        files.write("a", "new a")
        files.remove("b")
        files.write("d/e/f", "new f")
        files.write("d/c", "new c")
    session.prepare("a-1")
    session.undo()


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


def points(folder: Path, deed: Deed, step: int) -> range:
    root = standing(folder / "survivor")
    return range(1, die(root, deed, None) + 1, step)


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
    for at in points(tmp_path, whole, step):
        root = standing(tmp_path / str(at))
        die(root, whole, at)
        decided = any("committ" in text for text in records(root)) or FilesAdapter(root).landed("a-1")
        for _ in range(2):
            recovered_as_not_redeemed(root)
            assert seen(root) == (NEW if decided else OLD), f"act {at}"
            assert FilesAdapter(root).landed("a-1") is bool(decided), f"act {at}"
        assert left(root) == []
        ends.add(bool(decided))
        shutil.rmtree(root)
    assert ends == {True, False}


@EVERY
@pytest.mark.timeout(300)
def test_killed_anywhere_and_redeemed_the_files_are_as_after_once_it_was_prepared(
    tmp_path: Path, step: int
) -> None:
    ends = set()
    for at in points(tmp_path, whole, step):
        root = standing(tmp_path / str(at))
        die(root, whole, at)
        prepared = was_prepared(root) or FilesAdapter(root).landed("a-1")
        for _ in range(2):
            recovered_as_redeemed(root)
            assert seen(root) == (NEW if prepared else OLD), f"act {at}"
            assert FilesAdapter(root).landed("a-1") is bool(prepared), f"act {at}"
        assert left(root) == []
        ends.add(bool(prepared))
        shutil.rmtree(root)
    assert ends == {True, False}


@EVERY
@pytest.mark.timeout(300)
def test_killed_while_a_commit_is_taken_back_it_is_taken_back_or_stands_whole(
    tmp_path: Path, step: int
) -> None:
    ends = set()
    for at in points(tmp_path, committed_and_taken_back, step):
        root = standing(tmp_path / str(at))
        die(root, committed_and_taken_back, at)
        FilesAdapter(root).begin("t-9").undo()  # whoever comes next finishes what was decided
        FilesAdapter(root).recover("t-1", None)
        landed = FilesAdapter(root).landed("a-1")
        assert seen(root) == (NEW if landed else OLD), f"act {at}"
        assert left(root) == []
        ends.add(landed)
        shutil.rmtree(root)
    assert ends == {True, False}


@EVERY
@pytest.mark.timeout(300)
def test_killed_while_what_was_prepared_is_undone_half_of_it_is_never_finished(
    tmp_path: Path, step: int
) -> None:
    ends = set()
    for at in points(tmp_path, prepared_and_undone, step):
        root = standing(tmp_path / str(at))
        die(root, prepared_and_undone, at)
        recovered_as_redeemed(root)
        assert seen(root) in (OLD, NEW), f"act {at}"
        assert FilesAdapter(root).landed("a-1") is (seen(root) == NEW), f"act {at}"
        ends.add(seen(root) == NEW)
        shutil.rmtree(root)
    assert ends == {True, False}


@EVERY
@pytest.mark.timeout(300)
def test_recovery_itself_may_be_killed_anywhere(tmp_path: Path, step: int) -> None:
    every = points(tmp_path, whole, 1)
    middle = next(at for at in every if half_done(tmp_path / f"try{at}", at))

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


def half_done(folder: Path, at: int) -> bool:
    root = standing(folder)
    die(root, whole, at)
    return seen(root) not in (OLD, NEW)


def records(root: Path) -> list[str]:
    paths = (root / ".countersign" / "sessions").glob("*/record.json")
    return [path.read_text() for path in paths]


def test_who_cannot_finish_what_a_dead_process_decided_does_not_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker goes on after an error, and must find what it could not finish free at the next round."""
    root = standing(tmp_path)
    files = FilesAdapter(root)
    session = files.begin("t-1")
    with session.effect(CALL):
        files.write("a", "new a")
    session.prepare("a-1")
    record = session._work.record()
    assert record is not None
    session._work.write(replace(record, state=COMMITTING))
    session._work.let_go()  # as its process ends

    def in_the_way(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Work, "_apply", in_the_way)
    for _ in range(2):
        with pytest.raises(JournalError, match="Permission denied"):
            files.recover("t-1", "a-1")
    monkeypatch.undo()
    files.begin("t-2").undo()
    assert (files.landed("a-1"), (root / "a").read_text(), left(root)) == (True, "new a", [])
