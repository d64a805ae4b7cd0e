"""A backup is written into a file of its own making, whatever lies in its place."""

import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from policy_service.errors import StartError
from policy_service.storage.sqlite import copy_to


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
    assert stat.S_IMODE(backup.lstat().st_mode) == 0o600
    assert stat.S_ISREG(backup.lstat().st_mode)
    assert sorted(one.name for one in backup.parent.iterdir()) == [backup.name]


@pytest.mark.parametrize("plant", [Path.symlink_to, Path.hardlink_to], ids=["a link", "a second name"])
def test_a_link_planted_in_its_place_leads_nowhere(
    database: Path, backup: Path, tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    plant(backup.with_name("taken.db.part"), target)
    copy_to(database, backup)
    assert target.read_text() == "mine"
    require_sound(backup)


def test_a_file_others_may_write_is_not_kept(database: Path, backup: Path, tmp_path: Path) -> None:
    planted = backup.with_name("taken.db.part")
    planted.write_text("planted")
    planted.chmod(0o666)
    with planted.open("rb") as held:
        copy_to(database, backup)
        assert held.read() == b"planted", "who held it open reads nothing of the copy"
    require_sound(backup)


def test_what_cannot_be_removed_is_refused_in_a_sentence(database: Path, backup: Path) -> None:
    backup.with_name("taken.db.part").mkdir()
    with pytest.raises(StartError, match="cannot be written"):
        copy_to(database, backup)
    assert not backup.exists()
