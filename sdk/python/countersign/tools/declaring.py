"""What a decorator may say of a tool, checked where the tool is declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from countersign.adapters.protocol import LiveAdapter
from countersign.contract.errors import ContractError
from countersign.contract.manifest import require_tool_name
from countersign.errors import RegistrationError
from countersign.tools.signature import Signature, resource_for

Lane = Literal["staged", "live"]

_ADAPTER_VERBS: Final = ("begin", "landed", "recover")
_ENDS: Final = ("transaction", "tool")
_MANY: Final = ("groups", "money", "recipients", "secret")


@dataclass(frozen=True, slots=True)
class Draft:
    """What the code suggests for the manifest; the reviewed manifest decides."""

    resource: tuple[str, str] | None = None
    title: str | None = None
    sentence: str | None = None
    idempotent: bool = False
    on_exhausted: str = "transaction"
    ask: str | None = None
    compensate: str | None = None
    compensation_map: Mapping[str, str] = field(default_factory=dict)
    probe: str | None = None
    groups: tuple[str, ...] = ()
    risk: str = "medium"
    money: tuple[Mapping[str, str], ...] = ()
    recipients: tuple[str, ...] = ()
    secret: tuple[str, ...] = ()
    timeout_seconds: int = 60


def require_sound(name: str, lane: str, adapter: LiveAdapter | None, said: Mapping[str, Any]) -> None:
    """Lane, adapter and what is said of the lane fit each other (W14).

    Raises:
        RegistrationError: they do not.
    """
    try:
        require_tool_name(name)
    except ContractError as error:
        raise RegistrationError(str(error)) from error
    if adapter is not None and not all(callable(getattr(adapter, one, None)) for one in _ADAPTER_VERBS):
        raise RegistrationError(
            f"tool {name!r} says adapter={adapter!r}, which cannot undo: it is no LiveAdapter (`begin`, `landed`, "
            "`recover`); stage the tool, or give it one of countersign.adapters"
        )
    if (lane == "live") != (adapter is not None):
        raise RegistrationError(
            f"tool {name!r}: a live tool needs the adapter that undoes it (adapter=...), a staged tool has none"
        )
    if lane == "live" and said.get("probe") is not None:
        raise RegistrationError(
            f"tool {name!r} is live and says probe={said['probe']!r}; its adapter knows what landed, leave it out"
        )
    ask = said.get("ask")
    if ask is not None and lane != "live":
        raise RegistrationError(
            f"tool {name!r} says ask={ask!r} and is staged: the policy is asked about it at the commit anyway; leave "
            "ask out"
        )


def draft_of(name: str, given: dict[str, Any], signature: Signature) -> Draft:
    """What was said, as a draft of the manifest.

    Raises:
        RegistrationError: something is not known, or cannot be.
    """
    unknown = set(given) - set(Draft.__dataclass_fields__)
    if unknown:
        called = "; the name comes first and bare: @tool(NAME, ...)" if "name" in unknown else ""
        raise RegistrationError(
            f"@tool({name!r}) does not know {', '.join(sorted(unknown))}{called}; it takes "
            f"{', '.join(Draft.__dataclass_fields__)}"
        )
    alone = [key for key in _MANY if isinstance(given.get(key), str)]
    if alone:
        raise RegistrationError(
            f"tool {name!r} says {alone[0]}={given[alone[0]]!r}, a text where there may be several; write "
            f"{alone[0]}=[{given[alone[0]]!r}]"
        )
    ends = given.get("on_exhausted", "transaction")
    if ends not in _ENDS:
        raise RegistrationError(
            f"tool {name!r} says on_exhausted={ends!r}; write 'transaction' or 'tool': what ends when it is known "
            "not to have acted"
        )
    if given.get("ask") not in (None, "live"):
        raise RegistrationError(
            f"tool {name!r} says ask={given['ask']!r}; write ask='live', of a live tool about which the policy is "
            "asked before it runs"
        )
    if given.get("resource") is not None:
        _require_resource(name, given["resource"], signature)
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in given.items()
    }
    return Draft(**fields)


def _require_resource(name: str, given: Any, signature: Signature) -> None:
    """A type and where its id is found: an argument, a pointer into one, or a constant."""
    is_pair = (
        isinstance(given, tuple | list) and len(given) == 2 and all(isinstance(one, str) for one in given)
    )
    if is_pair and (given[1] in signature.names or given[1].startswith(("/", "const:"))):
        return
    takes = ", ".join(signature.parameters) or "no arguments"
    raise RegistrationError(
        f"tool {name!r} says resource={given!r}, which is no type with the argument that names one of them; {name} "
        f"takes {takes}: write resource={resource_for(signature)}"
    )
