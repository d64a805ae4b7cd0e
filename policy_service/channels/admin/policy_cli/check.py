"""``policy-service check`` and ``schema``: validate and lint a bundle, and print its Cedar schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from policy_service.channels.admin.output import AsJson, print_result, problem_json, report_errors
from policy_service.channels.admin.policy_cli.bundles import load_bundle_files
from policy_service.facts.schema import approval_schema, schema_text
from policy_service.pap.bundle import build_bundle
from policy_service.pap.compile import bundle_schema
from policy_service.pap.lint.report import lint_files
from policy_service.pap.problems import BundleError

BundleName = Annotated[
    str | None,
    typer.Argument(
        metavar="[BUNDLE]",
        help="Its folder, or FOLDER@REVISION for a commit. Default: the bundle of the settings.",
    ),
]


Strict = Annotated[bool, typer.Option("--strict", help="Exit with status 1 if there is a warning.")]


def check(bundle: BundleName = None, strict: Strict = False, as_json: AsJson = False) -> None:
    """Validate a bundle as the service does, and print errors, warnings and notes."""
    with report_errors():
        try:
            files = load_bundle_files(bundle)
            checked = build_bundle(files)
            findings = lint_files(files.files)
        except BundleError as error:
            problems = [problem_json(problem) for problem in error.problems]
            print_result({"ok": False, "problems": problems}, as_json, str(error))
            raise typer.Exit(1) from None
        checked.close()
        warned = any(finding.level == "warning" for finding in findings)
        listed = [problem_json(finding) for finding in findings]
        done = {
            "ok": not (strict and warned),
            "digest": checked.digest,
            "commit": checked.commit,
            "warnings": [one for one in listed if one["level"] == "warning"],
            "notes": [one for one in listed if one["level"] == "note"],
        }
        counted = f"{len(checked.policies)} policies, {len(checked.manifests)} tools"
        lines = [
            f"{files.origin} is valid: {counted}, digest {checked.digest}, commit {checked.commit}",
            *(f"{finding.level}: {finding} [{finding.code}]" for finding in findings),
        ]
        print_result(done, as_json, "\n".join(lines))
        if strict and warned:
            raise typer.Exit(1)


AsJsonSchema = Annotated[bool, typer.Option("--json", help="Cedar's JSON format instead of its text format.")]
Out = Annotated[Path | None, typer.Option(help="File to write. Default: standard output.")]
People = Annotated[
    bool,
    typer.Option("--people", help="The schema of people's actions (approve, settle) instead of the tools'."),
]


def schema(
    bundle: BundleName = None, people: People = False, as_json: AsJsonSchema = False, out: Out = None
) -> None:
    """Print the Cedar schema of a bundle."""
    with report_errors(as_json):
        prepared = build_bundle(load_bundle_files(bundle))
        prepared.close()
        made: dict[str, Any] = approval_schema() if people else bundle_schema(prepared.source.files)
    text = json.dumps(made, indent=2) + "\n" if as_json else schema_text(made)
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        typer.echo(f"policy-service: {str(out)!r} cannot be written: {error.strerror}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"wrote {out}")
