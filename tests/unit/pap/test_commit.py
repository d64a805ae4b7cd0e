"""The commit of a bundle: only for bytes that are exactly a commit's."""

import subprocess
from pathlib import Path

import pytest

from policy_service.pap.commit import commit_of
from policy_service.pap.files import bundle_digest, read_files
from tests.counterparts import require


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    import shutil

    require("git", shutil.which("git"), "apt-get install git")
    git(tmp_path, "init", "--quiet")
    folder = tmp_path / "policies"
    (folder / "tools").mkdir(parents=True)
    (folder / "a.cedar").write_text("// rules\n")
    (folder / "tools/pay.json").write_text("{}")
    (folder / "README.md").write_text("read me")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    return folder


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *identity, "-C", folder, *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def commit(folder: Path) -> str:
    files = read_files(folder)
    return commit_of(folder, files, bundle_digest(files))


def test_a_clean_folder_is_at_its_commit(repository: Path) -> None:
    assert commit(repository) == git(repository, "rev-parse", "HEAD")


CHANGES = {
    "a changed rule": lambda folder: (folder / "a.cedar").write_text("// other\n"),
    "an added rule": lambda folder: (folder / "b.cedar").write_text("// more\n"),
    "a removed rule": lambda folder: (folder / "a.cedar").unlink(),
    "an added rule that git ignores": lambda folder: (
        (folder.parent / ".gitignore").write_text("b.cedar\n"), (folder / "b.cedar").write_text("// more\n")),
    "a changed rule that is staged": lambda folder: (
        (folder / "a.cedar").write_text("// other\n"), git(folder, "add", ".")),
    "a changed rule git was told not to look at": lambda folder: (
        git(folder, "update-index", "--assume-unchanged", "a.cedar"), (folder / "a.cedar").write_text("// x\n")),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_any_change_makes_it_a_mere_folder(repository: Path, change: object) -> None:
    change(repository)  # type: ignore[operator]
    assert commit(repository) == "dir-" + bundle_digest(read_files(repository))[:12]


BESIDE = {
    "the readme": lambda folder: (folder / "README.md").write_text("read me twice"),
    "a file elsewhere in the repository": lambda folder: (folder.parent / "other.txt").write_text("x"),
}


@pytest.mark.parametrize("change", BESIDE.values(), ids=BESIDE)
def test_what_is_no_part_of_the_bundle_may_change(repository: Path, change: object) -> None:
    change(repository)  # type: ignore[operator]
    assert commit(repository) == git(repository, "rev-parse", "HEAD")


def test_a_folder_outside_any_repository_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.cedar").write_text("// rules\n")
    assert commit(tmp_path).startswith("dir-")


def test_a_repository_without_commits_is_a_folder(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "a.cedar").write_text("// rules\n")
    assert commit(tmp_path).startswith("dir-")


def test_hooks_and_monitors_of_the_repository_never_run(repository: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(trap))
    git(repository, "config", "filter.evil.clean", str(trap))
    (tmp_path / ".git/info/attributes").write_text("*.cedar filter=evil\n")
    assert commit(repository) == git(repository, "rev-parse", "HEAD")
    assert not (tmp_path / "sprung").exists()
