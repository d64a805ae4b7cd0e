"""Where the reviewed description of a tool comes from: the file beside the code, else the service, else the
draft.

Whatever was read is kept in the journal by digest, so that a parked transaction can be compared with the tool
that would fire it. The draft is the last resort: the service denies what nobody reviewed and says how to
change that. A manifest that does not fit the code (other name, lane or arguments) is refused here, before
anything is sent.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Final

from countersign.client import Service
from countersign.contract.errors import ContractError
from countersign.contract.manifest import ToolManifest, load_manifest, manifest_file
from countersign.drafting import draft_manifest
from countersign.errors import RegistrationError, ServiceRefused

if TYPE_CHECKING:
    from countersign.journal import Journal
    from countersign.tool import Tool

MANIFEST_FOLDER: Final = (
    "tools"  # holds reviewed manifests and nothing else; drafts lie elsewhere (exporting.py)
)
_MAX_MANIFEST_BYTES: Final = 256 * 1024  # the contract's own limit of one admitted document


class Manifests:
    """The manifests of one process. Files and the service are asked once."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._settled: dict[str, ToolManifest] = {}

    def at_hand(self, tool: Tool) -> ToolManifest | None:
        """What is known without asking anybody: used for early refusals while staging.

        Raises:
            RegistrationError: the file beside the code is not a manifest, or is another tool's.
        """
        if tool.name not in self._settled:
            read = _read_file(tool)
            if read is None:
                return None
            self._settle(tool, read)
        return self._settled[tool.name]

    async def of(self, tool: Tool, service: Service) -> ToolManifest:
        """The manifest to submit with.

        Raises:
            RegistrationError: it does not fit the code.
            ServiceUnavailable: nobody could be asked.
        """
        known = self.at_hand(tool)
        if known is None:
            known = await self._ask(tool, service)
            self._settle(tool, known)
        return known

    def forget(self, name: str) -> None:
        """Ask again next time: the service said that this manifest has changed."""
        self._settled.pop(name, None)

    async def _ask(self, tool: Tool, service: Service) -> ToolManifest:
        try:
            return await service.manifest(tool.name)
        except ServiceRefused as refused:
            if refused.status != 404:
                raise
            return draft_manifest(tool)

    def _settle(self, tool: Tool, manifest: ToolManifest) -> None:
        require_fits(tool, manifest)
        self._journal.manifests.keep(manifest)
        self._settled[tool.name] = manifest


def manifest_path(tool: Tool) -> Path | None:
    """Where the reviewed manifest of a tool lies: as declared, else `tools/<name>.json` beside its module."""
    if tool.manifest_path is not None:
        return tool.manifest_path
    source = inspect.getsourcefile(inspect.unwrap(tool.fn))
    return (
        None if source is None else Path(source).resolve().parent / MANIFEST_FOLDER / manifest_file(tool.name)
    )


def require_fits(tool: Tool, manifest: ToolManifest) -> None:
    """Refuse a manifest that describes something else than this function.

    Raises:
        RegistrationError: saying which of the two to change.
    """
    if manifest.tool != tool.name:
        raise RegistrationError(
            f"the manifest of tool {tool.name!r} is that of {manifest.tool!r}; fix its name"
        )
    if manifest.lane != tool.lane:
        raise RegistrationError(
            f"tool {tool.name!r} is {tool.lane} in code and {manifest.lane} in its reviewed manifest; make them agree"
        )
    if tool.tries is not None and tool.tries > 1 and not manifest.idempotent:
        raise RegistrationError(
            f"tool {tool.name!r} says tries={tool.tries}, and its reviewed manifest does not call it idempotent, so a "
            "second call could be a second effect: leave tries out, or have `idempotent` reviewed"
        )
    if manifest.properties != tool.signature.names:
        differing = ", ".join(sorted(manifest.properties ^ tool.signature.names))
        raise RegistrationError(
            f"tool {tool.name!r} and its reviewed manifest name different arguments ({differing}); draft it again "
            "(`countersign tools export --tools MODULE`) and have that reviewed, or take the change of the code back"
        )


def _read_file(tool: Tool) -> ToolManifest | None:
    path = manifest_path(tool)
    if path is None or (tool.manifest_path is None and not path.is_file()):
        return None
    try:
        with path.open("rb") as file:
            return load_manifest(file.read(_MAX_MANIFEST_BYTES + 1))
    except (OSError, ContractError) as error:
        raise RegistrationError(f"the manifest file {str(path)!r} of tool {tool.name!r}: {error}") from error
