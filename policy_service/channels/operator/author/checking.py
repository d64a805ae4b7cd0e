"""``policy-service check``: is this bundle valid, and what about it looks wrong?"""

from __future__ import annotations

from typing import Annotated

import typer

from policy_service.channels.operator.author.naming import bundle_named
from policy_service.channels.operator.speaking import AsJson, problem_told, say, sentences
from policy_service.pap.bundle import prepare_bundle
from policy_service.pap.lint.run import findings_about
from policy_service.pap.problems import BundleError

BundleName = Annotated[
    str | None,
    typer.Argument(
        metavar="[BUNDLE]",
        help="Its folder, or FOLDER@REVISION for a commit of it; without one that of the settings.",
    ),
]


Strict = Annotated[bool, typer.Option("--strict", help="End with status 1 when anything is a warning.")]


def check(bundle: BundleName = None, strict: Strict = False, as_json: AsJson = False) -> None:
    """Load and validate a bundle as the service would, and say what is wrong with it or looks wrong."""
    with sentences():
        try:
            files = bundle_named(bundle)
            checked = prepare_bundle(files)
            findings = findings_about(files.files)
        except BundleError as error:
            problems = [problem_told(problem) for problem in error.problems]
            say({"ok": False, "problems": problems}, as_json, str(error))
            raise typer.Exit(1) from None
        checked.close()
        warned = any(finding.level == "warning" for finding in findings)
        told = [problem_told(finding) for finding in findings]
        done = {
            "ok": not (strict and warned),
            "digest": checked.digest,
            "commit": checked.commit,
            "warnings": [one for one in told if one["level"] == "warning"],
            "notes": [one for one in told if one["level"] == "note"],
        }
        counted = f"{len(checked.policies)} policies, {len(checked.manifests)} tools"
        lines = [
            f"{files.origin} is valid: {counted}, digest {checked.digest}, commit {checked.commit}",
            *(f"{finding.level}: {finding} [{finding.code}]" for finding in findings),
        ]
        say(done, as_json, "\n".join(lines))
        if strict and warned:
            raise typer.Exit(1)
