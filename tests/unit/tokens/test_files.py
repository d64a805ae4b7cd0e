"""A secret is written once, for its owner alone, or it is refused with the command that mends it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from policy_service.errors import StartError
from policy_service.tokens.files import create_secret, make_secret_folder, read_secret


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_secret_folder(tmp_path / "keys")
    return tmp_path / "keys"


def test_a_secret_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_secret_folder(tmp_path / "a" / "keys")
        create_secret(tmp_path / "a" / "keys" / "x", b"secret")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a" / "keys").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "a" / "keys" / "x").stat().st_mode) == 0o600
    assert read_secret(tmp_path / "a" / "keys" / "x") == b"secret"


def test_a_secret_is_never_overwritten(folder: Path) -> None:
    create_secret(folder / "x", b"first")
    with pytest.raises(FileExistsError):
        create_secret(folder / "x", b"second")
    assert read_secret(folder / "x") == b"first"


def test_a_secret_is_not_written_through_a_link(folder: Path, tmp_path: Path) -> None:
    (folder / "x").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        create_secret(folder / "x", b"secret")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610, 0o601, 0o602, 0o777])
def test_a_secret_others_can_reach_is_refused_with_the_command(folder: Path, mode: int) -> None:
    """K4."""
    create_secret(folder / "x", b"secret")
    (folder / "x").chmod(mode)
    with pytest.raises(StartError, match=f"chmod 600 {folder / 'x'}"):
        read_secret(folder / "x")


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_secret_only_its_owner_can_reach_is_read(folder: Path, mode: int) -> None:
    create_secret(folder / "x", b"secret")
    (folder / "x").chmod(mode)
    assert read_secret(folder / "x") == b"secret"


def test_somebody_elses_secret_is_refused_with_the_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_secret(folder / "x", b"secret")
    me = os.geteuid()
    monkeypatch.setattr("policy_service.tokens.files.os.geteuid", lambda: me + 1)
    with pytest.raises(StartError, match=f"chown {me + 1} {folder / 'x'}"):
        read_secret(folder / "x")


def test_a_missing_secret_names_the_command_that_makes_it(folder: Path) -> None:
    with pytest.raises(StartError, match="policy-service init"):
        read_secret(folder / "x")


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_what_is_no_plain_file_is_refused(folder: Path, kind: str) -> None:
    create_secret(folder / "real", b"secret")
    if kind == "link":
        (folder / "x").symlink_to(folder / "real")
    elif kind == "folder":
        (folder / "x").mkdir()
    else:
        os.mkfifo(folder / "x", 0o600)
    with pytest.raises(StartError, match="plain file"):
        read_secret(folder / "x")


def test_no_refusal_quotes_the_secret(folder: Path) -> None:
    create_secret(folder / "x", b"canary")
    (folder / "x").chmod(0o644)
    with pytest.raises(StartError) as caught:
        read_secret(folder / "x")
    assert "canary" not in str(caught.value)
