"""`@probe`: a function that finds out whether a call of a tool has happened, and fires nothing.

    @probe("find_refund")
    def find_refund(payment_id: str) -> ProbeAnswer:
        found = bank.refund_by_key(current_effect().call_key)
        return DidNotHappen() if found is None else Happened(found.id)

The tool names it (`@tool("refund", probe="find_refund")` drafts it), people review the name with the manifest, and only
the SDK asks it, for an unknown outcome (commit/reconciliation.py). A probe is no tool: it is never staged or released,
and has no manifest of its own. It may take arguments of the tool by their names. In a tool that is a class it is the
method `probe`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from countersign.contract.errors import ContractError
from countersign.contract.manifest import require_tool_name
from countersign.errors import RegistrationError
from countersign.tools.registry import ToolRegistry, default_registry
from countersign.tools.signature import Signature

P = ParamSpec("P")
R = TypeVar("R")


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


def probe(
    name: str | None = None, /, *, registry: ToolRegistry | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register a function as the probe of that name, or of its own; the function stays as it is.

    It is called with the arguments of the call in doubt that it names, typed as the probe says, and
    `current_effect().call_key` is that call's. It answers `Happened(result)`, `DidNotHappen()` or `Unsure(why)`, within
    the tool's timeout; a plain function in a thread of its own. What it raises means unsure, `NotDone` too.

    Raises:
        RegistrationError: the name is taken or malformed, or an argument has no name.
    """
    if name is not None and not isinstance(name, str):
        raise RegistrationError(f"@probe takes the name that tools call it by: write @probe({_name(name)!r})")

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        (registry or default_registry).add(Probe.of(fn, name or _name(fn)))
        return fn

    return decorate


def _name(fn: object) -> str:
    return str(getattr(fn, "__name__", "find_it"))
