"""A folder that paths cannot leave: each path component is opened relative to its parent, and no link is followed.

Refused with `NotStageable`: absolute paths, `..`, empty and `.` components, the adapter's own folder, paths through a
symbolic link, and anything that is neither a regular file nor a folder. Each access walks the path again, so that a
folder swapped for a link in between is refused as well.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from countersign.errors import NotStageable

PRIVATE: Final = ".countersign"
Parts = tuple[str, ...]

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a named pipe must not block
_ESCAPES: Final = frozenset({errno.ELOOP, errno.ENOTDIR})


def split_path(path: str) -> Parts:
    """The components of a path below the root.

    Raises:
        NotStageable: it is not a path below the root.
    """
    if not isinstance(path, str):
        raise NotStageable(f"a path is text, not {type(path).__name__}")
    steps = tuple(path.split("/"))
    if any(step in {"", ".", ".."} for step in steps) or "\0" in path:
        raise NotStageable(f"{path!r} is not a plain path below the root (no leading '/', no '.', no '..')")
    if steps[0].casefold() == PRIVATE:
        raise NotStageable(f"{path!r} belongs to the adapter itself")
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise NotStageable(f"{path!r} is not valid text") from error
    return steps


class ConfinedFolder:
    """A root folder with confined read access."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def folder(self, parts: Parts) -> Iterator[int | None]:
        """A descriptor of that folder; None if there is none.

        Raises:
            NotStageable: the path leads through a link or a file.
        """
        held = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for step in parts:
                below = _open(step, _FOLDER, held, "/".join(parts))
                os.close(held)
                held = -1
                if below is None:
                    yield None
                    return
                held = below
            yield held
        finally:
            if held >= 0:
                os.close(held)

    def stat(self, parts: Parts) -> os.stat_result | None:
        """The stat result of a regular file or folder; None if nothing is there.

        Raises:
            NotStageable: it is a link, a device, or behind one.
        """
        with self.folder(parts[:-1]) as parent:
            if parent is None:
                return None
            try:
                found = os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)
            except FileNotFoundError:
                return None
            except OSError as error:
                raise _path_error("/".join(parts), error) from error
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            raise NotStageable(f"{'/'.join(parts)!r} is neither a regular file nor a folder")
        return found

    def read(self, parts: Parts) -> bytes | None:
        """The content of that regular file; None if there is none.

        Raises:
            NotStageable: it is not a regular file, or cannot be read.
        """
        path = "/".join(parts)
        with self.folder(parts[:-1]) as parent:
            held = None if parent is None else _open(parts[-1], _FILE, parent, path)
        if held is None:
            return None
        try:
            with os.fdopen(held, "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise NotStageable(f"{path!r} is not a regular file")
                return file.read()
        except OSError as error:
            raise _path_error(path, error) from error

    def names(self, parts: Parts) -> tuple[str, ...] | None:
        """The sorted names in that folder; None if there is none."""
        with self.folder(parts) as held:
            if held is None:
                return None
            names = os.listdir(held)  # noqa: PTH208 - by descriptor, so that no link is followed
        return tuple(sorted(name for name in names if parts or name.casefold() != PRIVATE))


def content_version(content: bytes) -> str:
    """The version of a content: its digest."""
    return hashlib.sha256(content).hexdigest()


def _open(step: str, flags: int, parent: int, path: str) -> int | None:
    try:
        return os.open(step, flags, dir_fd=parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _path_error(path, error) from error


def _path_error(path: str, error: OSError) -> NotStageable:
    if error.errno in _ESCAPES:
        return NotStageable(f"{path!r} leads through a symbolic link or through a file")
    return NotStageable(f"{path!r} cannot be opened: {error.strerror}")
