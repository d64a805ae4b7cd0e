"""The files of a bundle folder, read once into memory, and their digest.

Rules kept here: a folder is read in a process of its own (folder_reader.py says what of it), with a limit of time, so
that a mount that hangs keeps nobody waiting; a process that cannot even be killed is the only one. The digest is the
identity of what was read: names and bytes, nothing else.
"""

from __future__ import annotations

import hashlib
import marshal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from countersign.contract import canonicalize
from policy_service.pap import folder_reader
from policy_service.pap.folder_reader import (
    FOLDERS,
    MAX_BUNDLE_BYTES,
    MAX_FILE_BYTES,
    MAX_FILES,
    MUTANTS_FILE,
    OTHER_BUNDLES,
    belongs,
    is_bundle_file,
)
from policy_service.pap.problems import BundleError, HeadError, Problem

__all__ = [
    "FOLDERS",
    "MAX_BUNDLE_BYTES",
    "MAX_FILES",
    "MAX_FILE_BYTES",
    "MUTANTS_FILE",
    "OTHER_BUNDLES",
    "FolderReader",
    "belongs",
    "bundle_digest",
    "is_bundle_file",
    "read_files",
]

LABEL: Final = b"countersign/bundle/v1\n"
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
    return hashlib.sha256(LABEL + canonicalize(contents)).hexdigest()
