"""Tools and probes as values: what a decorator makes of a function, and what a probe answers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from countersign.adapters.protocol import LiveAdapter
from countersign.contract.errors import ContractError
from countersign.contract.manifest import ToolManifest, require_tool_name
from countersign.contract.pointers import pointer_to
from countersign.errors import RegistrationError
from countersign.tools.declaration import Draft, FailureMeans, Lane
from countersign.tools.signature import Signature

GIVEN_MANIFEST: Final = "__countersign_manifest__"
"""Where the function of an MCP server's tool holds the draft that was made of the listing."""


@dataclass(frozen=True, eq=False)
class Tool:
    """One registered tool. `fn` is the function itself, which only a commit may call."""

    name: str
    fn: Callable[..., Any]
    signature: Signature
    lane: Lane
    adapter: LiveAdapter | None
    repeat: bool  # every call is intended, equal ones too
    failure_means: FailureMeans
    manifest_path: Path | None
    draft: Draft
    own_thread: bool = True  # a plain function runs in a thread of its own, so that its timeout ends the wait
    tries: int | None = None  # at most, where its manifest says idempotent; None: as the settings say

    @property
    def is_async(self) -> bool:
        """Whether its function must be awaited."""
        return inspect.iscoroutinefunction(self.fn)

    @property
    def given_manifest(self) -> ToolManifest | None:
        """The draft of an MCP server's tool, which is there only while a program is connected to the server."""
        given: ToolManifest | None = getattr(self.fn, GIVEN_MANIFEST, None)
        return given

    @property
    def secret(self) -> tuple[str, ...]:
        """Pointers to the arguments that the code calls secret."""
        return tuple(one if one.startswith("/") else pointer_to(one) for one in self.draft.secret)

    def draft_manifest(self) -> ToolManifest:
        """The manifest as the code suggests it, for people to review.

        Raises:
            RegistrationError: the declaration lacks something, or contradicts itself.
        """
        from countersign.manifests.drafts import draft_manifest

        return draft_manifest(self)


@dataclass(frozen=True, slots=True)
class Happened:
    """It has happened. `result` is what the tool would have returned; None where that is not known."""

    result: object = None


@dataclass(frozen=True, slots=True)
class DidNotHappen:
    """It has not happened until now. `final`: nor will it, whatever is still on its way; say so only where the service
    itself does (it refused the call, or takes this key no more). Otherwise it counts once nothing can be on its way.
    """

    final: bool = False


@dataclass(frozen=True, slots=True)
class Unsure:
    """Nobody can tell now."""

    why: str = ""


ProbeAnswer = Happened | DidNotHappen | Unsure
"""What a probe answers; anything else counts as unsure."""


@dataclass(frozen=True, eq=False)
class Probe:
    """One registered probe."""

    name: str
    fn: Callable[..., Any]
    signature: Signature

    @classmethod
    def of(cls, fn: Callable[..., Any], name: str) -> Probe:
        """A probe of that name.

        Raises:
            RegistrationError: the name is malformed, or an argument has no name.
        """
        try:
            require_tool_name(name)
        except ContractError as error:
            raise RegistrationError(str(error)) from error
        return cls(name, fn, Signature(fn, name))

    def strange(self, tool: Signature) -> list[str]:
        """What it takes and the tool does not, or may leave out: nobody could hand that over."""
        must = self.signature.names - self.signature.optional
        return sorted((self.signature.names - tool.names) | (must & tool.optional))
