"""The files of a bundle folder, and its digest."""

import os
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from policy_service.pap import folder_reader
from policy_service.pap.folder_reader import MAX_FILE_BYTES, is_bundle_file
from policy_service.pap.problems import BundleError, HeadError
from policy_service.pap.source import FolderReader, bundle_digest, read_files


def put(folder: Path, name: str, raw: bytes = b"x") -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(raw)


PARTS = "a.cedar cases/refund.yaml facts.toml facts/x.json groups.toml meters.toml tools/pay.json".split()
IGNORED = (
    "README.md LICENSE notes.txt tools/README.md .gitignore .git/config tools/.pay.json.swp facts/db.sqlite "
    "facts/db.sqlite-wal facts/x.db examples/airline/air.cedar library/refunds.cedar"
).split()


def test_bundle_files_are_read_and_others_ignored(tmp_path: Path) -> None:
    for name in PARTS + IGNORED:
        put(tmp_path, name)
    assert sorted(read_files(tmp_path)) == PARTS
    assert all(is_bundle_file(name) for name in PARTS)
    assert not any(is_bundle_file(name) for name in IGNORED)


STRAY = "a.ceder a.cedar.bak a.cedar~ a.json facts.json groups.yaml tools/pay.yaml facts/x.csv x/a.cedar"


@pytest.mark.parametrize("name", [*STRAY.split(), "tools/more/pay.json"])
def test_misnamed_rule_file_is_a_problem(tmp_path: Path, name: str) -> None:
    put(tmp_path, "a.cedar")
    put(tmp_path, name)
    with pytest.raises(BundleError, match="unknown"):
        read_files(tmp_path)


def test_links_are_not_followed(tmp_path: Path) -> None:
    put(tmp_path, "outside/secret.cedar")
    for name, target in {"a.cedar": "outside/secret.cedar", "tools": "outside"}.items():
        folder = tmp_path / f"bundle-{name}"
        folder.mkdir()
        (folder / name).symlink_to(tmp_path / target)
        with pytest.raises(BundleError, match="symbolic link"):
            read_files(folder)


def test_sizes_are_bounded(tmp_path: Path) -> None:
    put(tmp_path, "a.cedar", b"x" * MAX_FILE_BYTES)
    read_files(tmp_path)
    put(tmp_path, "a.cedar", b"x" * (MAX_FILE_BYTES + 1))
    with pytest.raises(BundleError, match="larger than"):
        read_files(tmp_path)


def test_missing_folder_explains_how_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="COUNTERSIGN_BUNDLE_DIR"):
        read_files(tmp_path / "gone")


def test_digest_covers_names_and_bytes() -> None:
    base = bundle_digest({"a.cedar": b"x", "b.cedar": b"y"})
    assert (base, len(base)) == (bundle_digest({"b.cedar": b"y", "a.cedar": b"x"}), 64)
    others = [{"a.cedar": b"x"}, {"a.cedar": b"y", "b.cedar": b"x"}, {"a.cedar": b"x", "c.cedar": b"y"}, {}]
    assert base not in {bundle_digest(files) for files in others}


def fifo(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


def device(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))


@pytest.mark.parametrize("make", [fifo, a_socket, device])
def test_only_regular_files_are_read(tmp_path: Path, make: Callable[[Path], None]) -> None:
    put(tmp_path, "a.cedar")
    for name in ("b.cedar", "tools/x.json", "facts/db.sqlite", "README.md"):
        odd = tmp_path / name
        odd.parent.mkdir(exist_ok=True)
        try:
            make(odd)
        except PermissionError:
            pytest.skip("this user may not make a device")
        with pytest.raises(BundleError, match=f"{name}: not a regular file"):
            read_files(tmp_path)
        odd.unlink()


def test_file_replaced_by_a_fifo_does_not_block(tmp_path: Path) -> None:
    fifo(tmp_path / "a.cedar")
    with pytest.raises(ValueError, match="not a regular file"):
        folder_reader._read(str(tmp_path / "a.cedar"))


def test_file_replaced_by_a_link_is_not_followed(tmp_path: Path) -> None:
    put(tmp_path, "secret")
    (tmp_path / "a.cedar").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic link"):
        folder_reader._read(str(tmp_path / "a.cedar"))


def test_sparse_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    put(tmp_path, "a.cedar")
    os.truncate(tmp_path / "a.cedar", 1 << 40)
    with pytest.raises(BundleError, match="larger than"):
        read_files(tmp_path)


def test_bundle_is_read_up_to_the_limit(tmp_path: Path) -> None:
    for n in range(20):
        put(tmp_path, f"a{n}.cedar", b"x" * MAX_FILE_BYTES)
    with pytest.raises(BundleError, match="split it"):
        read_files(tmp_path)


def test_hanging_folder_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "a.cedar")
    reader = FolderReader(tmp_path, seconds=0.5)
    with monkeypatch.context() as hanging:
        (tmp_path / "hangs.py").write_text("import time\ntime.sleep(600)\n")
        hanging.setattr(folder_reader, "__file__", str(tmp_path / "hangs.py"))
        began = time.monotonic()
        with pytest.raises(HeadError, match=r"longer than 0\.5 s") as given_up:
            reader.read()
        assert time.monotonic() - began < 5
    assert given_up.value.why == "unreachable"
    (tmp_path / "hangs.py").unlink()
    assert FolderReader(tmp_path).read() == {"a.cedar": b"x"}


def test_no_second_process_while_one_cannot_be_killed(tmp_path: Path) -> None:
    put(tmp_path, "a.cedar")
    reader = FolderReader(tmp_path)
    with subprocess.Popen(["sleep", "600"]) as waits:
        reader._left = waits
        with pytest.raises(HeadError):
            reader.read()
        waits.kill()
        waits.wait()
        assert reader.read() == {"a.cedar": b"x"}
