"""Files as a live resource: what a tool may do, what is refused, and which paths lead nowhere."""

import os
import stat
from pathlib import Path

import pytest

from countersign.adapters.files import FilesAdapter
from countersign.adapters.redo_log import file_name_for
from countersign.errors import IsolationConflict, JournalError, NotStageable
from tests.unit.sdk.adapters.folder import OLD, PRIVATE, Deed, acted, committed, done, prepared, tree
from tests.unit.sdk.adapters.rows import CALL


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_folders_are_made_for_new_files_and_an_undo_removes_its_own(files: FilesAdapter, root: Path) -> None:
    acted(files, lambda files: files.write("new/deep/c", "c")).undo()
    assert tree(root) == OLD and not (root / "new").exists()
    done(files, lambda files: files.write("new/deep/c", b"c"))
    assert tree(root) == OLD | {"new/deep/c": "c"}
    session = committed(files, lambda files: (files.write("x/c", "c"), files.write("y/c", "c")))
    (root / "y" / "theirs").write_text("theirs")
    session.undo()
    assert tree(root) == OLD | {"new/deep/c": "c", "y/theirs": "theirs"} and not (root / "x").exists()


def test_list_shows_the_transaction_as_it_is(files: FilesAdapter, root: Path) -> None:
    def act(files: FilesAdapter) -> None:
        files.write("d/new", "")
        files.write("deep/er/x", "")
        files.remove("d/b")
        assert (files.list("d"), files.list(), files.list("deep")) == (("new",), ("a", "d", "deep"), ("er",))
        found = {path: files.exists(path) for path in ("d/new", "d/b", "deep", "d", "none")}
        assert found == {"d/new": True, "d/b": False, "deep": True, "d": True, "none": False}

    acted(files, act).undo()


def test_rename_moves_content_and_mode_and_what_is_ours_is_private(files: FilesAdapter, root: Path) -> None:
    (root / "a").chmod(0o640)

    def act(files: FilesAdapter) -> None:
        files.rename("a", "d/b")
        assert not files.exists("a")

    done(files, act)
    assert (tree(root), mode(root / "d" / "b")) == ({"d/b": "old a"}, 0o640)
    assert ([*(root / PRIVATE / "sessions").iterdir()], mode(root / PRIVATE)) == ([], 0o700)


def test_a_replaced_file_keeps_its_mode_and_an_undone_one_its_inode(files: FilesAdapter, root: Path) -> None:
    (root / "a").chmod(0o751)
    inode = (root / "a").stat().st_ino
    session = committed(files, lambda files: files.write("a", "new"))
    assert mode(root / "a") == 0o751
    session.undo()
    assert (root / "a").stat().st_ino == inode and tree(root) == OLD


# ------------------------------------------------------------------------------------------------- what it refuses

OUTSIDE = (
    "/etc/passwd|../secret|d/../../secret|d/..|..|.|./a|d/./b||d//b|d/|//a|a\0b|.countersign/lock"
    "|.Countersign/lock|link/secret|link|file_link|dangling|d/loop/x|\udcff|pipe"
).split("|")
ACTS = {
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
def test_a_path_outside_the_root_is_refused(files: FilesAdapter, root: Path, path: str, act) -> None:
    (root / "link").symlink_to(root.parent)
    (root / "file_link").symlink_to(root.parent / "secret")
    (root / "dangling").symlink_to(root.parent / "made_by_following")
    (root / "d" / "loop").symlink_to("../d")
    os.mkfifo(root / "pipe")
    before = tree(root.parent)
    with pytest.raises(NotStageable):
        done(files, lambda files: act(files, path))
    assert tree(root.parent) == before


NOT_STAGEABLE: dict[str, Deed] = {
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
NOT_FOUND: dict[str, Deed] = {
    "reading what is not there": lambda files: files.read("none"),
    "reading what was removed": lambda files: (files.remove("a"), files.read("a")),
}


@pytest.mark.parametrize("what", [*NOT_STAGEABLE, *NOT_FOUND])
def test_what_cannot_be_snapshotted_is_refused(files: FilesAdapter, root: Path, what: str) -> None:
    with pytest.raises(NotStageable if what in NOT_STAGEABLE else FileNotFoundError):
        done(files, (NOT_STAGEABLE | NOT_FOUND)[what])
    assert tree(root) == OLD


def test_a_root_that_is_missing_or_links_our_folder_is_refused(files: FilesAdapter, root: Path) -> None:
    (root / PRIVATE).symlink_to(root.parent / "outside")
    with pytest.raises(NotStageable, match="not a folder of our own"):
        files.begin("t-1")
    with pytest.raises(NotStageable, match="is missing"):
        FilesAdapter(root / "none").begin("t-1")


def test_another_device_is_refused(files: FilesAdapter, monkeypatch, root: Path) -> None:
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
        session = acted(files, lambda files: files.list("d"), f"t-{number}")
        change()
        with pytest.raises(IsolationConflict, match="'d/' of 'root' was read at version"):
            session.verify_isolation()
        session.undo()


def test_what_another_has_prepared_may_not_be_read_or_listed_and_then_prepared(files: FilesAdapter) -> None:
    first = prepared(files, lambda files: (files.write("d/new", "x"), files.write("a", "x")))
    acts: list[Deed] = [lambda it: it.read("a"), lambda it: it.list("d"), lambda it: it.exists("d/new")]
    for act in acts:
        other = acted(files, act, "t-2")
        with pytest.raises(IsolationConflict, match="transaction t-1, which is prepared"):
            other.prepare("a-2")
        other.undo()
    first.undo()


def test_a_damaged_record_is_reported_and_not_applied(files: FilesAdapter, root: Path) -> None:
    files.begin("t-1").undo()
    folder = root / PRIVATE / "sessions" / f"{file_name_for('t-1')}.0"
    folder.mkdir()
    (folder / "record.json").write_text('{"txn": "t-1"}')
    with pytest.raises(JournalError, match="damaged"):
        files.recover("t-1", "a-1")
    with pytest.raises(JournalError, match="nothing else below this root begins before"):
        files.begin("t-2")  # it is not known which files it concerns, so all transactions wait
    assert tree(root) == OLD
