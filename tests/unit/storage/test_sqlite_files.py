"""The files of an embedded database: its process lock and its backups."""

import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from policy_service.errors import StartError
from policy_service.storage.sqlite import ProcessLock, backup_to, lock_path
from tests.conventions.repository import ROOT

HOLD = """
import sys
from pathlib import Path
from typing import Any
from policy_service.storage.sqlite import ProcessLock
lock = ProcessLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return lock_path(tmp_path / "data" / "countersign.db")


def test_a_second_process_is_refused_until_the_first_has_ended_however_it_ends(path: Path) -> None:
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, path], cwd=ROOT, env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(StartError, match=rf"pid {child.pid} \(policy-service serve\)") as caught:
            ProcessLock(path).acquire()
        assert str(path) in str(caught.value)
    finally:
        child.kill()
        child.communicate()
    with ProcessLock(path):
        assert str(os.getpid()) in path.read_text()
        with pytest.raises(StartError, match=r"in use .* or use another folder"):
            ProcessLock(path).acquire()


def test_a_released_lock_can_be_taken_again(path: Path) -> None:
    for _ in range(2):
        lock = ProcessLock(path).acquire()
        lock.release()
        lock.release()
    assert path.read_text() == "", "no stale pid to wonder about"


def test_a_stale_pid_in_the_file_is_not_a_lock(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text("pid 1 (policy-service serve)\n" * 5)
    with ProcessLock(path, "policy-service agent enroll"):
        assert path.read_text() == f"pid {os.getpid()} (policy-service agent enroll)\n"


def test_the_lock_file_is_in_the_database_folder_with_mode_0600(path: Path) -> None:
    before = os.umask(0)
    try:
        with ProcessLock(path):
            assert path.name == "countersign.db.lock"
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    finally:
        os.umask(before)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "countersign.db"
    with closing(sqlite3.connect(path)) as made:
        made.executescript("CREATE TABLE secrets (word TEXT); INSERT INTO secrets VALUES ('sesame')")
    return path


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    (tmp_path / "backups").mkdir()
    return tmp_path / "backups" / "taken.db"


def require_sound(backup: Path) -> None:
    with closing(sqlite3.connect(backup)) as there:
        assert there.execute("SELECT word FROM secrets").fetchall() == [("sesame",)]
    assert backup.lstat().st_mode == stat.S_IFREG | 0o600
    assert sorted(one.name for one in backup.parent.iterdir()) == [backup.name]


@pytest.mark.parametrize("plant", [Path.symlink_to, Path.hardlink_to], ids=["a link", "a second name"])
def test_a_planted_link_leads_nowhere(database: Path, backup: Path, tmp_path: Path, plant: Any) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    plant(backup.with_name("taken.db.part"), target)
    backup_to(database, backup)
    assert target.read_text() == "mine"
    require_sound(backup)


def test_a_file_others_may_write_is_not_kept(database: Path, backup: Path, tmp_path: Path) -> None:
    planted = backup.with_name("taken.db.part")
    planted.write_text("planted")
    planted.chmod(0o666)
    with planted.open("rb") as held:
        backup_to(database, backup)
        assert held.read() == b"planted", "who held it open reads nothing of the copy"
    require_sound(backup)


def test_an_unremovable_partial_copy_is_refused(database: Path, backup: Path) -> None:
    backup.with_name("taken.db.part").mkdir()
    with pytest.raises(StartError, match="cannot be written"):
        backup_to(database, backup)
    assert not backup.exists()
