"""Which git commit a bundle's bytes are, when they are exactly one's.

Rules kept here: the bytes that were read are compared with the blobs of HEAD, one by one; a changed, added or
missing file makes it a mere folder, `dir-` and the digest's start. Nothing of the repository runs: no hooks,
no filters, no file system monitor.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from policy_service.pap.files import is_bundle_file

_TIMEOUT_SECONDS: Final = 10.0
# git's two object formats, told by the length of a name
_HASHES: Final = {
    40: hashlib.sha1,
    64: hashlib.sha256,
}


def commit_of(folder: Path, files: Mapping[str, bytes], digest: str) -> str:
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
