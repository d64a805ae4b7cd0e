"""A repository of policies made by git itself: tests say what is committed and nothing else."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ENVIRONMENT = {
    **dict.fromkeys(("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"), os.devnull),
    **dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "Maya"),
    **dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "maya@example.com"),
}


def git(folder: Path, *arguments: str, given: bytes = b"") -> str:
    """Run git there; what it said."""
    ambient = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    words, env = ["git", "-C", str(folder), *arguments], {**ambient, **ENVIRONMENT}
    done = subprocess.run(words, input=given, capture_output=True, timeout=60, check=False, env=env)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    return done.stdout.decode("utf-8", "replace").strip()


class Repository:
    """A repository over a folder that exists or is made."""

    def __init__(self, path: Path, *, object_format: str = "sha1") -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        git(path, "init", "-q", "-b", "main", f"--object-format={object_format}")

    def git(self, *arguments: str, given: bytes = b"") -> str:
        """Run git in it."""
        return git(self.path, *arguments, given=given)

    def write(self, name: str, content: str | bytes) -> Repository:
        """Put a file there."""
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return self

    def commit(self, message: str = "a change", *options: str) -> str:
        """Commit all files."""
        self.git("add", "-A", "--force", ".")
        self.git("commit", "-q", "--allow-empty", "-m", message, *options)
        return self.head()

    def head(self, revision: str = "HEAD") -> str:
        """A commit's name."""
        return self.git("rev-parse", revision)

    def rewind(self, commit: str) -> None:
        """What a force push does to a branch."""
        self.git("reset", "-q", "--hard", commit)

    def blob(self, content: bytes) -> str:
        """Put bytes into it."""
        return self.git("hash-object", "-w", "--stdin", given=content)

    def tree(self, *entries: bytes) -> str:
        """A tree, also one that git would not write."""
        return self.git("hash-object", "-w", "-t", "tree", "--literally", "--stdin", given=b"".join(entries))

    def commit_tree(self, tree: str, *parents: str) -> str:
        """A commit of a tree; the branch moves there, the work tree does not."""
        before = [part for parent in parents for part in ("-p", parent)]
        made = self.git("commit-tree", tree, *before, "-m", "by hand")
        self.git("update-ref", "refs/heads/main", made)
        return made

    def commit_with(self, *entries: bytes) -> str:
        """A commit of everything at the head and these entries, however odd."""
        found = []
        for line in self.git("ls-tree", "HEAD").splitlines():
            meta, name = line.split("\t", 1)
            mode, _, sha = meta.split()
            found.append(entry(mode.lstrip("0"), name, sha))
        return self.commit_tree(self.tree(*found, *entries), self.head())


def entry(mode: str, name: str | bytes, sha: str) -> bytes:
    """One line of a tree as its bytes are."""
    raw = name.encode() if isinstance(name, str) else name
    return mode.encode() + b" " + raw + b"\0" + bytes.fromhex(sha)


class Key:
    """A key pair of ssh-keygen's, to sign commits with."""

    def __init__(self, folder: Path, name: str = "maya", kind: str = "ed25519") -> None:
        self.file = folder / name
        self.name = f"{name}@example.com"
        bits = {"rsa": ["-b", "3072"], "ecdsa": ["-b", "384"]}.get(kind, [])
        words = ["ssh-keygen", "-q", "-t", kind, *bits, "-N", "", "-C", self.name, "-f", str(self.file)]
        subprocess.run(words, check=True, timeout=60)

    @property
    def public(self) -> str:
        """Kind and key, as authorized_keys and allowed_signers have them."""
        return " ".join(self.file.with_suffix(".pub").read_text().split()[:2])

    def sign(self, repository: Repository, message: str = "signed") -> str:
        """Commit all files, signed."""
        repository.git("add", "-A", ".")
        options = ["-c", "gpg.format=ssh", "-c", f"user.signingkey={self.file}"]
        repository.git(*options, "commit", "-q", "--allow-empty", "-S", "-m", message)
        return repository.head()
