"""Reading a bundle from a commit by the rules of a folder: a foreign entry is refused before it is read."""

import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest

from policy_service.channels.admin.policy_cli.bundles import load_bundle_files
from policy_service.pap.bundle import build_bundle
from policy_service.pap.folder_reader import MAX_BUNDLE_BYTES, MAX_FILE_BYTES, MAX_FILES
from policy_service.pap.git.commits import is_descendant, load_commit, read_revision
from policy_service.pap.git.objects import BLOB, ObjectError, Objects, open_repository
from policy_service.pap.problems import BundleError
from policy_service.pap.source import FolderSource
from tests.fakes.bundles import PERMIT_ALL, BundleFolder
from tests.fakes.repository import Repository, entry


def made_in(path: Path, folder: str = ".", object_format: str = "sha1") -> Repository:
    """A repository with a committed bundle in one of its folders."""
    made = Repository(path, object_format=object_format)
    BundleFolder(path / folder).policies(PERMIT_ALL)
    made.commit()
    return made


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_in(tmp_path_factory.mktemp("template") / "rules").path


@pytest.fixture
def repository(template: Path, tmp_path: Path) -> Repository:
    shutil.copytree(template, tmp_path / "rules")
    return Repository(tmp_path / "rules")


def refusal(repository: Repository, revision: str = "main", subfolder: str = "") -> str:
    with pytest.raises(BundleError) as refused:
        build_bundle(read_revision(repository.path, revision, subfolder))
    return str(refused.value)


def replace_object(repository: Repository, sha: str, raw: bytes) -> None:
    """Replace the loose object of this name."""
    file = repository.path / ".git/objects" / sha[:2] / sha[2:]
    file.chmod(0o644)
    file.write_bytes(zlib.compress(raw))


def test_commit_equals_bundle_of_its_folder(repository: Repository) -> None:
    folder, commit = FolderSource(repository.path).read(), read_revision(repository.path, "main")
    assert (commit.files, commit.digest, commit.commit) == (folder.files, folder.digest, repository.head())
    assert commit.folder is None
    build_bundle(commit).close()


def test_unrelated_or_uncommitted_files_are_not_read(repository: Repository) -> None:
    before = read_revision(repository.path, "main").digest
    for name in "README.md LICENSE .github/workflows/ci.yml .hidden examples/a/x.bin tools/.x".split():
        repository.write(name, "unrelated")
    repository.commit()
    repository.write("rules.cedar", "nonsense").write("more.cedar", "nonsense")
    assert read_revision(repository.path, "main").digest == before


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
def test_packed_objects_read_like_loose_ones(tmp_path: Path, object_format: str) -> None:
    repository = made_in(tmp_path, object_format=object_format)
    for n in range(5):
        repository.write("rules.cedar", PERMIT_ALL + "// a line\n" * 200 * n).commit()
    before = read_revision(repository.path, "HEAD~1").files
    repository.git("repack", "-q", "-a", "-d", "-f", "--depth=50")
    repository.git("prune-packed")
    assert read_revision(repository.path, "HEAD~1").files == before


def test_revision_is_a_branch_a_tag_or_a_commit(repository: Repository, tmp_path: Path) -> None:
    repository.git("-c", "tag.gpgSign=false", "tag", "-a", "-m", "first", "v1")
    head = repository.head()
    for revision in ("main", "HEAD", "v1", "refs/heads/main", "HEAD~0", head[:12]):
        assert read_revision(repository.path, revision).commit == head
    for revision in ("gone", "", "-x", "v1^{blob}", "0" * 40):
        assert f"there is no commit {revision!r}" in refusal(repository, revision)
    with pytest.raises(BundleError, match="this is no git repository"):
        read_revision(tmp_path, "main")


def test_bundle_may_be_in_a_subfolder(tmp_path: Path) -> None:
    made = made_in(tmp_path / "mono", "teams/desk")
    made.write("build.bin", "something else").commit()
    found = read_revision(made.path, "main", "teams/desk")
    assert found.digest == FolderSource(made.path / "teams/desk").read().digest
    for gone in ("teams/other", "build.bin", "teams/../teams"):
        assert "there is no such folder in this commit" in refusal(made, "main", gone)


ODD = [
    *(("120000", name, f"{name}: a symbolic link is not followed") for name in ("more.cedar", "facts")),
    ("160000", "library2", "library2: a submodule is another repository"),
    *(("40000", name, f"{name!r}: an unsafe name") for name in ("..", ".GIT")),
    *(("100644", name, f"{name!r}: an unsafe name") for name in ("..", "a/b.cedar")),
    ("100644", "a\x1b.cedar", "an unsafe name"),
    ("100644", "rules.cedr", "rules.cedr: unknown kind of file"),
    ("40000", "more", "more: unknown folder"),
    ("100000", "more.cedar", "more.cedar: an unknown kind of entry (mode 100000)"),
    ("100644", b"r\xe9gles.cedar", r"r\xe9gles.cedar: this name is not UTF-8"),
    ("100644", "rules.cedar", "rules.cedar: this name occurs twice"),
]
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 12\n"
WRONG_FILES = [
    ("more.cedar", POINTER, "more.cedar: a Git LFS pointer"),
    ("rules.cedar", PERMIT_ALL + '\n@id("x") permit (principal,\n', "rules.cedar:3"),
    ("rules.cedar", b'@id("r\xe9gle") permit (principal, action, resource);', "rules.cedar"),
]


def test_foreign_entry_is_refused_by_name(repository: Repository) -> None:
    sound = repository.head()
    blob = repository.blob(b"// nothing is forbidden\n")
    for mode, name, message in ODD:
        sha = {"40000": repository.head(f"{sound}:tools"), "160000": sound}.get(mode, blob)
        repository.commit_with(entry(mode, name, sha))
        assert message in refusal(repository)
        repository.rewind(sound)
    for file, content, message in WRONG_FILES:
        repository.write(file, content).commit()
        assert message in refusal(repository)
        repository.rewind(sound)


def test_large_file_is_refused_unread(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    repository.write("large.cedar", "//" + "x" * 5_000_000).commit()
    read: list[int] = []
    raw = Objects._raw

    def noting(self: Objects, name: str, size: int) -> bytes:
        read.append(size)
        return raw(self, name, size)

    monkeypatch.setattr(Objects, "_raw", noting)
    assert f"large.cedar: larger than {MAX_FILE_BYTES} bytes" in refusal(repository)
    repository.git("repack", "-q", "-a", "-d")
    assert f"large.cedar: larger than {MAX_FILE_BYTES} bytes" in refusal(repository)
    assert max(read) < MAX_FILE_BYTES


def test_file_one_byte_over_the_limit_is_refused(repository: Repository) -> None:
    most = b"//" + b"x" * (MAX_FILE_BYTES - 3) + b"\n"
    repository.write("large.cedar", most).commit()
    read_revision(repository.path, "main")
    repository.write("large.cedar", most + b"\n").commit()
    assert "large.cedar: larger than" in refusal(repository)


def test_counts_and_sizes_are_checked_before_reading(repository: Repository) -> None:
    head, blob, large = repository.head(), repository.blob(b"{}"), repository.blob(b" " * MAX_FILE_BYTES)
    tools = repository.tree(*(entry("100644", f"t{n:05}.json", blob) for n in range(MAX_FILES + 1)))
    repository.commit_tree(repository.tree(entry("40000", "tools", tools)), head)
    assert f"more than {MAX_FILES} files" in refusal(repository)
    many = range(MAX_BUNDLE_BYTES // MAX_FILE_BYTES + 1)
    repository.commit_tree(repository.tree(*(entry("100644", f"t{n:02}.cedar", large) for n in many)), head)
    assert f"more than {MAX_BUNDLE_BYTES} bytes" in refusal(repository)
    repository.rewind(head)
    lines = [f'@id("p{n}") permit (principal, action, resource);\n' for n in range(10_000)]
    for part in (0, 5_000):
        repository.write(f"many{part}.cedar", "".join(lines[part : part + 5_000]))
    repository.commit()
    assert "more than 10000 policies" in refusal(repository), "with the one that is there already"


def test_commit_that_is_not_utf8_is_read(repository: Repository) -> None:
    message = "règle nouvelle\n".encode("latin1")
    commit = ("commit", "-q", "--allow-empty", "-F", "-")
    repository.git("-c", "i18n.commitEncoding=latin1", *commit, given=message)
    assert read_revision(repository.path, "main").commit == repository.head()
    repo = open_repository(repository.path)
    assert load_commit(Objects(repo), repository.head()).written.message == "r�gle nouvelle\n"
    repo.close()


def test_object_not_matching_its_name_is_refused(repository: Repository) -> None:
    sha = repository.head("HEAD:rules.cedar")
    other = b'@id("all") permit (principal, action, resource) ;'
    replace_object(repository, sha, b"blob %d\0" % len(other) + other)
    assert "do not match its name" in refusal(repository)
    replace_object(repository, sha, b"blob 10\0" + b" " * 10_000_000)
    assert "repository is damaged" in refusal(repository)
    small = repository.blob(b"small")
    replace_object(repository, small, b"blob 5\0" + b"\0" * 10_000_000)
    repo = open_repository(repository.path)
    with pytest.raises(ObjectError, match="damaged"):
        Objects(repo).read(small, BLOB, 100)
    repo.close()


def test_descent_follows_parents_and_not_dates(repository: Repository) -> None:
    first = repository.head()
    repository.git("commit", "-q", "--allow-empty", "-m", "long ago", "--date", "2001-01-01T00:00:00Z")
    main = repository.head()
    repository.git("checkout", "-q", "-b", "side", first)
    side = repository.commit("side")
    repository.git("checkout", "-q", "main")
    repository.git("merge", "-q", "--no-ff", "-m", "merged", "side")
    repo = open_repository(repository.path)
    head = repository.head()
    pairs = [(head, first), (head, side), (first, first), (first, main), (side, main)]
    assert [is_descendant(Objects(repo), *pair) for pair in pairs] == [True, True, True, False, False]
    repo.close()


# -- how an author names a commit ------------------------------------------------------------------------------------


def test_authors_use_revisions(repository: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = repository.head()
    repository.write("rules.cedar", "// nothing yet\n").commit()
    named = load_bundle_files(f"{repository.path}@HEAD~1")
    assert (named.commit, named.files["rules.cedar"]) == (before, PERMIT_ALL.encode())
    repository.git("clone", "-q", "--bare", str(repository.path), str(tmp_path / "bare.git"))
    monkeypatch.chdir(repository.path)
    for name in ("@main", ".@main", ".", f"{tmp_path / 'bare.git'}@main"):
        assert load_bundle_files(name).commit == repository.head()
    with pytest.raises(BundleError, match="no git repository contains this folder"):
        load_bundle_files(f"{tmp_path}@main")


def test_removed_folder_is_found_in_its_repository(tmp_path: Path) -> None:
    made = made_in(tmp_path / "mono", "teams/desk")
    made.git("rm", "-r", "-q", "teams")
    made.commit()
    assert load_bundle_files(f"{made.path / 'teams/desk'}@HEAD~1").files["rules.cedar"] == PERMIT_ALL.encode()
    with pytest.raises(BundleError, match="no such folder in this commit"):
        load_bundle_files(f"{made.path / 'teams/desk'}@HEAD")
