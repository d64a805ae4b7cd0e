"""``policy-service check``: is this bundle valid, and what about it looks wrong?"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from policy_service.channels.operator.author.naming import bundle_named
from policy_service.channels.operator.speaking import AsJson, say, sentences
from policy_service.pap.bundle import prepare_bundle
from policy_service.pap.problems import BundleError, Problem

BundleName = Annotated[
    str | None,
    typer.Argument(metavar="[BUNDLE]", help="The bundle's folder; without one that of the settings."),
]


def check(bundle: BundleName = None, as_json: AsJson = False) -> None:
    """Load and validate a bundle as the service would, and say what is wrong with it."""
    with sentences():
        try:
            files = bundle_named(bundle)
            checked = prepare_bundle(files)
        except BundleError as error:
            problems = [_told(problem) for problem in error.problems]
            say({"ok": False, "problems": problems}, as_json, str(error))
            raise typer.Exit(1) from None
        warnings = [_told(problem) for problem in checked.warnings]
        done = {"ok": True, "digest": checked.digest, "commit": checked.commit, "warnings": warnings}
        counted = f"{len(checked.policies)} policies, {len(checked.manifests)} tools"
        lines = [
            f"{files.origin} is valid: {counted}, digest {checked.digest}, commit {checked.commit}",
            *(f"warning: {problem}" for problem in checked.warnings),
        ]
        say(done, as_json, "\n".join(lines))


def _told(problem: Problem) -> dict[str, Any]:
    return {"file": problem.file, "line": problem.line, "message": problem.message}
