"""Somebody else came between a prepared session of files and its end: theirs is not overwritten, what could not be
rolled back is never reported as undone, and blocks only transactions on its files.
"""

import json
import os
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from countersign.adapters.files import FilesAdapter
from countersign.adapters.files_session import FilesSession
from countersign.adapters.redo_log import SessionFolder
from countersign.adapters.redo_record import COMMITTING, UNDOING
from countersign.errors import JournalError, NotStageable
from tests.unit.sdk.adapters.folder import Deed, acted, committed, done, prepared, sessions


def made_a_link(root: Path) -> None:
    (root / "d").rename(root.parent / "was_d")
    (root / "d").symlink_to(root.parent / "outside")


# --------------------------------------------------------------------- a folder became a link before the commit

ACTS: dict[str, Deed] = {
    "a file replaced": lambda files: files.write("d/b", "mine"),
    "a file made": lambda files: files.write("d/new", "mine"),
    "a file removed": lambda files: files.remove("d/b"),
    "folders made": lambda files: files.write("d/e/f/new", "mine"),
    "another one as well": lambda files: (files.write("a", "mine"), files.write("d/b", "mine")),
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS.keys())
def test_a_commit_that_met_a_link_is_rolled_back(files: FilesAdapter, root: Path, act: Deed) -> None:
    session = prepared(files, act)
    made_a_link(root)
    with pytest.raises(NotStageable, match="symbolic link"):
        session.commit("a-1")
    session.undo()
    assert (sessions(root), files.landed("a-1"), (root / "a").read_text()) == ([], False, "old a")
    assert list((root.parent / "outside").iterdir()) == []
    assert (root.parent / "was_d" / "b").read_text() == "old b"
    done(files, lambda files: files.write("other", "theirs"), "t-2")
    assert (root / "other").read_text() == "theirs"


# ------------------------------------------------------------------------- somebody changed it after the commit


def replaced(path: Path) -> None:
    path.with_name("draft").write_text("theirs")
    path.with_name("draft").rename(path)


def made_anew(path: Path) -> None:
    """An operating system gives the number of the file that is gone to the next one."""
    path.unlink()
    path.write_text("theirs")


def changed_in_place(path: Path) -> None:
    before = path.stat().st_mtime_ns
    path.write_text("theirs")
    os.utime(path, ns=(before, before + 1))  # the clock of a file system is coarse


def made_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def seen(path: Path) -> str:
    return "a folder" if path.is_dir() else path.read_text()


@pytest.mark.parametrize("change", [replaced, made_anew, changed_in_place, made_a_folder])
def test_undo_keeps_a_newer_file(files: FilesAdapter, root: Path, change) -> None:
    session = committed(files, lambda files: (files.write("a", "mine"), files.write("d/b", "mine")))
    change(root / "a")
    theirs, recover = seen(root / "a"), FilesAdapter(root).recover
    # A second call does not report it as undone either.
    for undo in (session.undo, session.undo, lambda: recover("t-1", None), lambda: recover("t-1", "a-1")):
        with pytest.raises(JournalError, match="was not undone completely"):
            undo()
    assert (seen(root / "a"), (root / "d" / "b").read_text()) == (theirs, "old b")
    (folder,) = sessions(root)
    assert ((folder / "before" / "0").read_text(), files.landed("a-1")) == ("old a", False)


@pytest.mark.parametrize("act", ["a file replaced", "a file removed"])
@pytest.mark.parametrize("way", [made_a_link, lambda root: shutil.rmtree(root / "d")], ids=["link", "gone"])
def test_before_image_is_kept(files: FilesAdapter, root: Path, act: str, way) -> None:
    session = committed(files, ACTS[act])
    way(root)
    with pytest.raises(JournalError, match="was not undone completely"):
        session.undo()
    (folder,) = sessions(root)
    assert (folder / "before" / "0").read_text() == "old b"
    assert list((root.parent / "outside").iterdir()) == []


NEW: Deed = lambda files: files.write("new", "mine")  # noqa: E731
AFTER = {
    "a file made where one was removed": (
        "a", lambda files: files.remove("a"), lambda path: path.write_text("theirs"), False, "theirs"),
    "a new file that is replaced": ("new", NEW, replaced, True, "theirs"),
    "a new file changed in place": ("new", NEW, changed_in_place, False, "theirs"),
    "a replaced file that is removed": ("a", lambda files: files.write("a", "mine"), Path.unlink, True, "old a"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "act", "change", "undone", "then"), AFTER.values(), ids=AFTER)
def test_later_changes_are_left(files, root: Path, name: str, act, change, undone: bool, then: str) -> None:
    session = committed(files, act)
    change(root / name)
    with nullcontext() if undone else pytest.raises(JournalError, match="was not undone completely"):
        session.undo()
    assert ((root / name).read_text(), sessions(root) == []) == (then, undone)


def test_the_error_names_the_folder_and_what_to_do_and_no_file(files: FilesAdapter, root: Path) -> None:
    """A file name may be a secret. Only the record next to the before-image contains it."""
    session = committed(files, lambda files: (files.write("a", "mine"), files.write("d/b", "mine")))
    replaced(root / "d" / "b")
    with pytest.raises(JournalError) as raised:
        session.undo()
    (folder,) = sessions(root)
    assert str(folder) in str(raised.value) and "d/b" not in str(raised.value)
    assert "before/1" in str(raised.value) and "before/0" not in str(raised.value)
    assert json.loads((folder / "record.json").read_bytes())["ops"][1]["path"] == "d/b"


SETTLED = {
    "by keeping theirs": (lambda kept, path: kept.unlink(), "theirs"),
    "by removing theirs": (lambda kept, path: path.unlink(), "old a"),
    "by moving the old one back": (lambda kept, path: kept.rename(path), "old a"),
    "by linking the old one back": (lambda kept, path: (path.unlink(), path.hardlink_to(kept)), "old a"),
    "by moving the folder away": (lambda kept, path: kept.parents[1].rename(kept.parents[5] / "kept"), "theirs"),
}  # fmt: skip


@pytest.mark.parametrize(("settle", "then"), SETTLED.values(), ids=SETTLED.keys())
def test_what_a_person_settles_is_ended_next(files: FilesAdapter, root: Path, settle, then: str) -> None:
    session = committed(files, lambda files: files.write("a", "mine"))
    replaced(root / "a")
    with pytest.raises(JournalError):
        session.undo()
    (folder,) = sessions(root)
    settle(folder / "before" / "0", root / "a")
    session.undo()  # as its own process, or as recovery
    assert FilesAdapter(root).recover("t-1", None) is None
    assert ((root / "a").read_text(), sessions(root)) == (then, [])
    done(files, lambda files: files.write("a", "another's"), "t-2")


def test_a_record_of_an_earlier_version_knows_files_by_number(files: FilesAdapter, root: Path) -> None:
    session = committed(files, lambda files: files.write("a", "mine"))
    (folder,) = sessions(root)
    record = json.loads((folder / "record.json").read_bytes())
    assert record["ops"][0].pop("modified_ns") > 0
    (folder / "record.json").write_text(json.dumps(record))
    session.undo()
    assert ((root / "a").read_text(), sessions(root)) == ("old a", [])


# ------------------------------------------------------------------------------------------ who has to wait for it


def dies(session: FilesSession, decided: str) -> None:
    """Its process ends once it has decided this."""
    record = session._work.record()
    session._work.write(replace(record, state=decided))
    session._work.let_go()


@pytest.fixture(params=[COMMITTING, UNDOING])
def stuck(request, files: FilesAdapter, root: Path) -> str:
    """What a dead process had decided about `d/b` cannot be done: its folder is a link now."""
    state: str = request.param
    session = prepared(files, lambda files: (files.write("d/b", "mine"), files.write("d/new", "mine")))
    if state == UNDOING:
        session.commit("a-1")
    dies(session, state)
    made_a_link(root)
    return state


def test_transactions_on_other_files_are_not_blocked(files: FilesAdapter, root: Path, stuck: str) -> None:
    done(files, lambda files: (files.read("a"), files.write("other", "theirs"), files.list()), "t-2")
    assert (root / "other").read_text() == "theirs" and len(sessions(root)) == 1


TOUCHING: dict[str, Deed] = {
    "reads one": lambda files: files.exists("d/b"),
    "lists them": lambda files: files.list("d"),
    "replaces one": lambda files: files.write("d/b", "theirs"),
    "makes one": lambda files: files.write("d/new", "theirs"),
    "removes one": lambda files: files.remove("d/b"),
}


@pytest.mark.parametrize("act", TOUCHING.values(), ids=TOUCHING.keys())
@pytest.mark.parametrize("late", [False, True], ids=["before it began", "before it prepared"])
def test_others_on_its_files_are_refused(files: FilesAdapter, root: Path, act: Deed, late: bool) -> None:
    """The way is free again for looking, and the disk is not for finishing."""
    session = prepared(files, lambda files: (files.write("d/b", "mine"), files.write("d/new", "mine")))
    if not late:
        dies(session, COMMITTING)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SessionFolder, "_apply", _disk_full)
        other = acted(files, act, "t-2")
        if late:
            dies(session, COMMITTING)
        else:
            with pytest.raises(JournalError, match="No space left on device"):
                other.verify_isolation()
        with pytest.raises(JournalError, match="could not be finished") as raised:
            other.prepare("a-2")
        assert str(next(one for one in sessions(root) if (one / "record.json").exists())) in str(raised.value)
        other.undo()
    done(files, lambda files: files.write("other", "theirs"), "t-2")
    assert ((root / "d" / "b").read_text(), files.landed("a-1"), sessions(root)) == ("mine", True, [])


def _disk_full(*_: object) -> None:
    raise OSError(28, "No space left on device", "/a/path")


def test_its_own_transaction_is_always_refused(files: FilesAdapter, root: Path, stuck: str) -> None:
    """Else its list would be replaced, and with it what was there before."""
    for act in (
        lambda: done(files, lambda files: files.write("other", "mine")),
        lambda: FilesAdapter(root).recover("t-1", "a-1"),
    ):
        with pytest.raises(JournalError, match=r"could not be finished|was not undone completely"):
            act()
    assert any((folder / "before" / "0").exists() for folder in sessions(root)) is (stuck == UNDOING)


def test_it_is_finished_when_nothing_prevents_it(files: FilesAdapter, root: Path, stuck: str) -> None:
    (root / "d").unlink()
    (root.parent / "was_d").rename(root / "d")
    files.begin("t-2").undo()
    done = stuck == COMMITTING
    changed = (root / "d" / "b").read_text(), (root / "d" / "new").exists()
    assert changed == (("mine", True) if done else ("old b", False))
    assert (files.landed("a-1"), sessions(root)) == (done, [])
