"""The script's tools, and their manifests in the bundle.

The script is imported by the SDK's own command in a process of its own: what it does on the way is not ours. Rules: a
manifest that people have touched is never written; one that is still as it was drafted follows the code; a tool that
cannot be described keeps everything as it is.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from countersign.contract import ContractError, load_manifest, manifest_file
from policy_service.channels.operator.dev import programs
from policy_service.channels.operator.dev.folder import DevFolder

_SECONDS = 60.0  # to import a script with everything it imports, on a busy machine


class ToolsError(Exception):
    """The script's tools are not to be had; the text says what to write instead."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What the code declares: the draft of every tool's manifest, what a tool names and nothing defines, and the files
    that were imported for it.
    """

    drafts: Mapping[str, str]
    reads: frozenset[str]
    files: tuple[Path, ...]
    missing: tuple[str, ...] = ()


async def read_tools(script: Path, env: Mapping[str, str]) -> Tools:
    """Import the script and ask what its tools are.

    Raises:
        ToolsError: it cannot be imported, has no tools, or one of them cannot be described.
    """
    words = ("-m", "countersign.cli", "tools", "list", "--tools", str(script), "--json")
    try:
        code, out, err = await programs.read(words, env, seconds=_SECONDS)
    except TimeoutError:
        raise ToolsError(
            f"importing {script.name} took longer than {_SECONDS:.0f} s and was ended; put what it does below "
            '`if __name__ == "__main__":`'
        ) from None
    if code != 0:
        told = err.replace(f"{script.parent}{os.sep}", "").strip().splitlines()
        raise ToolsError(
            told[-1].removeprefix("misuse: ") if told else f"its import ended with status {code}"
        )
    told = json.loads(out)
    if problems := [tool["problem"] for tool in told["tools"] if tool["problem"]]:
        raise ToolsError("\n".join(problems))
    return Tools(
        {tool["tool"]: tool["draft"] for tool in told["tools"]},
        frozenset(tool["tool"] for tool in told["tools"] if tool["kind"] == "read"),
        tuple(Path(file) for file in told["files"]),
        tuple(f"{tool['tool']}: {lacking}" for tool in told["tools"] for lacking in tool.get("missing", ())),
    )


def merge(folder: DevFolder, tools: Tools) -> list[str]:
    """Bring the bundle's manifests up to the code, and say what was done or is to be done."""
    said = [line for name, draft in tools.drafts.items() for line in _merge_one(folder, tools, name, draft)]
    return [*said, *tools.missing, *_gone(folder, tools)]


def _merge_one(folder: DevFolder, tools: Tools, name: str, draft: str) -> Iterator[str]:
    file = manifest_file(name)
    place, seen = folder.bundle / "tools" / file, folder.drafts / file
    before = seen.read_text() if seen.exists() else None
    now = place.read_text() if place.exists() else None
    kind = "a read" if name in tools.reads else "a write"
    if now is None:
        place.write_text(draft)
        yield f"drafted {folder.shown(place)} ({kind}); read it before you rely on it: it is what people will approve"
    elif now == before != draft:
        place.write_text(draft)
        yield f"{folder.shown(place)} follows the code again ({kind})"
    elif before not in {None, draft} and not _same(now, draft):
        yield f"{folder.shown(place)} was edited by you and is left alone, but its tool has changed:"
        yield from _diff(before or "", draft)
        yield f"change it the same way, or delete it and save {folder.script.name}: then it is drafted anew"
    seen.write_text(draft)


def _same(one: str, other: str) -> bool:
    try:
        return load_manifest(one.encode()).digest == load_manifest(other.encode()).digest
    except ContractError:
        return False


def _diff(before: str, after: str) -> Iterator[str]:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=1, lineterm="")
    return (f"    {line}" for line in lines if not line.startswith(("---", "+++", "@@")))


def _gone(folder: DevFolder, tools: Tools) -> Iterator[str]:
    """Drafts of tools this script once had and has no longer, each told once."""
    files = {manifest_file(name) for name in tools.drafts}
    for seen in sorted(folder.drafts.glob("*.json")):
        place = folder.bundle / "tools" / seen.name
        if seen.name in files:
            continue
        if place.exists():
            yield f"{folder.shown(place)}: {folder.script.name} has no such tool any more; delete it if nobody has"
        seen.unlink()
