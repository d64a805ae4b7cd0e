"""Load the bundle that a command names (a folder, a commit, or that of the settings), and files of recorded calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from policy_service.errors import InvalidRequestError
from policy_service.pap.bundle import Bundle
from policy_service.pap.diff.recorded_calls import InvalidLine, RecordedCall, drop_unknown_meters, read_calls
from policy_service.pap.problems import BundleError, Problem
from policy_service.pap.source import BundleFiles, FolderSource
from policy_service.settings import Settings, load_settings


def load_bundle_files(name: str | None) -> BundleFiles:
    """The files of a bundle: a folder, or ``FOLDER@REVISION`` for the folder at a commit of its repository; without a
    name, the bundle of the settings.

    Raises:
        BundleError: there is no such bundle, or it contains unexpected files.
        StartError: the settings are invalid.
    """
    if name is None:
        return configured_bundle_files(load_settings())
    if "@" in name and not Path(name).is_dir():
        folder, _, revision = name.rpartition("@")
        return _at_revision(Path(folder or "."), revision)
    return FolderSource(Path(name)).read()


def configured_bundle_files(settings: Settings) -> BundleFiles:
    """The bundle of a deployment on this host: its folder, or the last active commit.

    Raises:
        BundleError: there is none, or it contains unexpected files.
    """
    if not settings.policies_repository:
        return FolderSource(settings.bundle_dir).read()
    from policy_service.pap.git.commits import read_revision  # imports dulwich
    from policy_service.pap.git.git_source import ACTIVE_REF, mirror_path

    return read_revision(mirror_path(settings.data_dir), ACTIVE_REF, settings.policies_subfolder)


def _at_revision(folder: Path, revision: str) -> BundleFiles:
    """A folder at a commit. The folder may no longer exist, so the repository is searched above it."""
    from policy_service.pap.git.commits import read_revision

    here = folder.absolute()
    for above in (here, *here.parents):
        if (above / ".git").exists() or _is_bare_repository(above):
            return read_revision(above, revision, here.relative_to(above).as_posix().removeprefix("."))
    raise BundleError(
        [
            Problem(
                str(folder),
                None,
                f"no git repository contains this folder, so there is no revision {revision!r}",
            )
        ]
    )


def _is_bare_repository(folder: Path) -> bool:
    return (folder / "HEAD").is_file() and (folder / "objects").is_dir() and (folder / "refs").is_dir()


def read_recorded_calls(
    file: Path, bundles: Sequence[Bundle]
) -> tuple[list[RecordedCall], list[InvalidLine]]:
    """The calls of a file for these bundles, and its invalid lines.

    Raises:
        InvalidRequestError: the file cannot be read.
    """
    try:
        with file.open("rb") as lines:
            calls, bad = read_calls(lines)
    except OSError as error:
        raise InvalidRequestError(
            f"{file} cannot be read: {error.strerror}; name a file of JSON lines"
        ) from None
    calls, strange = drop_unknown_meters(calls, bundles)
    return calls, sorted([*bad, *strange], key=lambda each: each.number)


def bad_line_messages(bad: Sequence[InvalidLine]) -> list[str]:
    """One message for each invalid line."""
    return [f"line {each.number} is not a call and was skipped: {each.why}" for each in bad]
