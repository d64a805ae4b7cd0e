"""A commit's blobs by the rules of a folder: what does not belong is refused by name, before it is read."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from policy_service.channels.operator.author.naming import bundle_named
from policy_service.pap.bundle import prepare_bundle
from policy_service.pap.files import MAX_BUNDLE_BYTES, MAX_FILE_BYTES, MAX_FILES
from policy_service.pap.git.commits import commit_at, read_commit
from policy_service.pap.git.history import descends
from policy_service.pap.git.objects import BLOB, ObjectError, Objects, open_repository
from policy_service.pap.problems import BundleError
from policy_service.pap.source import FolderSource
from tests.fakes.bundles import PERMIT_ALL, BundleFolder
from tests.fakes.repository import Repository, entry


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return made_in(tmp_path / "rules", "sha1")


def made_in(path: Path, object_format: str) -> Repository:
    made = Repository(path, object_format=object_format)
    BundleFolder(made.path).policies(PERMIT_ALL)
    made.commit()
    return made


def refusal(repository: Repository, revision: str = "main", subfolder: str = "") -> str:
    with pytest.raises(BundleError) as refused:
        prepare_bundle(read_commit(repository.path, revision, subfolder))
    return str(refused.value)


def test_a_commit_is_the_same_bundle_as_its_folder(repository: Repository) -> None:
    folder, commit = FolderSource(repository.path).read(), read_commit(repository.path, "main")
    assert (commit.files, commit.digest, commit.commit) == (folder.files, folder.digest, repository.head())
    assert commit.folder is None
    prepare_bundle(commit).close()


def test_what_lies_beside_a_bundle_is_ignored_as_in_a_folder(repository: Repository) -> None:
    before = read_commit(repository.path, "main").digest
    for name in "README.md LICENSE .github/workflows/ci.yml .hidden examples/a/x.bin tools/.x".split():
        repository.write(name, "beside")
    repository.commit()
    assert read_commit(repository.path, "main").digest == before


def test_what_is_not_committed_is_not_read(repository: Repository) -> None:
    before = read_commit(repository.path, "main").digest
    repository.write("rules.cedar", "nonsense").write("more.cedar", "nonsense")
    assert read_commit(repository.path, "main").digest == before


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
def test_objects_are_read_from_packs_as_from_loose_files(tmp_path: Path, object_format: str) -> None:
    repository = made_in(tmp_path, object_format)
    for n in range(5):
        repository.write("rules.cedar", PERMIT_ALL + "// a line\n" * 200 * n).commit()
    before = read_commit(repository.path, "HEAD~1").files
    repository.git("repack", "-q", "-a", "-d", "-f", "--depth=50")
    repository.git("prune-packed")
    assert read_commit(repository.path, "HEAD~1").files == before


@pytest.mark.parametrize("revision", ["main", "HEAD", "v1", "refs/heads/main", "HEAD~0"])
def test_a_revision_is_a_branch_a_tag_or_a_commit(repository: Repository, revision: str) -> None:
    repository.git("-c", "tag.gpgSign=false", "tag", "-a", "-m", "first", "v1")
    assert read_commit(repository.path, revision).commit == repository.head()
    assert read_commit(repository.path, repository.head()[:12]).commit == repository.head()


@pytest.mark.parametrize("revision", ["gone", "", "-x", "v1^{blob}", "0" * 40])
def test_a_revision_that_is_not_there_is_told(repository: Repository, revision: str) -> None:
    assert f"there is no commit {revision!r}" in refusal(repository, revision)


def test_a_bundle_may_lie_in_a_subfolder(tmp_path: Path) -> None:
    made = Repository(tmp_path / "mono")
    BundleFolder(made.path / "teams/desk").policies(PERMIT_ALL)
    made.write("build.bin", "something else").commit()
    found = read_commit(made.path, "main", "teams/desk")
    assert found.digest == FolderSource(made.path / "teams/desk").read().digest
    assert "there is no such folder in this commit" in refusal(made, "main", "teams/other")
    assert "there is no such folder in this commit" in refusal(made, "main", "build.bin")
    assert "there is no such folder in this commit" in refusal(made, "main", "teams/../teams")


def test_no_repository_is_told(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="this is no git repository"):
        read_commit(tmp_path, "main")


ODD = {
    "a symbolic link": ("120000", "more.cedar", "more.cedar: a symbolic link is not followed"),
    "a link for a folder": ("120000", "facts", "facts: a symbolic link is not followed"),
    "a submodule": ("160000", "library2", "library2: a submodule is another repository"),
    "a name that leads up": ("100644", "..", "'..': a name that leads elsewhere"),
    "a folder that leads up": ("40000", "..", "'..': a name that leads elsewhere"),
    "the repository itself": ("40000", ".GIT", "'.GIT': a name that leads elsewhere"),
    "no name of this place": ("100644", "a/b.cedar", "'a/b.cedar': a name that leads elsewhere"),
    "an invisible name": ("100644", "a\x1b.cedar", "a name that leads elsewhere"),
    "an unknown kind of file": ("100644", "rules.cedr", "rules.cedr: unknown kind of file"),
    "an unknown folder": ("40000", "more", "more: unknown folder"),
    "an unknown kind of entry": (
        "100000",
        "more.cedar",
        "more.cedar: an unknown kind of entry (mode 100000)",
    ),
    "a name that is not UTF-8": ("100644", b"r\xe9gles.cedar", r"r\xe9gles.cedar: this name is not UTF-8"),
    "a name that stands twice": ("100644", "rules.cedar", "rules.cedar: this name stands twice"),
}


@pytest.mark.parametrize(("mode", "name", "told"), ODD.values(), ids=ODD.keys())
def test_what_does_not_belong_is_refused_by_name(
    repository: Repository, mode: str, name: str | bytes, told: str
) -> None:
    sha = {"40000": repository.head("HEAD:tools"), "160000": repository.head()}.get(mode)
    repository.commit_with(entry(mode, name, sha or repository.blob(b"// nothing is forbidden\n")))
    assert told in refusal(repository)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 12\n"
WRONG_FILES = {
    "a pointer to LFS": ("more.cedar", POINTER, "more.cedar: a pointer to Git LFS"),
    "a syntax error": ("rules.cedar", PERMIT_ALL + '\n@id("x") permit (principal,\n', "rules.cedar:3"),
    "not UTF-8": ("rules.cedar", b'@id("r\xe9gle") permit (principal, action, resource);', "rules.cedar"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content", "told"), WRONG_FILES.values(), ids=WRONG_FILES)
def test_a_file_that_is_wrong_is_refused_by_name(
    repository: Repository, name: str, content: str | bytes, told: str
) -> None:
    repository.write(name, content).commit()
    assert told in refusal(repository)


def test_a_file_of_five_megabytes_is_refused_unread(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_one_byte_more_than_a_file_may_have_is_too_much(repository: Repository) -> None:
    repository.write("large.cedar", b"//" + b"x" * (MAX_FILE_BYTES - 3) + b"\n").commit()
    read_commit(repository.path, "main")
    repository.write("large.cedar", b"//" + b"x" * (MAX_FILE_BYTES - 2) + b"\n").commit()
    assert "large.cedar: larger than" in refusal(repository)


def test_files_are_counted_and_added_up_before_they_are_read(repository: Repository) -> None:
    blob = repository.blob(b"{}")
    tools = repository.tree(*(entry("100644", f"t{n:05}.json", blob) for n in range(MAX_FILES + 1)))
    repository.commit_tree(repository.tree(entry("40000", "tools", tools)), repository.head())
    assert f"more than {MAX_FILES} files" in refusal(repository)
    large = repository.blob(b" " * MAX_FILE_BYTES)
    many = MAX_BUNDLE_BYTES // MAX_FILE_BYTES + 1
    repository.commit_tree(
        repository.tree(*(entry("100644", f"t{n:02}.cedar", large) for n in range(many))), repository.head()
    )
    assert f"more than {MAX_BUNDLE_BYTES} bytes" in refusal(repository)


def test_a_hundred_thousand_policies_are_refused_in_a_sentence(repository: Repository) -> None:
    lines = [f'@id("p{n}") permit (principal, action, resource);\n' for n in range(100_000)]
    repository.write("many.cedar", "".join(lines)).commit()
    assert "many.cedar: larger than" in refusal(repository)
    (repository.path / "many.cedar").unlink()
    for n in range(0, 100_000, 10_000):
        repository.write(f"many{n:06}.cedar", "".join(lines[n : n + 10_000]))
    repository.commit()
    assert "more than 10000 policies" in refusal(repository)


def test_a_commit_that_is_not_utf8_is_read_all_the_same(repository: Repository) -> None:
    repository.git("-c", "i18n.commitEncoding=latin1", "commit", "-q", "--allow-empty", "-F", "-",
                   given="règle nouvelle\n".encode("latin1"))  # fmt: skip
    assert read_commit(repository.path, "main").commit == repository.head()
    repo = open_repository(repository.path)
    assert commit_at(Objects(repo), repository.head()).message == "r�gle nouvelle\n"
    repo.close()


def test_an_object_that_is_not_what_its_name_says_is_refused(repository: Repository) -> None:
    sha = repository.head("HEAD:rules.cedar")
    file = repository.path / ".git/objects" / sha[:2] / sha[2:]
    other = b'@id("all") permit (principal, action, resource) ;'
    file.chmod(0o644)
    file.write_bytes(zlib.compress(b"blob %d\0" % len(other) + other))
    assert "is not what the name says" in refusal(repository).replace("are not", "is not")
    file.write_bytes(zlib.compress(b"blob 10\0" + b" " * 10_000_000))
    assert "repository is damaged" in refusal(repository)


def test_what_a_loose_object_unpacks_to_is_bounded(tmp_path: Path) -> None:
    made = Repository(tmp_path / "rules")
    sha = made.blob(b"small")
    file = made.path / ".git/objects" / sha[:2] / sha[2:]
    file.chmod(0o644)
    file.write_bytes(zlib.compress(b"blob 5\0" + b"\0" * 50_000_000))
    repo = open_repository(made.path)
    with pytest.raises(ObjectError, match="damaged"):
        Objects(repo).read(sha, BLOB, 100)
    repo.close()


def test_descent_is_by_parents_and_not_by_dates(repository: Repository) -> None:
    first = repository.head()
    repository.git("commit", "-q", "--allow-empty", "-m", "long ago", "--date", "2001-01-01T00:00:00Z")
    repository.git("checkout", "-q", "-b", "side", first)
    side = repository.commit("beside")
    repository.git("checkout", "-q", "main")
    main = repository.head()
    repository.git("merge", "-q", "--no-ff", "-m", "merged", "side")
    repo = open_repository(repository.path)
    objects = Objects(repo)
    assert descends(objects, repository.head(), first)
    assert descends(objects, repository.head(), side)
    assert descends(objects, first, first)
    assert not descends(objects, first, main)
    assert not descends(objects, side, main)
    repo.close()


# -- how an author names a commit ------------------------------------------------------------------------------------


def test_an_author_names_a_folder_at_a_revision(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = repository.head()
    repository.write("rules.cedar", "// nothing yet\n").commit()
    named = bundle_named(f"{repository.path}@HEAD~1")
    assert (named.commit, named.files["rules.cedar"]) == (before, PERMIT_ALL.encode())
    monkeypatch.chdir(repository.path)
    assert bundle_named("@main").commit == repository.head()
    assert bundle_named(".@main").commit == repository.head()
    assert bundle_named(".").commit == repository.head()


def test_a_folder_within_a_repository_is_found_there_even_when_it_is_gone(tmp_path: Path) -> None:
    made = Repository(tmp_path / "mono")
    BundleFolder(made.path / "teams/desk").policies(PERMIT_ALL)
    made.commit()
    made.git("rm", "-r", "-q", "teams")
    made.commit()
    assert bundle_named(f"{made.path / 'teams/desk'}@HEAD~1").files["rules.cedar"] == PERMIT_ALL.encode()
    with pytest.raises(BundleError, match="no such folder in this commit"):
        bundle_named(f"{made.path / 'teams/desk'}@HEAD")


def test_a_bare_repository_is_named_the_same_way(repository: Repository, tmp_path: Path) -> None:
    repository.git("clone", "-q", "--bare", str(repository.path), str(tmp_path / "bare.git"))
    assert bundle_named(f"{tmp_path / 'bare.git'}@main").commit == repository.head()


def test_a_revision_of_no_repository_is_told(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no git repository is here or above, so there is no 'main' of it"):
        bundle_named(f"{tmp_path}@main")
