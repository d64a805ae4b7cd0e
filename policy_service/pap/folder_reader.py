"""Read a bundle folder. A separate program, so that a read that hangs can be abandoned.

Only known kinds of files, by folder and suffix, are read: a rule in a misnamed file is an error, not ignored. Only
regular files are read, because opening a FIFO or a device may never return. Symbolic links are refused, because their
bytes may differ from git's. Sizes are bounded while reading. It runs at every read of the folder, so it imports only
what loads fast.
"""

from __future__ import annotations

import marshal
import os
import stat
import sys

MAX_FILE_BYTES = 1_048_576  # about 4,000 rules; larger sets of facts belong in SQL
MAX_FILES = 2_000
MAX_BUNDLE_BYTES = 16 * 1_048_576

FOLDERS = {
    "": (".cedar",),
    "tools": (".json",),
    "facts": (".json",),
    "cases": (".yaml", ".yml"),
}
"""Suffixes of a bundle's files, by folder."""

TOP_FILES = frozenset({"groups.toml", "facts.toml", "meters.toml"})
MUTANTS_FILE = "cases/mutants.toml"
"""Mutants of the rules that no case can detect, and why; `policy-service test --mutate` reads it."""

OTHER_BUNDLES = frozenset({"examples", "library"})
"""Folders that hold bundles of their own; they are not part of this one."""

FolderContents = tuple[dict[str, bytes], list[tuple[str, str]]]
"""The files by name, and the problems as file and message."""

_IGNORED_TEXT = frozenset({".md", ".txt"})
# data that fact sources query, not rules: not in the digest
_DATABASES = (".sqlite", ".db", "-wal", "-shm", "-journal")
_NO_SUCH_FOLDER = (
    "there is no such folder; name a bundle with COUNTERSIGN_BUNDLE_DIR, say a copy of policies/"
)
_TOO_MUCH = f"more than {MAX_FILES} files or {MAX_BUNDLE_BYTES} bytes; split it"


def read_folder(folder: str) -> FolderContents:
    """Every file of the bundle, in the order of names, and every problem."""
    files: dict[str, bytes] = {}
    problems: list[tuple[str, str]] = []
    try:
        names = _names(folder)
    except OSError:
        return files, [(folder, _NO_SUCH_FOLDER)]
    size = 0
    for name in names:
        path = os.path.join(folder, name)  # noqa: PTH118  pathlib takes longer to load than this to run
        try:
            mode = os.lstat(path).st_mode
            belonging = belongs_to_bundle(name, is_link=stat.S_ISLNK(mode), is_folder=stat.S_ISDIR(mode))
            if not stat.S_ISREG(mode):
                raise ValueError("not a regular file; only those are read")
            if belonging:
                files[name] = _read(path)
                size += len(files[name])
        except (ValueError, OSError) as error:
            problems.append((name, str(error)))
        if len(files) > MAX_FILES or size > MAX_BUNDLE_BYTES:
            return {}, [*problems, (folder, _TOO_MUCH)]
    return files, problems


def is_bundle_file(name: str) -> bool:
    """Whether a file of this name is part of a bundle."""
    place, _, last = name.rpartition("/")
    named = name in TOP_FILES or name == MUTANTS_FILE
    return not last.startswith(".") and (named or _suffix(last) in FOLDERS.get(place, ()))


def belongs_to_bundle(name: str, *, is_link: bool = False, is_folder: bool = False) -> bool:
    """Whether the entry of this name is part of the bundle. Folders and repositories share this rule.

    Raises:
        ValueError: it is not allowed there.
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
        _suffix(last) in _IGNORED_TEXT
        or last == "LICENSE"
        or (place == "facts" and name.endswith(_DATABASES))
    ):
        return False
    expected = ", ".join(sorted({*FOLDERS[place], *(TOP_FILES if not place else ())}))
    raise ValueError(f"unknown kind of file, so its rules would be lost; known here are {expected}")


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1]  # noqa: PTH122  as above


def _names(folder: str) -> list[str]:
    """The entries at the top and in the known folders, sorted by name; hidden ones are skipped."""
    names: list[str] = []
    for name in _visible(folder):
        path = os.path.join(folder, name)  # noqa: PTH118  as above
        if name in OTHER_BUNDLES:
            continue
        if name in FOLDERS and stat.S_ISDIR(os.lstat(path).st_mode):
            names += [f"{name}/{inner}" for inner in _visible(path)]
        else:
            names.append(name)
    return names


def _visible(folder: str) -> list[str]:
    return sorted(name for name in os.listdir(folder) if not name.startswith("."))  # noqa: PTH208  as above


def _read(path: str) -> bytes:
    # The entry may have been replaced since it was checked: open without blocking, and check the open file again.
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY)
    with open(file, "rb") as opened:  # noqa: PTH123  a descriptor has no path
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise ValueError("not a regular file; only those are read")
        raw = opened.read(MAX_FILE_BYTES + 1)
    if len(raw) > MAX_FILE_BYTES:
        raise ValueError(f"larger than {MAX_FILE_BYTES} bytes; split it")
    return raw


if __name__ == "__main__":
    with open(1, "wb") as answer:
        answer.write(marshal.dumps(read_folder(sys.argv[1])))
