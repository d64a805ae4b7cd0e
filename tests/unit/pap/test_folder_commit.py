"""A folder has a commit only if its bytes are exactly those of the commit."""

from pathlib import Path
from typing import Any

import pytest

from policy_service.pap.source import bundle_digest, find_commit, read_files
from tests.fakes.repository import Repository, git


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    made = Repository(tmp_path).write("policies/a.cedar", "// rules\n").write("policies/tools/pay.json", "{}")
    made.write("policies/README.md", "read me").commit()
    return tmp_path / "policies"


def commit(folder: Path) -> str:
    files = read_files(folder)
    return find_commit(folder, files, bundle_digest(files))


def write(name: str, text: str) -> Any:
    """A change to a file of the folder."""
    return lambda folder: (folder / name).write_text(text)


def ignored(folder: Path) -> None:
    (folder.parent / ".gitignore").write_text("b.cedar\n")
    (folder / "b.cedar").write_text("// more\n")


def staged(folder: Path) -> None:
    (folder / "a.cedar").write_text("// other\n")
    git(folder, "add", ".")


def unseen(folder: Path) -> None:
    git(folder, "update-index", "--assume-unchanged", "a.cedar")
    (folder / "a.cedar").write_text("// x\n")


CHANGES: dict[str, tuple[Any, bool]] = {
    "nothing": (lambda folder: None, True),
    "a changed rule": (write("a.cedar", "// other\n"), False),
    "an added rule": (write("b.cedar", "// more\n"), False),
    "a removed rule": (lambda folder: (folder / "a.cedar").unlink(), False),
    "an added rule that git ignores": (ignored, False),
    "a changed rule that is staged": (staged, False),
    "a changed rule that git ignores": (unseen, False),
    "the readme": (write("README.md", "read me twice"), True),
    "a file elsewhere in the repository": (write("../other.txt", "x"), True),
}


@pytest.mark.parametrize(("change", "is_unrelated"), CHANGES.values(), ids=CHANGES)
def test_any_change_makes_the_commit_a_dir_digest(repository: Path, change: Any, is_unrelated: bool) -> None:
    change(repository)
    folder = "dir-" + bundle_digest(read_files(repository))[:12]
    assert commit(repository) == (git(repository, "rev-parse", "HEAD") if is_unrelated else folder)


def test_folder_without_a_commit_has_a_dir_digest(tmp_path: Path) -> None:
    (tmp_path / "a.cedar").write_text("// rules\n")
    assert commit(tmp_path).startswith("dir-")
    Repository(tmp_path)
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
