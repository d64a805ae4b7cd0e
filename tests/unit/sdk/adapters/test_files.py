"""Files as a live resource: what a tool may do, what is refused, and which paths lead nowhere."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from countersign.adapters import LiveCall
from countersign.adapters.files import FilesAdapter
from countersign.adapters.overlay import FilesSession
from countersign.adapters.redo import name_of
from countersign.errors import JournalError, Moved, NotStageable, TransactionBusy

CALL = LiveCall("exam", {}, "e-1")
PRIVATE = ".countersign"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    (folder / "a").write_text("old a")
    (folder / "d").mkdir()
    (folder / "d" / "b").write_text("old b")
    (tmp_path / "secret").write_text("secret")
    return folder


@pytest.fixture
def files(root: Path) -> FilesAdapter:
    return FilesAdapter(root)


def commit(session: FilesSession) -> None:
    session.prepare("a-1")
    session.commit("a-1")


@contextmanager
def working(files: FilesAdapter, *, commits: bool = False) -> Iterator[FilesAdapter]:
    """A transaction of one effect."""
    session = files.begin("t-1")
    try:
        with session.effect(CALL):
            yield files
        if commits:
            commit(session)
            session.close()
    finally:
        session.undo()


def tree(root: Path) -> dict[str, str]:
    """Every file that others see."""
    found = (path for path in root.rglob("*") if path.is_file() and PRIVATE not in path.parts)
    return {str(path.relative_to(root)): path.read_text() for path in found}


OLD = {"a": "old a", "d/b": "old b"}


# ---------------------------------------------------------------------------------------------------- what it does


def test_folders_are_made_for_new_files_and_an_undo_would_not_leave_them(
    files: FilesAdapter, root: Path
) -> None:
    with working(files) as below:
        below.write("new/deep/c", "c")
    assert tree(root) == OLD and not (root / "new").exists()
    with working(files, commits=True) as below:
        below.write("new/deep/c", b"c")
    assert tree(root) == OLD | {"new/deep/c": "c"}


def test_a_commit_that_is_taken_back_removes_the_folders_it_made_unless_somebody_uses_them(
    files: FilesAdapter, root: Path
) -> None:
    session = files.begin("t-1")
    with session.effect(CALL):
        files.write("x/c", "c")
        files.write("y/c", "c")
    commit(session)
    (root / "y" / "theirs").write_text("theirs")
    session.undo()
    assert tree(root) == OLD | {"y/theirs": "theirs"} and not (root / "x").exists()


def test_list_shows_the_transaction_as_it_is(files: FilesAdapter) -> None:
    with working(files) as below:
        below.write("d/new", "")
        below.write("deep/er/x", "")
        below.remove("d/b")
        assert (below.list("d"), below.list(), below.list("deep")) == (("new",), ("a", "d", "deep"), ("er",))
        found = {path: below.exists(path) for path in ("d/new", "d/b", "deep", "d", "none")}
        assert found == {"d/new": True, "d/b": False, "deep": True, "d": True, "none": False}


def test_rename_moves_the_content_and_the_mode(files: FilesAdapter, root: Path) -> None:
    (root / "a").chmod(0o640)
    with working(files, commits=True) as below:
        below.rename("a", "d/b")
        assert not below.exists("a")
    assert tree(root) == {"d/b": "old a"}
    assert stat.S_IMODE((root / "d" / "b").stat().st_mode) == 0o640


def test_a_replaced_file_keeps_its_mode_and_an_undone_one_its_inode(files: FilesAdapter, root: Path) -> None:
    (root / "a").chmod(0o751)
    inode = (root / "a").stat().st_ino
    session = files.begin("t-1")
    with session.effect(CALL):
        files.write("a", "new")
    commit(session)
    assert stat.S_IMODE((root / "a").stat().st_mode) == 0o751
    session.undo()
    assert (root / "a").stat().st_ino == inode and tree(root) == OLD


def test_nothing_is_left_in_the_private_folder_and_it_is_private(files: FilesAdapter, root: Path) -> None:
    with working(files, commits=True) as below:
        below.write("a", "new")
    assert list((root / PRIVATE / "sessions").iterdir()) == []
    assert stat.S_IMODE((root / PRIVATE).stat().st_mode) == 0o700
    with working(files) as below:
        assert PRIVATE not in below.list()


# ------------------------------------------------------------------------------------------------- what it refuses

OUTSIDE = (
    *"/etc/passwd|../secret|d/../../secret|d/..|..|.|./a|d/./b||d//b|d/|//a|a\0b|.countersign/lock".split(
        "|"
    ),
    *".Countersign/lock|link/secret|link|file_link|dangling|d/loop/x|\udcff|pipe".split("|"),
)
ACTS: dict[str, Callable[[FilesAdapter, str], object]] = {
    "read": FilesAdapter.read,
    "write": lambda files, path: files.write(path, "mine"),
    "remove": FilesAdapter.remove,
    "rename from": lambda files, path: files.rename(path, "x"),
    "rename to": lambda files, path: files.rename("a", path),
    "exists": FilesAdapter.exists,
    "list": lambda files, path: files.list(path or "."),
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS.keys())
@pytest.mark.parametrize("path", OUTSIDE)
def test_a_path_that_leaves_the_root_or_is_no_file_is_refused(
    files: FilesAdapter, root: Path, path: str, act: Callable[[FilesAdapter, str], object]
) -> None:
    (root / "link").symlink_to(root.parent)
    (root / "file_link").symlink_to(root.parent / "secret")
    (root / "dangling").symlink_to(root.parent / "made_by_following")
    (root / "d" / "loop").symlink_to("../d")
    os.mkfifo(root / "pipe")
    before = tree(root.parent)
    with pytest.raises(NotStageable), working(files, commits=True) as below:
        act(below, path)
    assert tree(root.parent) == before


def test_our_own_folder_made_a_link_by_somebody_is_refused(files: FilesAdapter, root: Path) -> None:
    (root.parent / "elsewhere").mkdir()
    (root / PRIVATE).symlink_to(root.parent / "elsewhere")
    with pytest.raises(NotStageable, match="not a folder of our own"):
        files.begin("t-1")


NOT_STAGEABLE: dict[str, Callable[[FilesAdapter], object]] = {
    "removing what is not there": lambda files: files.remove("none"),
    "removing it twice": lambda files: (files.remove("a"), files.remove("a")),
    "removing a folder": lambda files: files.remove("d"),
    "renaming what is not there": lambda files: files.rename("none", "x"),
    "renaming a folder": lambda files: files.rename("d", "x"),
    "writing over a folder": lambda files: files.write("d", "x"),
    "writing below a file": lambda files: files.write("a/x", "x"),
    "writing below a new file": lambda files: (files.write("n", "x"), files.write("n/x", "x")),
    "a file over a new folder": lambda files: (files.write("n/x", "x"), files.write("n", "x")),
    "reading below a new file": lambda files: (files.write("n", "x"), files.read("n/x")),
    "reading a folder": lambda files: files.read("d"),
    "listing what is not there": lambda files: files.list("none"),
    "listing a file": lambda files: files.list("a"),
    "a path that is no text": lambda files: files.read(b"a"),  # type: ignore[arg-type]
}
NOT_FOUND: dict[str, Callable[[FilesAdapter], object]] = {
    "reading what is not there": lambda files: files.read("none"),
    "reading what was removed": lambda files: (files.remove("a"), files.read("a")),
}


@pytest.mark.parametrize("what", [*NOT_STAGEABLE, *NOT_FOUND])
def test_what_cannot_be_snapshotted_is_refused_while_the_tool_runs(
    files: FilesAdapter, root: Path, what: str
) -> None:
    error = NotStageable if what in NOT_STAGEABLE else FileNotFoundError
    with pytest.raises(error), working(files, commits=True) as below:
        (NOT_STAGEABLE | NOT_FOUND)[what](below)
    assert tree(root) == OLD


def test_a_file_on_another_file_system_is_refused(
    files: FilesAdapter, monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    real = os.fstat

    def elsewhere(descriptor: int) -> os.stat_result:
        found = list(real(descriptor))
        found[2] += 1
        return os.stat_result(found)

    session = files.begin("t-1")
    monkeypatch.setattr(os, "fstat", elsewhere)
    with pytest.raises(NotStageable, match="another file system"), session.effect(CALL):
        files.write("d/x", "x")
    monkeypatch.undo()
    session.undo()


def test_a_listing_that_was_read_may_not_gain_or_lose_a_name(files: FilesAdapter, root: Path) -> None:
    for number, change in enumerate(((root / "d" / "z").touch, (root / "d" / "z").unlink)):
        session = files.begin(f"t-{number}")
        with session.effect(CALL):
            files.list("d")
        change()
        with pytest.raises(Moved, match="'d/' of 'root' was read at version"):
            session.verify_unmoved()
        session.undo()


def test_what_is_prepared_by_somebody_else_may_not_be_read_or_listed_and_then_prepared(
    files: FilesAdapter, root: Path
) -> None:
    first = files.begin("t-1")
    with first.effect(CALL):
        files.write("d/new", "x")
        files.write("a", "x")
    first.prepare("a-1")
    for act in (lambda: files.read("a"), lambda: files.list("d"), lambda: files.exists("d/new")):
        other = files.begin("t-2")
        with other.effect(CALL):
            act()
        with pytest.raises(Moved, match="transaction t-1, which is prepared"):
            other.prepare("a-2")
        other.undo()
    first.undo()


def test_two_may_each_put_a_file_of_their_own_into_a_folder(files: FilesAdapter, root: Path) -> None:
    sessions = [files.begin(txn) for txn in ("t-1", "t-2")]
    for number, session in enumerate(sessions):
        with session.effect(CALL):
            files.write(f"d/{number}", "mine")
        session.prepare(f"a-{number}")
    for number, session in enumerate(sessions):
        session.commit(f"a-{number}")
        session.close()
    assert tree(root) == OLD | {"d/0": "mine", "d/1": "mine"}


def test_a_living_process_that_has_prepared_is_left_alone(files: FilesAdapter, root: Path) -> None:
    session = files.begin("t-1")
    with session.effect(CALL):
        files.write("a", "new")
    assert FilesAdapter(root).recover("t-1", None) is None  # a rerun's, under way
    session.prepare("a-1")
    with pytest.raises(TransactionBusy):
        FilesAdapter(root).recover("t-1", None)
    session.commit("a-1")
    session.close()
    assert tree(root) == OLD | {"a": "new"}


def test_a_damaged_record_is_told_and_nothing_is_done_from_it(files: FilesAdapter, root: Path) -> None:
    files.begin("t-1").undo()
    folder = root / PRIVATE / "sessions" / f"{name_of('t-1')}.0"
    folder.mkdir()
    (folder / "record.json").write_text('{"txn": "t-1"}')
    with pytest.raises(JournalError, match="damaged"):
        files.recover("t-1", "a-1")
    assert tree(root) == OLD


def test_a_commit_that_fails_half_way_takes_back_what_it_did(
    files: FilesAdapter, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = files.begin("t-1")
    with session.effect(CALL):
        files.write("a", "new a")
        files.write("d/b", "new b")
    session.prepare("a-1")
    real, seen = os.rename, []

    def failing(source: Path, target: str, **where: int) -> None:
        if target == "b" and not seen:
            seen.append((root / "a").read_text())
            raise OSError(28, "No space left on device")
        real(source, target, **where)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(OSError, match="No space"):
        session.commit("a-1")
    assert (seen, tree(root), files.landed("a-1")) == (["new a"], OLD, False)
    session.undo()


def test_a_root_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotStageable, match="is not there"):
        FilesAdapter(tmp_path / "none").begin("t-1")
