"""kill -9 before each act on the disk, from the first effect to the end: files are as before or as after, never half.

Each act of the operating system that changes or syncs a name is a point; an uninterrupted run counts how many
there are, so that none is forgotten when the code changes.
"""

import os
import shutil
import signal
from pathlib import Path

import pytest

from countersign.adapters.files import FilesAdapter
from countersign.adapters.files_session import FilesSession
from tests.unit.sdk.adapters.folder import Deed, sessions, tree
from tests.unit.sdk.adapters.rows import CALL

ACTS = ("rename", "link", "unlink", "fsync", "mkdir", "rmdir", "write", "open")
OLD = {"a": "old a", "b": "old b", "d/c": "old c"}
NEW = {"a": "new a", "d/c": "new c", "d/e/f": "new f"}


def make_folder(folder: Path) -> Path:
    """A root with the old files."""
    root = folder / "root"
    (root / "d").mkdir(parents=True)
    for path, content in OLD.items():
        (root / path).write_text(content)
    FilesAdapter(root).begin("t-0").undo()
    return root


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


def die(root: Path, deed: Deed, at: int | None) -> int:
    """Run it in a process that is killed before its nth act, and answer how many acts there were."""
    counted = root.with_suffix(".count")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            count = _counting(at)
            deed(FilesAdapter(root))
            counted.write_text(str(count[0]))
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    acts = int(counted.read_text()) if counted.exists() else 0
    assert code == (0 if at is None or acts else -signal.SIGKILL)
    return acts


def _counting(at: int | None) -> list[int]:
    count = [0]

    def watched(act):
        def acting(*args, **kwargs):
            count[0] += 1
            if count[0] == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return act(*args, **kwargs)

        return acting

    for name in ACTS:
        setattr(os, name, watched(getattr(os, name)))
    return count


def every(step: int) -> pytest.MarkDecorator:
    """Which acts a process is killed before: each `step`th on every day, each one in `make test-long`."""
    long = pytest.param(1, marks=[pytest.mark.long, pytest.mark.timeout(300)])
    return pytest.mark.parametrize("step", [step, long], ids=["some", "every"])


def killed(folder: Path, deed: Deed, step: int):
    """A root for each act, in which a process was killed before it, and which act that was."""
    for at in range(1, die(make_folder(folder / "survivor"), deed, None) + 1, step):
        root = make_folder(folder / str(at))
        die(root, deed, at)
        yield at, root
        shutil.rmtree(root)


def not_redeemed(files: FilesAdapter) -> None:
    assert files.recover("t-1", None) is None


def redeemed(files: FilesAdapter) -> None:
    session = files.recover("t-1", "a-1")
    if session is not None:
        session.prepare("a-1")
        session.commit("a-1")
        session.close()


def by_another(files: FilesAdapter) -> None:
    files.begin("t-9").undo()  # the next transaction finishes what was decided
    not_redeemed(files)


def is_applied(root: Path, at: int) -> bool:
    """The files are as after, and the attempt has landed, or neither; and nothing is left."""
    landed = FilesAdapter(root).landed("a-1")
    assert (tree(root), sessions(root)) == (NEW if landed else OLD, []), f"act {at}"
    return bool(landed)


@every(5)
@pytest.mark.parametrize("recovers", [not_redeemed, redeemed])
def test_killed_anywhere_files_are_as_before_or_as_after(tmp_path, step: int, recovers: Deed) -> None:
    """Not redeemed: as before, unless the commit was decided. Redeemed: as after, once it was prepared."""
    ends = set()
    for at, root in killed(tmp_path, whole, step):
        records = [path.read_text() for path in root.glob(".countersign/sessions/*/record.json")]
        decided = records if recovers is redeemed else [text for text in records if "committ" in text]
        expected = bool(FilesAdapter(root).landed("a-1")) or decided != []
        for _ in range(2):
            recovers(FilesAdapter(root))
            assert is_applied(root, at) is expected, f"act {at}"
        ends.add(expected)
    assert ends == {True, False}


UNDOS = [(committed_and_taken_back, by_another), (lambda files: prepared(files).undo(), redeemed)]


@every(3)
@pytest.mark.parametrize(("deed", "recovers"), UNDOS)
def test_a_killed_undo_leaves_all_or_nothing(tmp_path, step: int, deed: Deed, recovers: Deed) -> None:
    ends = set()
    for at, root in killed(tmp_path, deed, step):
        recovers(FilesAdapter(root))
        ends.add(is_applied(root, at))
    assert ends == {True, False}


@every(9)
def test_recovery_itself_may_be_killed_anywhere(tmp_path, step: int) -> None:
    middle = next(at for at, root in killed(tmp_path, whole, 3) if tree(root) not in (OLD, NEW))
    root = make_folder(tmp_path / "again")
    die(root, whole, middle)
    acts = die(root, redeemed, None)
    assert acts > 10
    for at in range(1, acts + 1, step):
        root = make_folder(tmp_path / f"twice{at}")
        die(root, whole, middle)
        die(root, redeemed, at)
        redeemed(FilesAdapter(root))
        assert is_applied(root, at), f"act {at} of the recovery"
