"""The files of this repository, as git sees them: tracked or new, never ignored ones."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

from tests.counterparts import require

ROOT = Path(__file__).resolve().parents[2]


@cache
def files() -> tuple[Path, ...]:
    git = require("git", shutil.which("git"), "apt-get install git")
    listed = subprocess.run(
        [git, "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    paths = (ROOT / name for name in sorted(set(listed.split("\0"))) if name)
    return tuple(path for path in paths if path.is_file())


def texts() -> list[tuple[str, str]]:
    """(path from the root, text) of every file that is UTF-8 text."""
    found = []
    for path in files():
        raw = path.read_bytes()
        if b"\0" in raw:
            continue
        try:
            found.append((path.relative_to(ROOT).as_posix(), raw.decode()))
        except UnicodeDecodeError:
            continue
    return found
