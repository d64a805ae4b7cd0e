"""The epoch mark: written atomically, and a database behind it is refused."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from policy_service.errors import StartError
from policy_service.tokens.epoch import Mark, read_mark, require_not_behind, write_mark
from tests.conventions.repository import ROOT

WRITE = """
import sys
from pathlib import Path
from policy_service.tokens.epoch import Mark, write_mark
for n in range(*map(int, sys.argv[2:])):
    write_mark(Path(sys.argv[1]), Mark(1, n))
    print(n, flush=True)
"""


def writing(folder: Path, *numbers: int) -> subprocess.Popen[str]:
    """Another process that writes these marks, and says so after each."""
    command = [sys.executable, "-c", WRITE, str(folder), *map(str, numbers)]
    env = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)


def test_a_mark_comes_back_as_it_was_written(tmp_path: Path) -> None:
    assert read_mark(tmp_path) is None
    for mark in (Mark(1, 0), Mark(1, 2**53), Mark(7, 3)):
        write_mark(tmp_path, mark)
        assert read_mark(tmp_path) == mark
    assert [path.name for path in tmp_path.iterdir()] == ["epoch.json"], "nothing is left lying about"


@pytest.mark.parametrize("later", [Mark(1, 9), Mark(2, 0)], ids=str)
def test_a_later_mark_of_another_process_is_kept(tmp_path: Path, later: Mark) -> None:
    write_mark(tmp_path, later)
    write_mark(tmp_path, Mark(1, 8))
    assert read_mark(tmp_path) == later


def test_processes_that_share_a_folder_keep_the_highest_mark(tmp_path: Path) -> None:
    both = [writing(tmp_path, first, 200, 2) for first in range(2)]
    assert [one.communicate()[0].split()[-1] for one in both] == ["198", "199"]
    assert read_mark(tmp_path) == Mark(1, 199)


def test_a_damaged_mark_is_not_written_over(tmp_path: Path) -> None:
    write_mark(tmp_path, Mark(1, 1))
    (tmp_path / "epoch.json").write_text("{")
    with pytest.raises(OSError, match="damaged"):
        write_mark(tmp_path, Mark(1, 2))


def test_a_mark_is_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_mark(tmp_path, Mark(1, 1))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "epoch.json").stat().st_mode) == 0o600
    (tmp_path / "epoch.json").chmod(0o666)
    with pytest.raises(StartError, match="chmod 600"):
        read_mark(tmp_path)


DAMAGED = ["", "{", "[]", "null", "1", '{"epoch": 1}', '{"epoch": "x", "highest_index": 1}', "\x00"]


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_mark_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "epoch.json").write_text(content)
    (tmp_path / "epoch.json").chmod(0o600)
    with pytest.raises(StartError, match=r"epoch\.json"):
        read_mark(tmp_path)


def test_a_kill_leaves_the_old_mark_or_the_new_one_whole(tmp_path: Path) -> None:
    child = writing(tmp_path, 1, 10**9)
    assert child.stdout is not None
    for _ in range(40):
        child.stdout.readline()
    child.kill()
    marks = [int(line) for line in child.communicate()[0].split("\n")[:-1]]
    mark = read_mark(tmp_path)
    assert mark is not None
    assert mark.highest_index >= max(marks, default=40)


@pytest.mark.parametrize(("highest", "epoch"), [(9, 3), (0, 3), (10, 2), (1000, 2)])
def test_a_database_behind_the_mark_is_refused_with_the_command(highest: int, epoch: int) -> None:
    with pytest.raises(StartError, match="policy-service restored --dry-run") as caught:
        require_not_behind(Mark(3, 10), highest, epoch)
    assert str(highest) in str(caught.value)
    for enough in (10, 11, 1000):
        require_not_behind(Mark(3, 10), enough, 3)


@pytest.mark.parametrize("highest", [0, 10, 1000])
def test_a_mark_of_an_earlier_epoch_is_refused(highest: int) -> None:
    with pytest.raises(StartError, match=r"copy its epoch\.json here"):
        require_not_behind(Mark(3, 10), highest, 4)


def test_a_failed_write_keeps_the_old_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mark(tmp_path, Mark(1, 1))

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr("policy_service.tokens.secret_files.os.fsync", full)
        write_mark(tmp_path, Mark(1, 2))
    assert read_mark(tmp_path) == Mark(1, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["epoch.json"], "no torn file is left"
