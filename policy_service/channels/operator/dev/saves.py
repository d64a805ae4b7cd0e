"""What was saved: a look at the files every moment, which works on every file system and misses nothing.

A save is told once two looks agree, so that an editor that writes in two steps is not read in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

_EVERY_S = 0.25
Look: TypeAlias = dict[Path, tuple[int, int] | None]
"""When each file was changed and how long it is; None for one that is not there."""


async def saves(folder: Path, files: Callable[[], Iterable[Path]]) -> AsyncIterator[set[Path]]:
    """What was changed, made or deleted since the last time: any file of a bundle's folder, and these files.

    A file that was not looked at before has not been changed since.
    """
    before = _look(folder, files())
    while True:
        await asyncio.sleep(_EVERY_S)
        now = _look(folder, files())
        if now == before or not await _settled(folder, files, now):
            continue
        changed = {path for path in now.keys() & before.keys() if now[path] != before[path]}
        changed |= {path for path in now.keys() ^ before.keys() if path.is_relative_to(folder)}
        before = now
        if changed:
            yield changed


async def _settled(folder: Path, files: Callable[[], Iterable[Path]], now: Look) -> bool:
    await asyncio.sleep(_EVERY_S / 2)
    return _look(folder, files()) == now


def _look(folder: Path, files: Iterable[Path]) -> Look:
    return {path: _stat(path) for path in (*_in_bundle(folder), *files)}


def _stat(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None  # deleted, or between an editor's two steps
    return found.st_mtime_ns, found.st_size


def _in_bundle(folder: Path) -> Iterator[Path]:
    """The files of a bundle's folder and one below, where bundles keep theirs; hidden files are nobody's rules."""
    for path in _entries(folder):
        if path.is_dir():
            yield from (inner for inner in _entries(path) if inner.is_file())
        else:
            yield path


def _entries(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError:
        return []
