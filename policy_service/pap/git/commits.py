"""Read the bundle at a commit, by the same rules as a folder.

Names, kinds, counts and sizes are checked before any blob is read. A symbolic link, a submodule, a Git LFS pointer, a
path traversal or a duplicate name is refused by name. Files that a folder ignores (README, LICENSE, hidden files, other
bundles) are ignored here too. Blobs are read unchanged: no line ending conversion, no filter.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from dulwich.errors import ObjectFormatException
from dulwich.objects import parse_tree
from dulwich.objectspec import parse_commit
from dulwich.repo import Repo

from policy_service.pap.folder_reader import (
    FOLDERS,
    MAX_BUNDLE_BYTES,
    MAX_FILE_BYTES,
    MAX_FILES,
    OTHER_BUNDLES,
    belongs_to_bundle,
)
from policy_service.pap.git.objects import (
    BLOB,
    COMMIT,
    MAX_COMMIT_BYTES,
    MAX_TREE_BYTES,
    TREE,
    MissingObjectError,
    ObjectError,
    Objects,
    open_repository,
)
from policy_service.pap.problems import BundleError, Problem, invalid_bundle
from policy_service.pap.source import BundleFiles, CommitInfo, bundle_digest

_FOLDER, _LINK, _SUBMODULE = 0o040000, 0o120000, 0o160000
_FILES: Final = frozenset({0o100644, 0o100755, 0o100664})
_LFS: Final = b"version https://git-lfs.github.com/spec/"
_STEP: Final = re.compile(r"([~^])(\d{0,6})")
_STEPS: Final = re.compile(r"(?s)(.*?)((?:[~^]\d{0,6})*)\Z")
_FUNNY: Final = frozenset({"", ".", "..", ".git"})


@dataclass(frozen=True, slots=True)
class CommitHeader:
    """The header of a commit. Git verifies only ``tree`` and ``parents``; the rest is its author's claim."""

    name: str
    tree: str
    parents: tuple[str, ...]
    written: CommitInfo


@dataclass(frozen=True, slots=True)
class _Entry:
    """One line of a tree, under its name within the bundle."""

    name: str
    mode: int
    sha: str


def read_revision(repository: Path, revision: str, subfolder: str = "") -> BundleFiles:
    """The bundle of a local repository at a revision: a commit, a branch, a tag, ``HEAD~1``.

    Raises:
        BundleError: there is no such repository, revision or folder, or it contains a file that does not belong.
    """
    with open_repository(repository) as repo:
        commit = _revision(repo, repository, revision)
        return read_bundle_files(Objects(repo), commit, subfolder, f"{repository}@{revision}")


def _revision(repo: Repo, repository: Path, revision: str) -> str:
    """A commit's name. ``~N`` and ``^N`` are parsed here, because dulwich does not know them."""
    base, steps = _STEPS.match(revision).groups()  # type: ignore[union-attr]  # it matches anything
    try:
        if not base:
            raise KeyError(revision)
        name = bytes(parse_commit(repo, base.encode()).id).decode()
        for kind, count in _STEP.findall(steps):
            name = _back(Objects(repo), name, kind, int(count or 1))
    except (KeyError, IndexError, ValueError, AssertionError, OSError, ObjectError) as error:
        why = f"there is no commit {revision!r}; write a commit, a branch or a tag of this repository"
        raise invalid_bundle(str(repository), why) from error
    return name


def _back(objects: Objects, name: str, kind: str, count: int) -> str:
    """``~N``: N first parents back; ``^N``: the Nth parent, where 0 is the commit itself."""
    if kind == "^":
        return ([name, *load_commit(objects, name).parents])[count]
    for _ in range(count):
        name = load_commit(objects, name).parents[0]
    return name


def read_bundle_files(objects: Objects, commit: str, subfolder: str, origin: str) -> BundleFiles:
    """The bundle at a commit of a repository.

    Raises:
        BundleError: it contains a file that does not belong, or objects are missing or damaged.
    """
    try:
        found = load_commit(objects, commit)
        top = _folder(objects, found.tree, subfolder)
        entries = _wanted(objects, top)
        _require_bounded(objects, entries, subfolder)
    except ObjectError as error:
        raise invalid_bundle(f"commit {commit}", str(error)) from error
    files, problems = _read(objects, entries)
    if problems:
        raise BundleError(problems)
    return BundleFiles(files, bundle_digest(files), commit, origin, written=found.written)


def load_commit(objects: Objects, name: str) -> CommitHeader:
    """Parse a commit's header, leniently: its encoding is unknown.

    Raises:
        ObjectError: it is missing, too large, damaged or not a commit.
    """
    raw = objects.read(name, COMMIT, MAX_COMMIT_BYTES)
    head, _, message = raw.partition(b"\n\n")
    tree, parents, author = "", [], b""
    for line in head.split(b"\n"):
        key, _, value = line.partition(b" ")
        if key == b"tree" and not tree:
            tree = value.decode("ascii", "replace")
        elif key == b"parent":
            parents.append(value.decode("ascii", "replace"))
        elif key == b"author" and not author:
            author = value
    if not tree:
        raise ObjectError(f"the commit {name} names no tree")
    who, at = _who_and_when(author)
    return CommitHeader(name, tree, tuple(parents), CommitInfo(who, message.decode("utf-8", "replace"), at))


def _who_and_when(author: bytes) -> tuple[str, datetime | None]:
    who, _, rest = author.rpartition(b"> ")
    seconds = rest.partition(b" ")[0]
    try:
        at = datetime.fromtimestamp(int(seconds), UTC)
    except (ValueError, OverflowError, OSError):
        at = None
    return (who + b">" if who else author).decode("utf-8", "replace"), at


def _folder(objects: Objects, tree: str, subfolder: str) -> str:
    for part in filter(None, subfolder.split("/")):
        found = [entry for entry in _entries(objects, tree, "") if entry.name == part]
        if not found or found[0].mode != _FOLDER:
            raise invalid_bundle(subfolder, "there is no such folder in this commit; see policies_subfolder")
        tree = found[0].sha
    return tree


def _wanted(objects: Objects, top: str) -> list[_Entry]:
    """The entries that belong to the bundle.

    Raises:
        BundleError: an entry is not allowed there.
    """
    entries, problems = [], []
    for entry in _in_sight(objects, top):
        try:
            _require_known_kind(entry)
            if belongs_to_bundle(entry.name, is_link=entry.mode == _LINK, is_folder=entry.mode == _FOLDER):
                entries.append(entry)
        except ValueError as error:
            problems.append(Problem(entry.name, None, str(error)))
    if problems:
        raise BundleError(problems)
    return entries


def _in_sight(objects: Objects, top: str) -> Iterator[_Entry]:
    """The entries at the top and in the known folders; hidden ones are skipped."""
    for entry in _entries(objects, top, ""):
        if entry.name.startswith(".") or entry.name in OTHER_BUNDLES:
            continue
        if entry.name in FOLDERS and entry.mode == _FOLDER:
            inner = _entries(objects, entry.sha, f"{entry.name}/")
            yield from (one for one in inner if not one.name.rpartition("/")[2].startswith("."))
        else:
            yield entry


def _entries(objects: Objects, tree: str, place: str) -> list[_Entry]:
    """The lines of one tree, by name.

    Raises:
        BundleError: a name is unsafe or occurs twice.
        ObjectError: the tree cannot be read.
    """
    raw, found = objects.read(tree, TREE, MAX_TREE_BYTES), {}
    try:
        lines = list(parse_tree(raw, len(tree) // 2))
    except (ValueError, ObjectFormatException):
        raise ObjectError(f"the tree {tree} is damaged") from None
    for raw_name, mode, sha in lines:
        name = _name(raw_name, place)
        if name in found:
            raise invalid_bundle(place + name, "this name occurs twice in its folder")
        found[name] = _Entry(place + name, mode, sha.decode())
    return [found[name] for name in sorted(found)]


def _name(raw: bytes, place: str) -> str:
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        shown = place + raw.decode("utf-8", "backslashreplace")
        raise invalid_bundle(shown, "this name is not UTF-8; rename the file") from None
    if name.lower() in _FUNNY or "/" in name or "\\" in name or not name.isprintable():
        raise invalid_bundle(f"{place}{name!r}", "an unsafe name; git itself writes no such tree")
    return name


def _require_known_kind(entry: _Entry) -> None:
    if entry.mode == _SUBMODULE:
        raise ValueError(
            "a submodule is another repository and is not followed; put the files themselves here"
        )
    if entry.mode not in _FILES | {_FOLDER, _LINK}:
        raise ValueError(f"an unknown kind of entry (mode {entry.mode:o}); commit it as an ordinary file")


def _require_bounded(objects: Objects, entries: list[_Entry], subfolder: str) -> None:
    """Refuse too many or too large files by their headers, before any is read."""
    if len(entries) > MAX_FILES:
        raise invalid_bundle(subfolder or "/", f"more than {MAX_FILES} files; split it")
    problems, total = [], 0
    for entry in entries:
        kind, size = objects.size(entry.sha)
        total += size
        if kind != BLOB or size > MAX_FILE_BYTES:
            what = f"larger than {MAX_FILE_BYTES} bytes; split it" if kind == BLOB else "this is not a file"
            problems.append(Problem(entry.name, None, what))
    if not problems and total > MAX_BUNDLE_BYTES:
        problems = [Problem(subfolder or "/", None, f"more than {MAX_BUNDLE_BYTES} bytes; split it")]
    if problems:
        raise BundleError(problems)


def _read(objects: Objects, entries: list[_Entry]) -> tuple[dict[str, bytes], list[Problem]]:
    files, problems = {}, []
    for entry in entries:
        try:
            files[entry.name] = objects.read(entry.sha, BLOB, MAX_FILE_BYTES)
        except ObjectError as error:
            problems.append(Problem(entry.name, None, str(error)))
            continue
        if files[entry.name].startswith(_LFS):
            problems.append(
                Problem(entry.name, None, "a Git LFS pointer instead of the file; commit the file itself")
            )
    return files, problems


MAX_COMMITS: Final = 200_000


def is_descendant(objects: Objects, head: str, accepted: str) -> bool:
    """Whether ``accepted`` is ``head`` or one of its ancestors.

    Raises:
        ObjectError: the history is damaged or longer than MAX_COMMITS.
    """
    seen, waiting = {head}, deque([head])
    while waiting:
        name = waiting.popleft()
        if name == accepted:
            return True
        try:
            parents = load_commit(objects, name).parents
        except MissingObjectError:
            if name == head:
                raise
            continue  # a shallow repository: unknown ancestors do not count
        waiting.extend(parent for parent in parents if parent not in seen)
        seen.update(parents)
        if len(seen) > MAX_COMMITS:
            raise ObjectError(f"{accepted} is not among the last {MAX_COMMITS} commits of {head}")
    return False
