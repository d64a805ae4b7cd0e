"""`countersign tools export`: writes draft manifests to files, separate from reviewed ones.

A draft goes into `drafts/` next to its module, which the SDK never reads. Nothing is ever written into a folder called
`tools` (it holds reviewed manifests, in a bundle and next to code) nor over the file a tool declares as its manifest,
even with `force`. An existing draft, perhaps half edited, is kept without `force`. Nothing is written at all if any
draft cannot be.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from countersign.contract.manifest import ToolManifest, manifest_file
from countersign.errors import MisuseError, RegistrationError
from countersign.manifests.drafts import manifest_json
from countersign.manifests.reviewed import MANIFEST_FOLDER, manifest_path
from countersign.tools.definition import Tool

DRAFT_FOLDER: Final = "drafts"


@dataclass(frozen=True, slots=True)
class ExportedDraft:
    """One draft. `written` is false if an earlier draft was kept."""

    tool: str
    path: Path
    written: bool


def export_drafts(
    tools: Iterable[Tool], out: Path | None = None, *, force: bool = False
) -> list[ExportedDraft]:
    """Write the draft of every tool to `out`, else to `drafts/` next to the module that defines it.

    Raises:
        MisuseError: the file would replace a reviewed manifest, or no folder is known.
        RegistrationError: tools have no valid manifest; each of them is named.
    """
    planned: list[tuple[str, Path, bytes]] = []
    unsound: list[str] = []
    for one in tools:
        try:
            planned.append((one.name, _draft_path(one, out), manifest_json(one.draft_manifest())))
        except RegistrationError as error:
            unsound.append(str(error))
    if unsound:
        raise RegistrationError("; ".join(unsound))
    return [_write(name, path, raw, force=force) for name, path, raw in planned]


def export_manifests(
    drafts: Iterable[ToolManifest], out: Path | None = None, *, force: bool = False
) -> list[ExportedDraft]:
    """Write drafts that do not come from code to `out`, else to `drafts/` in the working directory.

    Raises:
        MisuseError: a file would replace a reviewed manifest.
    """
    folder = Path(DRAFT_FOLDER) if out is None else out
    planned = [(one, folder / manifest_file(one.tool)) for one in drafts]
    for _, path in planned:
        _require_no_reviewed_place(path, None)
    return [_write(one.tool, path, manifest_json(one), force=force) for one, path in planned]


def _draft_path(tool: Tool, out: Path | None) -> Path:
    path = (_module_folder(tool) if out is None else out) / manifest_file(tool.name)
    _require_no_reviewed_place(path, manifest_path(tool))
    return path


def _require_no_reviewed_place(path: Path, reviewed: Path | None) -> None:
    resolved = path.resolve()  # a link into the reviewed folder counts as that folder
    if resolved.parent.name == MANIFEST_FOLDER or (reviewed and resolved == reviewed.resolve()):
        raise MisuseError(
            f"{str(path)!r} is reserved for a reviewed manifest, and this is an unreviewed draft; omit --out, or "
            f"name another folder than {MANIFEST_FOLDER!r}"
        )


def _module_folder(tool: Tool) -> Path:
    source = inspect.getsourcefile(inspect.unwrap(tool.fn))
    if source is None:
        raise MisuseError(f"tool {tool.name!r} has no source file; name a folder with --out")
    return Path(source).resolve().parent / DRAFT_FOLDER


def _write(name: str, path: Path, raw: bytes, *, force: bool) -> ExportedDraft:
    if path.exists() and not force:
        return ExportedDraft(name, path, written=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return ExportedDraft(name, path, written=True)
