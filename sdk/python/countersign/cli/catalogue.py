"""`countersign tools catalogue` and `countersign tools take`: ready manifests of common services.

A manifest that is taken is a proposal like any draft: it goes to stdout, or into a folder separate from reviewed ones.
Further information (its compensation, the function to write, what the manifest guarantees) goes to stderr, so that the
output can be redirected.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from countersign.catalogue import entry, search_entries, uncompensated_acts, with_compensations
from countersign.cli.terminal import JsonOption, print_json, report_errors
from countersign.contract.manifest import ToolManifest
from countersign.errors import MisuseError
from countersign.journal.export import escape_unprintable
from countersign.manifests.drafts import manifest_json
from countersign.manifests.export import export_manifests

_TYPES: Final = {"string": "str", "integer": "int", "boolean": "bool"}
_REVIEW: Final = (
    "These are proposals and count for nothing yet. Next: change names, limits, risk and groups to yours, review them "
    "like code, put them into tools/ of your policies' bundle, and write a permit for each action."
)


def show_catalogue(
    word: Annotated[
        str, typer.Argument(help="Only those with this word in name, title, groups or examples.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """List ready manifests of common services, and acts without a compensation."""
    found = search_entries(word)
    acts = [one for one in uncompensated_acts() if not word or one.tool in {each.tool for each in found}]
    if as_json:
        print_json(
            {
                "format": "countersign/catalogue/v1",
                "manifests": [one.to_json() for one in found],
                "no_compensation": [
                    {
                        "act": one.act,
                        "tool": one.tool,
                        "why": one.why,
                        "instead": list(one.instead),
                        "do": one.do,
                    }
                    for one in acts
                ],
            }
        )
        return
    if not found:
        typer.echo(
            f"none of them has the word {escape_unprintable(word)!r}; `countersign tools catalogue` lists them all"
        )
    for one in found:  # lines, because a table would truncate the names that are to be copied
        nothing = one.uncompensated is not None
        taken_back = "no compensation" if nothing else f"compensated by {one.compensated_by}"
        typer.echo(f"{one.tool:<30}{one.manifest.risk.value:<8}{one.manifest.title}; {taken_back}")
    for act in acts:
        typer.echo(f"no compensation: to {act.act}. {act.why} Instead: {act.do}")


def take(
    tools: Annotated[list[str], typer.Argument(help="Names as `countersign tools catalogue` lists them.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Write them, and their compensations, to this folder of drafts; else print one."),
    ] = None,
    named: Annotated[
        str | None, typer.Option("--as", help="Your own name for the one that is taken.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Replace drafts that are there already.")] = False,
) -> None:
    """Take ready manifests as a starting point."""
    tools = list(dict.fromkeys(tools))  # without duplicates: advice is by position of a name
    with report_errors():
        if out is None and len(tools) > 1:
            raise MisuseError("several manifests are not one document: name a folder with --out")
        if named is not None and len(tools) > 1:
            raise MisuseError(f"--as {named!r} names one manifest, and {len(tools)} are taken")
        chosen = [_renamed(one, tools[0], named) for one in with_compensations(tools)]
        if out is None:
            typer.echo(manifest_json(chosen[0]).decode(), nl=False)
        else:
            for written in export_manifests(chosen, out, force=force):
                kept = "" if written.written else "kept as it was, --force replaces it: "
                typer.echo(f"{written.tool}: {kept}{written.path}", err=True)
        for line in _report_taken(tools, chosen, printed=out is None):
            typer.echo(line, err=True)


def _renamed(one: ToolManifest, requested: str, named: str | None) -> ToolManifest:
    """The manifest under your name, with its references to and from compensations."""
    if named is None:
        return one
    rule, changes = one.compensation, dict[str, Any]()
    if one.tool == requested:
        changes["tool"] = named
    if rule is not None and rule.tool == requested:
        changes["compensation"] = rule.model_copy(update={"tool": named}).model_dump()
    return ToolManifest.model_validate(one.model_dump() | changes)


def _report_taken(requested: list[str], chosen: list[ToolManifest], *, printed: bool) -> Iterator[str]:
    others = [one.tool for one in chosen[1:]]
    if printed and others:
        yield (
            f"take {', '.join(others)} as well, or the bundle does not load: they compensate it (--out takes "
            "them too)"
        )
    for name, manifest in zip(requested, chosen, strict=False):
        one = entry(name)
        yield f"the function to write: {_signature(manifest)}"
        if one.idempotent_because is not None:
            yield f"it says `idempotent`: {one.idempotent_because}. Leave it out if your tool is not"
        if one.compensation_leaves is not None:
            yield f"after compensation, this remains: {one.compensation_leaves}"
        if one.uncompensated is not None:
            yield f"no compensation. {one.uncompensated.why} Instead: {one.uncompensated.do}"
        yield from (f"see {source}" for source in one.sources)
    yield _REVIEW


def _signature(manifest: ToolManifest) -> str:
    properties = manifest.args["properties"]
    if not isinstance(properties, dict):
        raise AssertionError("a manifest's args are one object with properties")
    args = ", ".join(f"{name}: {_annotation(schema)}" for name, schema in properties.items())
    lane = ', lane="live", adapter=...' if manifest.lane.value == "live" else ""
    return f'@tool("{manifest.tool}"{lane}) def {manifest.tool.rpartition(".")[2]}({args})'


def _annotation(schema: Any) -> str:
    if schema.get("type") == "array":
        return f"list[{_annotation(schema['items'])}]"
    return _TYPES[schema["type"]]
