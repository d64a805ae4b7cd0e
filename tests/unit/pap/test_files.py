"""Which files are a bundle, and its digest."""

from pathlib import Path

import pytest

from policy_service.pap.files import MAX_FILE_BYTES, bundle_digest, is_bundle_file, read_files
from policy_service.pap.problems import BundleError


def put(folder: Path, name: str, raw: bytes = b"x") -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(raw)


PARTS = [
    "a.cedar",
    "cases/refund.yaml",
    "facts.toml",
    "facts/x.json",
    "groups.toml",
    "meters.toml",
    "tools/pay.json",
]
BESIDE = [
    "README.md", "LICENSE", "notes.txt", "tools/README.md", ".gitignore", ".git/config", "tools/.pay.json.swp",
    "facts/db.sqlite", "facts/db.sqlite-wal", "facts/x.db", "examples/airline/air.cedar", "library/refunds.cedar",
]  # fmt: skip


def test_the_parts_are_read_and_what_lies_beside_them_is_not(tmp_path: Path) -> None:
    for name in PARTS + BESIDE:
        put(tmp_path, name)
    assert sorted(read_files(tmp_path)) == PARTS
    assert all(is_bundle_file(name) for name in PARTS)
    assert not any(is_bundle_file(name) for name in BESIDE)


STRAY = [
    "a.ceder", "a.cedar.bak", "a.cedar~", "a.json", "groups.yaml", "tools/pay.yaml", "facts/x.csv", "policies/a.cedar",
    "tools/more/pay.json", "facts.json",
]  # fmt: skip


@pytest.mark.parametrize("name", STRAY)
def test_a_file_whose_rules_would_be_lost_is_a_problem(tmp_path: Path, name: str) -> None:
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


def test_a_folder_that_is_not_there_says_how_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="COUNTERSIGN_BUNDLE_DIR"):
        read_files(tmp_path / "gone")


def test_the_digest_is_names_and_bytes() -> None:
    base = bundle_digest({"a.cedar": b"x", "b.cedar": b"y"})
    assert base == bundle_digest({"b.cedar": b"y", "a.cedar": b"x"})
    assert len(base) == 64
    others = [{"a.cedar": b"x"}, {"a.cedar": b"y", "b.cedar": b"x"}, {"a.cedar": b"x", "c.cedar": b"y"}, {}]
    assert base not in {bundle_digest(files) for files in others}
