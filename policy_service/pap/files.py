"""The files of a bundle folder, read once into memory, and their digest.

Rules kept here: only kinds of files we know, by folder and suffix, so that a rule in a misspelt file is an
error and not silence; no symbolic links, which could show other bytes than git has; sizes are bounded before
reading. The digest is the identity of what was read: names and bytes, nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from countersign.contract import canonicalize
from policy_service.pap.problems import BundleError, Problem

MAX_FILE_BYTES: Final = (
    1_048_576  # a policy file of a mebibyte holds some 4,000 rules; facts beyond it belong in SQL
)
MAX_FILES: Final = 2_000
MAX_BUNDLE_BYTES: Final = 16 * 1_048_576

LABEL: Final = b"countersign/bundle/v1\n"

FOLDERS: Final[Mapping[str, tuple[str, ...]]] = {
    "": (".cedar",),
    "tools": (".json",),
    "facts": (".json",),
    "cases": (".yaml", ".yml"),
}
"""What a bundle is made of: suffixes by folder."""

TOP_FILES: Final = frozenset({"groups.toml", "facts.toml", "meters.toml"})
MUTANTS_FILE: Final = "cases/mutants.toml"
"""Which mutants of the rules no case can notice, and why; `policy-service test --mutate` reads it."""

OTHER_BUNDLES: Final = frozenset({"examples", "library"})
"""Folders that hold bundles of their own; they are not part of this one."""

_TEXT_BESIDE: Final = frozenset({".md", ".txt"})
# data a source asks, not rules: not in the digest
_DATABASES: Final = (
    ".sqlite",
    ".db",
    "-wal",
    "-shm",
    "-journal",
)


def read_files(folder: Path) -> dict[str, bytes]:
    """Every file of the bundle by its name within it, in order.

    Raises:
        BundleError: the folder is missing or holds what does not belong.
    """
    if not folder.is_dir():
        raise BundleError(
            [
                Problem(
                    str(folder),
                    None,
                    "there is no such folder; name a bundle with COUNTERSIGN_BUNDLE_DIR, say a copy of policies/",
                )
            ]
        )
    problems: list[Problem] = []
    files: dict[str, bytes] = {}
    for path in _paths(folder):
        name = path.relative_to(folder).as_posix()
        try:
            if belongs(name, is_link=path.is_symlink(), is_folder=path.is_dir()):
                files[name] = _read(path)
        except (ValueError, OSError) as error:
            problems.append(Problem(name, None, str(error)))
    if len(files) > MAX_FILES or sum(map(len, files.values())) > MAX_BUNDLE_BYTES:
        problems.append(
            Problem(str(folder), None, f"more than {MAX_FILES} files or {MAX_BUNDLE_BYTES} bytes; split it")
        )
    if problems:
        raise BundleError(problems)
    return files


def bundle_digest(files: Mapping[str, bytes]) -> str:
    """SHA-256 over the names and the bytes."""
    contents = {name: hashlib.sha256(raw).hexdigest() for name, raw in files.items()}
    return hashlib.sha256(LABEL + canonicalize(contents)).hexdigest()


def is_bundle_file(name: str) -> bool:
    """Whether a file of this name is read as part of a bundle."""
    place, _, last = name.rpartition("/")
    named = name in TOP_FILES or name == MUTANTS_FILE
    return not last.startswith(".") and (named or Path(last).suffix in FOLDERS.get(place, ()))


def _paths(folder: Path) -> Iterator[Path]:
    """The entries at the top and in the known folders, sorted by name; hidden ones are not ours."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name in OTHER_BUNDLES:
            continue
        if path.name in FOLDERS and path.is_dir() and not path.is_symlink():
            yield from (inner for inner in sorted(path.iterdir()) if not inner.name.startswith("."))
        else:
            yield path


def belongs(name: str, *, is_link: bool = False, is_folder: bool = False) -> bool:
    """Whether what lies under this name within the bundle is part of it; a folder and a repository ask alike.

    Raises:
        ValueError: it may not lie there at all.
    """
    if is_link:
        raise ValueError("a symbolic link is not followed; put the file itself here")
    if is_folder:
        raise ValueError(
            f"unknown folder; known are {', '.join(sorted((FOLDERS.keys() - {''}) | OTHER_BUNDLES))}"
        )
    if is_bundle_file(name):
        return True
    place, _, last = name.rpartition("/")
    if (
        Path(last).suffix in _TEXT_BESIDE
        or last == "LICENSE"
        or (place == "facts" and name.endswith(_DATABASES))
    ):
        return False
    expected = ", ".join(sorted({*FOLDERS[place], *(TOP_FILES if not place else ())}))
    raise ValueError(f"unknown kind of file, so its rules would be lost; known here are {expected}")


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        raw = file.read(MAX_FILE_BYTES + 1)
    if len(raw) > MAX_FILE_BYTES:
        raise ValueError(f"larger than {MAX_FILE_BYTES} bytes; split it")
    return raw
