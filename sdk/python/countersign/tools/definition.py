"""Values for registered tools and probes, and the answers of probes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
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
"""The attribute with the draft manifest of an MCP server's tool."""


@dataclass(frozen=True, eq=False)
class Tool:
    """One registered tool. `fn` is the function itself, which only a commit may call."""

    name: str
    fn: Callable[..., Any]
    signature: Signature
    lane: Lane
    adapter: LiveAdapter | None
    repeat: bool  # equal calls are separate calls
    failure_means: FailureMeans
    manifest_path: Path | None
    draft: Draft
    own_thread: bool = (
        True  # a plain function runs in a thread of its own, so that its timeout can end the wait
    )
    tries: int | None = (
        None  # maximum number of calls if its manifest says idempotent; None: the setting applies
    )

    is_async: bool = field(init=False)
    """Whether its function must be awaited."""
    given_manifest: ToolManifest | None = field(init=False)
    """The draft of an MCP server's tool, which exists only while a program is connected to the server."""
    secret: tuple[str, ...] = field(init=False)
    """Pointers to the arguments that the code declares secret."""

    def __post_init__(self) -> None:
        secret = (one if one.startswith("/") else pointer_to(one) for one in self.draft.secret)
        object.__setattr__(self, "is_async", inspect.iscoroutinefunction(self.fn))
        object.__setattr__(self, "given_manifest", getattr(self.fn, GIVEN_MANIFEST, None))
        object.__setattr__(self, "secret", tuple(secret))

    def draft_manifest(self) -> ToolManifest:
        """The manifest as the code suggests it, for people to review.

        Raises:
            RegistrationError: the declaration is incomplete or contradictory.
        """
        from countersign.manifests.drafts import draft_manifest

        return draft_manifest(self)


@dataclass(frozen=True, slots=True)
class Happened:
    """It has happened. `result` is what the tool would have returned, or None if that is not known."""

    result: object = None


@dataclass(frozen=True, slots=True)
class DidNotHappen:
    """It has not happened so far. `final`: it never will, even if a request is still in flight; use it only if the
    service itself guarantees that (it refused the call, or no longer accepts this key). Otherwise the answer counts
    once nothing can be in flight.
    """

    final: bool = False


@dataclass(frozen=True, slots=True)
class Unsure:
    """It cannot be determined now."""

    why: str = ""


ProbeAnswer = Happened | DidNotHappen | Unsure
"""What a probe returns; anything else counts as unsure."""


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
        """The arguments the probe takes and the tool lacks or may leave out."""
        must = self.signature.names - self.signature.optional
        return sorted((self.signature.names - tool.names) | (must & tool.optional))
