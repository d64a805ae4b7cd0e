"""Where a bundle's bytes come from: a folder, or a commit of a repository.

Rules kept here: whoever prepares a bundle gets names and bytes and never reads the source again, so that what was
checked is what is in force; the bytes and their digest are taken together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from policy_service.pap.commit import commit_of
from policy_service.pap.files import FolderReader, bundle_digest


@dataclass(frozen=True, slots=True)
class Written:
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
    written: Written | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """What all replicas know of a source with a history: the commit in force, and one an operator let follow it."""

    accepted: str | None = None
    allowed: str | None = None


class BundleSource(Protocol):
    """Something that holds bundles, one of them the newest. What it does blocks, and belongs in a thread."""

    identity: str | None
    """Which source it is to other replicas; None for one that no other shares, which has no history to keep to."""
    standing: Standing
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

    def written(self, commits: Collection[str]) -> Mapping[str, Written]:
        """What commits say of themselves, those of them that can still be read."""

    def keep(self, commit: str) -> None:
        """What was read at this commit comes into force now; this host keeps it."""


class FolderSource:
    """A folder, as it lies there."""

    identity: str | None = None

    def __init__(self, folder: Path) -> None:
        self._folder, self._reader = folder, FolderReader(folder)
        self.standing = Standing()
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
        self.head = commit = commit_of(self._folder, files, digest)
        return BundleFiles(files, digest, commit, self.origin, self._folder)

    def read_accepted(self) -> BundleFiles | None:
        """Nothing: a folder has no history."""
        return None

    def written(self, commits: Collection[str]) -> Mapping[str, Written]:
        """Nothing: whose work a folder is, nobody knows."""
        return {}

    def keep(self, commit: str) -> None:
        """Nothing to keep."""
