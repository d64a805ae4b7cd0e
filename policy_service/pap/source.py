"""Where a bundle's bytes come from: a folder, or a commit of a repository.

Rules kept here: the bytes and their digest are taken together, and the source is never read again, so that what was
checked is what is in force. The digest covers names and bytes, nothing else. A folder is read in a process of its own
(folder_reader.py says which files), with a time limit, so that a mount that hangs blocks nobody; while a process that
cannot be killed is left, no second one is started. The bytes of a folder are compared with the blobs of HEAD one by
one; a changed, added or missing file makes its commit `dir-` and the digest's start. Nothing of the repository runs: no
hooks, no filters, no file system monitor.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

from countersign.contract import canonicalize
from policy_service.pap import folder_reader
from policy_service.pap.folder_reader import (
    is_bundle_file,
)
from policy_service.pap.problems import BundleError, HeadError, Problem

DIGEST_LABEL: Final = b"countersign/bundle/v1\n"
READ_S: Final = 10.0  # for a whole folder; 2,000 files take a tenth of a second from a disk
_KILLED_S: Final = 1.0


class FolderReader:
    """Reads one folder, again and again."""

    def __init__(self, folder: Path, *, seconds: float = READ_S) -> None:
        self._folder, self._seconds = folder, seconds
        self._left: subprocess.Popen[bytes] | None = None  # killed, and waits for the kernel

    def read(self) -> dict[str, bytes]:
        """Every file of the bundle by its name within it, in order. Blocks; belongs in a thread, one call at a time.

        Raises:
            HeadError: reading it took too long (`unreachable`).
            BundleError: the folder is missing or holds what does not belong.
        """
        if self._left is not None and self._left.poll() is None:
            raise self._hangs()
        self._left = None
        files, problems = marshal.loads(self._apart())  # noqa: S302  from our own process
        if problems:
            raise BundleError(Problem(name, None, message) for name, message in problems)
        return dict(files)

    def _apart(self) -> bytes:
        # No `with`: its end would wait for a process that the kernel does not let die.
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", folder_reader.__file__, str(self._folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            answer, _ = process.communicate(timeout=self._seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            try:
                process.communicate(timeout=_KILLED_S)
            except subprocess.TimeoutExpired:
                self._left = process
            raise self._hangs() from None
        if process.returncode != 0:
            why = f"the process that read it ended (exit code {process.returncode})"
            raise HeadError(str(self._folder), why, "unreachable")
        return answer

    def _hangs(self) -> HeadError:
        why = f"reading it took longer than {self._seconds:g} s and was given up; see to its mount"
        return HeadError(str(self._folder), why, "unreachable")


def read_files(folder: Path) -> dict[str, bytes]:
    """The files of this folder, once.

    Raises:
        BundleError: as `FolderReader.read`.
    """
    return FolderReader(folder).read()


def bundle_digest(files: Mapping[str, bytes]) -> str:
    """SHA-256 over the names and the bytes."""
    contents = {name: hashlib.sha256(raw).hexdigest() for name, raw in files.items()}
    return hashlib.sha256(DIGEST_LABEL + canonicalize(contents)).hexdigest()


_TIMEOUT_SECONDS: Final = 10.0
# git's two object formats, told by the length of a name
_HASHES: Final = {
    40: hashlib.sha1,
    64: hashlib.sha256,
}


def find_commit(folder: Path, files: Mapping[str, bytes], digest: str) -> str:
    """The commit's name, or `dir-<digest>` for bytes that are not exactly a commit's."""
    head = _git(folder, "rev-parse", "--verify", "HEAD^{commit}")
    tree = _git(folder, "ls-tree", "-r", "-z", head.strip()) if head else None
    if head and tree and _blobs(tree) == _named(files, len(head.strip())):
        return head.strip()
    return f"dir-{digest[:12]}"


def _blobs(tree: str) -> dict[str, str]:
    """Blob names by file, of those files that a bundle is made of."""
    entries = (entry.split("\t", 1) for entry in tree.split("\0") if entry)
    return {name: meta.split()[2] for meta, name in entries if is_bundle_file(name)}


def _named(files: Mapping[str, bytes], length: int) -> dict[str, str]:
    new = _HASHES[length]
    return {name: new(b"blob %d\0" % len(raw) + raw).hexdigest() for name, raw in files.items()}


def _git(folder: Path, *arguments: str) -> str | None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=True,
            env={**environment, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None  # no git, no repository, or one we are not trusted with: then it is a folder
    return done.stdout


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """What a commit says of itself: nobody has checked it, unless it was signed."""

    author: str
    message: str
    at: datetime | None


@dataclass(frozen=True, slots=True)
class BundleFiles:
    """The bytes of one bundle: each file by its name within it.

    ``commit`` names the commit whose bytes they are, or `dir-<digest>` when they are no commit's. ``origin`` is where
    they lie, in words for people. ``folder`` is where databases that facts.toml names by path lie; there is none
    beside the objects of a repository.
    """

    files: Mapping[str, bytes]
    digest: str
    commit: str
    origin: str
    folder: Path | None = None
    written: CommitInfo | None = None


@dataclass(frozen=True, slots=True)
class AcceptedCommits:
    """What all replicas know of a source with a history: the commit in force, and one an operator let follow it."""

    accepted: str | None = None
    allowed: str | None = None


class BundleSource(Protocol):
    """Something that holds bundles, one of them the newest. What it does blocks, and belongs in a thread."""

    identity: str | None
    """Which source it is to other replicas; None for one that no other shares, which has no history to keep to."""
    standing: AcceptedCommits
    """Kept by whoever reads the database; a source without an identity does not look at it."""
    head: str | None
    """The newest commit as the last look found it, in force or not."""

    @property
    def origin(self) -> str:
        """Where it is, in words for people."""

    def read(self) -> BundleFiles:
        """The newest bytes, where they may follow what stands.

        Raises:
            BundleError: they may not, cannot be read, or hold what does not belong.
        """

    def read_accepted(self) -> BundleFiles | None:
        """The bytes that stand, however old; None where nothing stands.

        Raises:
            BundleError: they cannot be read any more.
        """

    def written(self, commits: Collection[str]) -> Mapping[str, CommitInfo]:
        """What commits say of themselves, those of them that can still be read."""

    def keep(self, commit: str) -> None:
        """What was read at this commit comes into force now; this host keeps it."""


class FolderSource:
    """A folder, as it lies there."""

    identity: str | None = None

    def __init__(self, folder: Path) -> None:
        self._folder, self._reader = folder, FolderReader(folder)
        self.standing = AcceptedCommits()
        self.head: str | None = None

    @property
    def origin(self) -> str:
        """The folder."""
        return str(self._folder)

    def read(self) -> BundleFiles:
        """The folder's files now, and the commit they are exactly, if they are one's.

        Raises:
            BundleError: the folder is missing or holds what does not belong.
        """
        files = self._reader.read()
        digest = bundle_digest(files)
        self.head = commit = find_commit(self._folder, files, digest)
        return BundleFiles(files, digest, commit, self.origin, self._folder)

    def read_accepted(self) -> BundleFiles | None:
        """Nothing: a folder has no history."""
        return None

    def written(self, commits: Collection[str]) -> Mapping[str, CommitInfo]:
        """Nothing: whose work a folder is, nobody knows."""
        return {}

    def keep(self, commit: str) -> None:
        """Nothing to keep."""
