"""Finds the reviewed manifest of a tool: the file next to the code, else the service, else the draft.

Every manifest that was read is kept in the journal by digest, so that a parked transaction can be compared with the
tool that would fire it. The draft is the last resort: the service denies unreviewed tools and says how to change that.
A manifest that does not fit the code (other name, lane or arguments) is refused here, before anything is sent.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from countersign.contract.errors import ContractError
from countersign.contract.manifest import ToolManifest, load_manifest, manifest_file
from countersign.errors import RegistrationError, ServiceRefused, ServiceUnavailable
from countersign.manifests.drafts import draft_manifest
from countersign.service.client import Service

if TYPE_CHECKING:
    from countersign.clock import Clock
    from countersign.journal import Journal
    from countersign.tools.definition import Tool

MANIFEST_FOLDER: Final = "tools"  # reviewed manifests only; drafts are elsewhere (export.py)
_MAX_MANIFEST_BYTES: Final = 256 * 1024  # the contract's limit for one admitted document
_LIVE_FRESH_SECONDS: Final = 60  # how long a lookup of a live tool's manifest is valid


def secret_pointers(tool: Tool, manifest: ToolManifest) -> tuple[str, ...]:
    """Pointers to the args that the reviewed manifest or the code declares secret."""
    return (*manifest.secret, *tool.secret)


@dataclass(frozen=True, slots=True)
class _LiveLookup:
    """The service's manifest of a live tool, None if it has none, and when it was looked up (steady clock)."""

    manifest: ToolManifest | None
    at: float


class Manifests:
    """The manifests of one process. Files and the service are read once."""

    def __init__(self, journal: Journal, known: Manifests | None = None) -> None:
        """`known`: another instance in the same process, whose lookups of live tools are shared."""
        self._journal = journal
        self._settled: dict[str, ToolManifest] = {}
        self._live: dict[str, _LiveLookup] = {} if known is None else known._live
        self._secret_live: dict[str, tuple[str, ...]] = {} if known is None else known._secret_live

    def local_manifest(self, tool: Tool) -> ToolManifest | None:
        """The manifest if it is known locally: used for early refusals while staging.

        Raises:
            RegistrationError: the file next to the code is not a manifest, or is another tool's.
        """
        if tool.name not in self._settled:
            read = _read_file(tool)
            if read is None:
                return None
            self._settle(tool, read)
        return self._settled[tool.name]

    async def of(self, tool: Tool, service: Service, *, once: bool = False) -> ToolManifest:
        """The manifest to submit with. `once`: do not retry an unavailable service.

        Raises:
            RegistrationError: it does not fit the code.
            ServiceUnavailable: the service cannot be reached.
        """
        known = self.local_manifest(tool)
        if known is None:
            known = await self._ask(tool, service, once)
            self._settle(tool, known)
        return known

    async def live_policy_manifest(self, tool: Tool, service: Service, clock: Clock) -> ToolManifest | None:
        """The manifest with which to evaluate each live effect of a tool; None if the policy is not evaluated.

        Live effects are not submitted, so nothing else would show that reviewers want them evaluated: the service's
        manifest is looked up once a minute. A reviewed file that says so itself needs no lookup. If the service cannot
        be reached, its last response counts, else that file.

        Raises:
            RegistrationError: it does not fit the code.
            ServiceUnavailable: it is not known whether the policy must be evaluated.
        """
        local = self.local_manifest(tool)
        if local is not None and local.evaluates_live:
            return local
        known = self._live.get(tool.name)
        if known is None or clock.monotonic() - known.at >= _LIVE_FRESH_SECONDS:
            try:
                reviewed = await self._reviewed(tool, service)
            except ServiceUnavailable:
                if known is None and local is None:
                    raise
                reviewed = local if known is None else known.manifest
            known = self._live[tool.name] = _LiveLookup(reviewed, clock.monotonic())
            self._secret_live[tool.name] = () if reviewed is None else reviewed.secret
        found = known.manifest or local
        if tool.draft.ask == "live":
            return found or draft_manifest(tool)
        return found if found is not None and found.evaluates_live else None

    def reviewed_live_manifest(self, tool: Tool) -> ToolManifest | None:
        """The reviewed manifest of a live tool after a lookup: the service's, or the file next to the code."""
        looked = self._live.get(tool.name)
        return (None if looked is None else looked.manifest) or self.local_manifest(tool)

    def staged_secret_pointers(self, tool: Tool) -> tuple[str, ...] | None:
        """Pointers to the secret args of a staged call, if its reviewed manifest is known locally; else None.

        Raises:
            RegistrationError: the file next to the code is not a manifest, or is another tool's.
        """
        known = self.local_manifest(tool)
        return None if known is None else secret_pointers(tool, known)

    def live_secret_pointers(self, tool: Tool) -> tuple[str, ...]:
        """Pointers to the secret args of a live call: those of its code, of the file next to it, and of the service's
        manifest at the last lookup, which is just before each call runs.

        Raises:
            RegistrationError: the file next to the code is not a manifest, or is another tool's.
        """
        local = self.local_manifest(tool)
        said = (
            *tool.secret,
            *(() if local is None else local.secret),
            *self._secret_live.get(tool.name, ()),
        )
        return tuple(dict.fromkeys(said))

    async def _reviewed(self, tool: Tool, service: Service) -> ToolManifest | None:
        try:
            manifest = await service.manifest(tool.name)
        except ServiceRefused as refused:
            if not refused.is_not_found:
                raise
            return None
        require_fits(tool, manifest)
        return manifest

    def forget(self, name: str) -> None:
        """Read it again next time: the service reported a changed manifest. Its secret pointers stay valid until then,
        because a call of another thread may be about to run.
        """
        self._settled.pop(name, None)
        self._live.pop(name, None)

    async def _ask(self, tool: Tool, service: Service, once: bool) -> ToolManifest:
        try:
            return await service.manifest(tool.name, once=once)
        except ServiceRefused as refused:
            if not refused.is_not_found:
                raise
            # An unreviewed draft guarantees nothing: the service knows of no compensation, and shows people none.
            return draft_manifest(tool).model_copy(update={"compensation": None})

    def _settle(self, tool: Tool, manifest: ToolManifest) -> None:
        require_fits(tool, manifest)
        self._journal.manifests.keep(manifest)
        self._settled[tool.name] = manifest


def manifest_path(tool: Tool) -> Path | None:
    """The path of a tool's reviewed manifest: as declared, else `tools/<name>.json` next to its module."""
    if tool.manifest_path is not None:
        return tool.manifest_path
    source = inspect.getsourcefile(inspect.unwrap(tool.fn))
    return (
        None if source is None else Path(source).resolve().parent / MANIFEST_FOLDER / manifest_file(tool.name)
    )


def require_fits(tool: Tool, manifest: ToolManifest) -> None:
    """Refuse a manifest that describes another function.

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
