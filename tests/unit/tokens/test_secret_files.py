"""Secret files: written once for the owner only, or refused with the command that fixes it."""

import os
import stat
from pathlib import Path

import pytest

from policy_service.errors import StartError
from policy_service.tokens.secret_files import create_secret, make_secret_folder, read_secret


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    make_secret_folder(tmp_path / "keys")
    create_secret(tmp_path / "keys/x", b"canary")
    return tmp_path / "keys/x"


def test_a_secret_has_mode_0600_for_every_umask(tmp_path: Path) -> None:
    folder, before = tmp_path / "a/keys", os.umask(0)
    try:
        make_secret_folder(folder)
        create_secret(folder / "x", b"secret")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "x")] == [0o700, 0o600]
    assert read_secret(folder / "x") == b"secret"


def test_a_secret_is_never_overwritten_nor_written_through_a_link(secret: Path, tmp_path: Path) -> None:
    link = secret.with_name("link")
    link.symlink_to(tmp_path / "elsewhere")
    for path in (secret, link):
        with pytest.raises(FileExistsError):
            create_secret(path, b"second")
    assert read_secret(secret) == b"canary"
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610, 0o601, 0o602, 0o777])
def test_a_secret_others_can_reach_is_refused_and_not_quoted(secret: Path, mode: int) -> None:
    """K4."""
    secret.chmod(mode)
    with pytest.raises(StartError, match=f"chmod 600 {secret}") as caught:
        read_secret(secret)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_secret_only_its_owner_can_reach_is_read(secret: Path, mode: int) -> None:
    secret.chmod(mode)
    assert read_secret(secret) == b"canary"


def test_a_missing_or_foreign_secret_is_refused(secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StartError, match="policy-service init"):
        read_secret(secret.with_name("none"))
    other = os.geteuid() + 1
    monkeypatch.setattr("policy_service.tokens.secret_files.os.geteuid", lambda: other)
    with pytest.raises(StartError, match=f"chown {other} {secret}"):
        read_secret(secret)


def test_what_is_no_plain_file_is_refused(secret: Path) -> None:
    link, folder, pipe = (secret.with_name(name) for name in ("link", "folder", "pipe"))
    link.symlink_to(secret)
    folder.mkdir()
    os.mkfifo(pipe, 0o600)
    for odd in (link, folder, pipe):
        with pytest.raises(StartError, match="plain file"):
            read_secret(odd)
