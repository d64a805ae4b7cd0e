"""Commit signatures made by git and ssh-keygen: key, namespace, time and signed bytes."""

import base64
import hashlib
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from policy_service.pap.git import signatures
from tests.fakes.repository import Key, Repository

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)


def said(*command: str, given: bytes = b"") -> bytes:
    return subprocess.run(command, input=given, capture_output=True, check=True, timeout=60).stdout


def raw(repository: Repository) -> bytes:
    """The newest commit's bytes."""
    return said("git", "-C", str(repository.path), "cat-file", "commit", "HEAD")


def trusted(folder: Path, *lines: str) -> Path:
    """The allowed_signers file."""
    file = folder / "allowed_signers"
    file.write_text("# who may sign the policies\n\n" + "\n".join(lines) + "\n")
    return file


def who(commit: bytes, file: Path, now: datetime = NOW) -> str:
    return signatures.require_signed(commit, signatures.read_allowed_signers(file), now)


def with_signature(commit: bytes, armoured: bytes) -> bytes:
    head, _, message = commit.partition(b"\n\n")
    return head + b"\ngpgsig " + armoured.strip().replace(b"\n", b"\n ") + b"\n\n" + message


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "rules").write("rules.cedar", "// nothing\n")


KINDS = [("ed25519", "sha1"), ("ecdsa", "sha1"), ("rsa", "sha1"), ("ed25519", "sha256")]


@pytest.mark.parametrize(("kind", "of"), KINDS)
def test_commit_signed_by_git_is_accepted(tmp_path: Path, kind: str, of: str) -> None:
    repository, key = Repository(tmp_path / "rules", object_format=of), Key(tmp_path, kind=kind)
    key.sign(repository, "a message\n\nwith lines\n gpgsig not a header")
    assert who(raw(repository), trusted(tmp_path, f"{key.name} {key.public}")) == key.name


def test_signature_must_match_bytes_and_allowed_signer(repository: Repository, tmp_path: Path) -> None:
    repository.commit()
    with pytest.raises(signatures.SignatureError, match="carries no signature"):
        who(raw(repository), trusted(tmp_path))
    known, other = Key(tmp_path, "known"), Key(tmp_path, "other")
    other.sign(repository, "allow nothing")
    with pytest.raises(signatures.SignatureError) as refused:
        who(raw(repository), trusted(tmp_path, f"{known.name} {known.public}"))
    assert said("ssh-keygen", "-l", "-f", str(other.file)).split()[1].decode() in str(refused.value)
    with pytest.raises(signatures.SignatureError, match="does not match these bytes"):
        who(raw(repository).replace(b"allow nothing", b"allow all"), trusted(tmp_path, f"x {other.public}"))


def test_signature_for_another_namespace_is_refused(repository: Repository, tmp_path: Path) -> None:
    """A second signature is refused too."""
    key = Key(tmp_path)
    file = trusted(tmp_path, f"{key.name} {key.public}")
    repository.commit()
    commit = raw(repository)
    sign = ("ssh-keygen", "-q", "-Y", "sign", "-f", str(key.file), "-n")
    for_git = said(*sign, "git", given=commit)
    assert who(with_signature(commit, for_git), file) == key.name
    with pytest.raises(signatures.SignatureError, match="namespace 'file'"):
        who(with_signature(commit, said(*sign, "file", given=commit)), file)
    with pytest.raises(signatures.SignatureError, match="two signatures"):
        who(with_signature(with_signature(commit, for_git), for_git), file)


NO_SIGNATURES = {
    "of PGP": ("PGP", b"x", "not an SSH one"),
    "no base64": ("SSH", b"???", "damaged"),
    "too short": ("SSH", b"U1NIU0lHAAAAAQAA", "damaged"),
    "of version 2": ("SSH", b"U1NIU0lHAAAAAgAA", "format"),
}


@pytest.mark.parametrize(("kind", "content", "message"), NO_SIGNATURES.values(), ids=NO_SIGNATURES)
def test_invalid_signature_is_refused(tmp_path: Path, kind: str, content: bytes, message: str) -> None:
    repository = Repository(tmp_path / "rules").write("rules.cedar", "// nothing\n")
    repository.commit()
    begin, end = (f"-----{word} {kind} SIGNATURE-----".encode() for word in ("BEGIN", "END"))
    with pytest.raises(signatures.SignatureError, match=message):
        who(with_signature(raw(repository), b"\n".join((begin, content, end))), trusted(tmp_path))


def test_sha1_signature_is_refused(repository: Repository, tmp_path: Path) -> None:
    repository.commit()
    commit, key = raw(repository), rsa.generate_private_key(65537, 3072)
    line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    public = base64.b64decode(line.split()[1])

    def strings(*parts: bytes) -> bytes:
        return b"".join(len(part).to_bytes(4, "big") + part for part in parts)

    def armoured(kind: bytes, algorithm: hashes.HashAlgorithm) -> bytes:
        message = b"SSHSIG" + strings(b"git", b"", b"sha512", hashlib.sha512(commit).digest())
        made = key.sign(message, padding.PKCS1v15(), algorithm)
        blob = b"SSHSIG\0\0\0\x01" + strings(public, b"git", b"", b"sha512", strings(kind, made))
        return b"-----BEGIN SSH SIGNATURE-----\n" + base64.b64encode(blob) + b"\n-----END SSH SIGNATURE-----"

    file = trusted(tmp_path, f"me ssh-rsa {base64.b64encode(public).decode()}")
    assert who(with_signature(commit, armoured(b"rsa-sha2-512", hashes.SHA512())), file) == "me"
    with pytest.raises(signatures.SignatureError, match="ssh-rsa"):
        who(with_signature(commit, armoured(b"ssh-rsa", hashes.SHA1())), file)


BOTH = 'namespaces="git",valid-after="20260101",valid-before="20270101"'
VALID = ["", 'namespaces="git"', 'namespaces="file,g*"', 'valid-after="20261122120000Z"', BOTH]
INVALID = ['namespaces="file"', 'valid-after="20261122120001Z"', 'valid-before="202611221200"']


def test_signer_is_valid_for_its_namespaces_and_period(repository: Repository, tmp_path: Path) -> None:
    key = Key(tmp_path)
    key.sign(repository)

    def file(options: str) -> Path:
        line = f'"{key.name}, the desk" {options} {key.public} a comment'
        return trusted(tmp_path, line.replace("  ", " "))

    for options in (*VALID, 'valid-before="20261123Z"'):
        assert who(raw(repository), file(options)) == f"{key.name}, the desk", options
    for options in INVALID:
        with pytest.raises(signatures.SignatureError, match="not valid now, or not valid for git"):
            who(raw(repository), file(options))


WRONG_LINES = [
    ("maya", ":3: its options cannot be read; write PRINCIPALS"),
    ("maya ssh-ed25519", ":3: write PRINCIPALS"),
    ("maya ssh-ed25519 ???", ":3: the key is not base64"),
    ("maya ssh-ed25519 AAAAB3NzaC1yc2E=", ":3: the key is not of the stated kind"),
    ("* cert-authority ssh-ed25519 AAAA", ":3: the option 'cert-authority' is not supported"),
    ('maya valid-after="soon" ssh-ed25519 AAAA', ":3:"),
    ('maya namespaces="git ssh-ed25519 AAAA', ":3: its options cannot be read"),
]


@pytest.mark.parametrize(("line", "message"), WRONG_LINES)
def test_unreadable_line_invalidates_the_whole_file(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(signatures.AllowedSignersError) as refused:
        signatures.read_allowed_signers(trusted(tmp_path, line))
    assert message in str(refused.value)


def test_missing_allowed_signers_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(signatures.AllowedSignersError, match="cannot be read"):
        signatures.read_allowed_signers(tmp_path / "gone")
