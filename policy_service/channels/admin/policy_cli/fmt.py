"""``policy-service fmt``: format the policy files of a bundle."""

from __future__ import annotations

import difflib
import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from policy_service.channels.admin.output import AsJson, print_result, report_errors
from policy_service.channels.admin.policy_cli.bundles import load_bundle_files
from policy_service.channels.admin.policy_cli.check import BundleName
from policy_service.pap.problems import BundleError, Problem
from policy_service.pap.scan import format_file

Check = Annotated[
    bool,
    typer.Option("--check", help="Write nothing; print the changes and exit with status 1 if there are any."),
]


def fmt(bundle: BundleName = None, check: Check = False, as_json: AsJson = False) -> None:
    """Format every policy file of a bundle. Policies keep their meaning, and comments are kept."""
    with report_errors(as_json):
        source = load_bundle_files(bundle)
        if source.folder is None:
            raise BundleError(
                [Problem(source.origin, None, "is not a folder, so nothing can be written there")]
            )
        changed: dict[str, tuple[str, str]] = {}
        left: list[Problem] = []
        problems: list[Problem] = []
        files = {name: raw for name, raw in source.files.items() if name.endswith(".cedar")}
        for name, raw in files.items():
            try:
                done = format_file(name, raw)
            except BundleError as error:
                problems += error.problems
                continue
            left += done.left
            if done.text.encode() != raw:
                changed[name] = raw.decode(), done.text
        if problems:
            raise BundleError(problems)
        if not check:
            for name, (_, after) in changed.items():
                _replace(source.folder / name, after)
    result = {
        "ok": not (check and changed),
        "changed": list(changed),
        "unchanged": [name for name in files if name not in changed],
        "left": [{"file": one.file, "line": one.line, "message": one.message} for one in left],
        "diff": {name: _diff(name, *texts) for name, texts in changed.items()} if check else {},
    }
    print_result(result, as_json, "\n".join(_lines(changed, len(files), left, check=check)))
    if check and changed:
        raise typer.Exit(1)


def _lines(changed: dict[str, tuple[str, str]], count: int, left: list[Problem], *, check: bool) -> list[str]:
    lines = [str(one) for one in left]
    if check:
        shown = "\n".join(_diff(name, *texts) for name, texts in changed.items())
        lines += [line.rstrip("\r") for line in shown.split("\n")] if changed else []
    done = "would be formatted" if check else "formatted"
    return [*lines, f"{len(changed)} of {count} policy files {done}"]


def _diff(name: str, before: str, after: str) -> str:
    lines = difflib.unified_diff(
        before.split("\n"), after.split("\n"), f"{name} (current)", f"{name} (formatted)", lineterm=""
    )
    return "\n".join(lines)


def _replace(path: Path, text: str) -> None:
    """Replace a file atomically and keep its permissions."""
    mode = path.stat().st_mode & 0o777
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
        Path(name).chmod(mode)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
