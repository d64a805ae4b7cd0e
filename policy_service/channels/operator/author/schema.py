"""``policy-service schema``: the Cedar schema the service generates for a bundle, for editors and other engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from policy_service.channels.operator.author.checking import BundleName
from policy_service.channels.operator.author.naming import bundle_named
from policy_service.channels.operator.speaking import sentences
from policy_service.facts.schema import approval_schema, schema_text
from policy_service.pap.bundle import prepare_bundle
from policy_service.pap.compile import bundle_schema

AsJsonSchema = Annotated[bool, typer.Option("--json", help="Cedar's JSON form instead of its human syntax.")]
Out = Annotated[Path | None, typer.Option(help="File to write; else it is printed.")]
People = Annotated[
    bool,
    typer.Option("--people", help="The schema of what people do (approve, settle) instead of the tools'."),
]


def schema(
    bundle: BundleName = None, people: People = False, as_json: AsJsonSchema = False, out: Out = None
) -> None:
    """Write the schema that every rule of a bundle is validated against."""
    with sentences(as_json):
        prepared = prepare_bundle(bundle_named(bundle))
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
