"""Sources of a bundle's bytes: a folder, or a commit of a repository.

Bytes and digest are taken together, and the source is not read again, so the checked bytes are the active bytes. The
digest covers names and bytes, nothing else.

A folder is read in a separate process with a time limit, so that a hanging mount blocks no request (folder_reader.py
selects the files). While a process that cannot be killed remains, no second one is started. The files of a folder are
compared with the blobs of HEAD; a changed, added or missing file makes its commit `dir-` plus the start of the digest.
Nothing of the repository runs: no hooks, no filters, no file system monitor.
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
READ_S: Final = 10.0  # for a whole folder; 2,000 files take 0.1 s from a disk
_KILLED_S: Final = 1.0


class FolderReader:
    """Reads one folder, repeatedly."""

    def __init__(self, folder: Path, *, seconds: float = READ_S) -> None:
        self._folder, self._seconds = folder, seconds
        self._left: subprocess.Popen[bytes] | None = None  # killed, and waiting in the kernel

    def read(self) -> dict[str, bytes]:
        """Every file of the bundle by name, in order. Blocks; belongs in a thread, one call at a time.

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
        # No `with`: leaving it would wait for a process that the kernel does not end.
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
    """Read this folder once.

    Raises:
        BundleError: as `FolderReader.read`.
    """
    return FolderReader(folder).read()


def bundle_digest(files: Mapping[str, bytes]) -> str:
    """SHA-256 over names and bytes."""
    contents = {name: hashlib.sha256(raw).hexdigest() for name, raw in files.items()}
    return hashlib.sha256(DIGEST_LABEL + canonicalize(contents)).hexdigest()


_TIMEOUT_SECONDS: Final = 10.0
# git's two object formats, by the length of a name
_HASHES: Final = {
    40: hashlib.sha1,
    64: hashlib.sha256,
}


def find_commit(folder: Path, files: Mapping[str, bytes], digest: str) -> str:
    """The commit's name, or `dir-<digest>` when the bytes are not exactly those of HEAD."""
    head = _git(folder, "rev-parse", "--verify", "HEAD^{commit}")
    tree = _git(folder, "ls-tree", "-r", "-z", head.strip()) if head else None
    if head and tree and _blobs(tree) == _named(files, len(head.strip())):
        return head.strip()
    return f"dir-{digest[:12]}"


def _blobs(tree: str) -> dict[str, str]:
    """Blob names by file, for files that belong to a bundle."""
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
        return None  # no git, no repository, or one owned by another user: treated as a plain folder
    return done.stdout


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """Author, message and time in a commit. They are unverified unless the commit is signed."""

    author: str
    message: str
    at: datetime | None


@dataclass(frozen=True, slots=True)
class BundleFiles:
    """The bytes of one bundle, by file name.

    ``commit`` is their commit, or `dir-<digest>` when they are not a commit's. ``origin`` names their place for people.
    ``folder`` holds the databases that facts.toml names by path; a bundle read from a repository has none.
    """

    files: Mapping[str, bytes]
    digest: str
    commit: str
    origin: str
    folder: Path | None = None
    written: CommitInfo | None = None


@dataclass(frozen=True, slots=True)
class AcceptedCommits:
    """The active commit as all replicas know it, and a commit an operator allowed to follow it."""

    accepted: str | None = None
    allowed: str | None = None


class BundleSource(Protocol):
    """A place that holds bundles, one of them the newest. Its methods block and belong in a thread."""

    identity: str | None
    """Equal on all replicas that share the source; None for a source that is not shared and has no history."""
    accepted_commits: AcceptedCommits
    """Set by the caller from the database; a source without an identity ignores it."""
    head: str | None
    """The newest commit at the last read, active or not."""

    @property
    def origin(self) -> str:
        """Where it is, for people."""

    def read(self) -> BundleFiles:
        """The newest bytes, if they may follow the accepted commit.

        Raises:
            BundleError: they may not, cannot be read, or contain a file that does not belong.
        """

    def read_accepted(self) -> BundleFiles | None:
        """The bytes of the accepted commit; None without one.

        Raises:
            BundleError: they can no longer be read.
        """

    def written(self, commits: Collection[str]) -> Mapping[str, CommitInfo]:
        """Author, message and time of these commits, for those that can still be read."""

    def keep(self, commit: str) -> None:
        """Keep the objects of this commit on this host: it becomes active now."""


class FolderSource:
    """A folder on this host."""

    identity: str | None = None

    def __init__(self, folder: Path) -> None:
        self._folder, self._reader = folder, FolderReader(folder)
        self.accepted_commits = AcceptedCommits()
        self.head: str | None = None

    @property
    def origin(self) -> str:
        return str(self._folder)

    def read(self) -> BundleFiles:
        """The folder's current files, and their commit if they match HEAD exactly.

        Raises:
            BundleError: the folder is missing or contains a file that does not belong.
        """
        files = self._reader.read()
        digest = bundle_digest(files)
        self.head = commit = find_commit(self._folder, files, digest)
        return BundleFiles(files, digest, commit, self.origin, self._folder)

    def read_accepted(self) -> BundleFiles | None:
        """None: a folder has no history."""
        return None

    def written(self, commits: Collection[str]) -> Mapping[str, CommitInfo]:
        """Empty: a folder has no commits."""
        return {}

    def keep(self, commit: str) -> None:
        """No effect for a folder."""
