"""``policy-service new``: create a starter bundle with cases and a CI workflow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from policy_service.channels.admin.output import AsJson, print_result, report_errors
from policy_service.errors import StartError

STARTER: Final = (
    "README.md",
    "rules.cedar",
    "groups.toml",
    "facts.toml",
    "facts/customers.json",
    "tools/read_history.json",
    "tools/send_message.json",
    "cases/rules.yaml",
    ".github/workflows/policies.yml",
)
"""The files of the starter bundle. Their templates are in ``starter/``, where `.github` has no dot."""

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder to write to: new or empty.")]
_TEMPLATES: Final = Path(__file__).with_name("starter")
_OF_GIT = {".git"}  # allowed in a new repository


def new(folder: Folder, as_json: AsJson = False) -> None:
    """Write a starter bundle: policies, tools, groups, facts, cases and a CI workflow."""
    with report_errors():
        _require_empty(folder)
        try:
            for name in STARTER:
                file = folder / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes((_TEMPLATES / name.removeprefix(".")).read_bytes())
        except OSError as error:
            raise StartError(
                f"{str(error.filename)!r} cannot be written: {error.strerror}; name another folder"
            ) from error
        done = f"wrote {len(STARTER)} files into {folder}; now `policy-service test --mutate {folder}`"
        print_result({"ok": True, "folder": str(folder), "files": list(STARTER)}, as_json, done)


def _require_empty(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise StartError(f"{str(folder)!r} is a file; name a new or empty folder")
    try:
        there = sorted(path.name for path in folder.iterdir() if path.name not in _OF_GIT)
    except OSError as error:
        raise StartError(f"{str(folder)!r} cannot be read: {error.strerror}; name another folder") from error
    if there:
        raise StartError(
            f"{str(folder)!r} is not empty: it contains {there[0]!r}; name a new or empty folder"
        )
