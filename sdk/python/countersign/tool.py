"""`@tool`: what an agent may ask for, by name. Calling a tool stages it; only a commit calls the function.

A tool is *staged* unless it says otherwise: its call becomes canonical bytes and returns a placeholder. A
*live* tool has an adapter that can undo it and runs at once. Either refuses to run where no transaction is
watching. The decorated object keeps the function's name, signature and kind (plain or async), so that agent
frameworks can read it.

What policy and people see of a tool is its reviewed manifest, never this declaration: all that the decorator
says about resource, risk, money and the like goes into the draft (`countersign tools export`) for people to
review.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, ParamSpec, Protocol, TypeVar, cast, overload

from countersign.adapters.protocol import LiveAdapter
from countersign.contract.errors import ContractError
from countersign.contract.manifest import ToolManifest, require_tool_name
from countersign.current import current_transaction
from countersign.errors import OutsideTransaction, RegistrationError
from countersign.placeholder import Placeholder
from countersign.registry import ToolRegistry, default_registry
from countersign.signature import Signature, resource_for
from countersign.tool_classes import compensation_draft, compensation_map, compensation_name, methods_of

P = ParamSpec("P")
R = TypeVar("R")
Lane = Literal["staged", "live"]
FailureMeans = Literal["unknown", "not_done"]

_ADAPTER_VERBS: Final = ("begin", "landed", "recover")
_ENDS: Final = ("transaction", "tool")
_ATTRIBUTE: Final = "__countersign_tool__"


@dataclass(frozen=True, slots=True)
class Draft:
    """What the code suggests for the manifest; the reviewed manifest decides."""

    resource: tuple[str, str] | None = None
    title: str | None = None
    sentence: str | None = None
    idempotent: bool = False
    on_exhausted: str = "transaction"
    compensate: str | None = None
    compensation_map: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    risk: str = "medium"
    money: tuple[Mapping[str, str], ...] = ()
    recipients: tuple[str, ...] = ()
    secret: tuple[str, ...] = ()
    timeout_seconds: int = 60


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

    def draft_manifest(self) -> ToolManifest:
        """The manifest as the code suggests it, for people to review.

        Raises:
            RegistrationError: the declaration lacks something, or contradicts itself.
        """
        from countersign.drafting import draft_manifest

        return draft_manifest(self)


class ToolDecorator(Protocol):
    """What `tool(...)` returns for a staged tool."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # the narrower async form comes first on purpose
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, Placeholder[R]]]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Callable[P, Placeholder[R]]: ...


class LiveToolDecorator(Protocol):
    """What `tool(..., lane="live")` returns: the function's type does not change."""

    def __call__(self, fn: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def tool(  # type: ignore[overload-overlap]  # the narrower async form comes first on purpose
    name: Callable[P, Coroutine[Any, Any, R]], /
) -> Callable[P, Coroutine[Any, Any, Placeholder[R]]]: ...
@overload
def tool(name: Callable[P, R], /) -> Callable[P, Placeholder[R]]: ...
@overload
def tool(
    name: str | None = None,
    /,
    *,
    lane: Literal["live"],
    adapter: LiveAdapter,
    manifest: Path | None = None,
    registry: ToolRegistry | None = None,
    **draft: Any,
) -> LiveToolDecorator: ...
@overload
def tool(
    name: str | None = None,
    /,
    *,
    lane: Literal["staged"] = "staged",
    repeat: bool = False,
    failure_means: FailureMeans = "unknown",
    own_thread: bool = True,
    tries: int | None = None,
    manifest: Path | None = None,
    registry: ToolRegistry | None = None,
    **draft: Any,
) -> ToolDecorator: ...
def tool(
    name: Any = None,
    /,
    *,
    lane: Lane = "staged",
    adapter: LiveAdapter | None = None,
    repeat: bool = False,
    failure_means: FailureMeans = "unknown",
    own_thread: bool = True,
    tries: int | None = None,
    manifest: Path | None = None,
    registry: ToolRegistry | None = None,
    **draft: Any,
) -> Any:
    """Register a function as a tool and gate it; or a class with `execute` and perhaps `compensate` (tool_classes.py).

    `repeat`: equal calls in one transaction are each meant. `failure_means`: what an exception of the tool
    says about the world; "not_done" only for a tool that never raises after it may have acted. `own_thread`: a plain
    function is called in a thread of its own, so that its manifest's timeout ends the wait; False for one that is bound
    to the caller's thread and has a timeout itself. `tries`: how often it is called at most, with the same call key, if
    its reviewed manifest says idempotent. `manifest`: the reviewed manifest, if it is not `tools/<name>.json` beside
    the module. `draft`: the fields of `Draft`, for the exported manifest.

    Raises:
        RegistrationError: the name is taken or malformed, a live tool lacks its adapter, an argument has no
        name.
    """
    if callable(name):
        return tool()(cast("Callable[..., Any]", name))

    if tries is not None and tries < 1:
        raise RegistrationError(f"a tool says tries={tries!r}; it is called at least once")

    def make(fn: Callable[..., Any], called: str, said: dict[str, Any]) -> Callable[..., Any]:
        _require_sound(called, lane, adapter)
        signature = Signature(fn, called)
        one = Tool(
            name=called,
            fn=fn,
            signature=signature,
            lane=lane,
            adapter=adapter,
            repeat=repeat,
            failure_means=failure_means,
            manifest_path=manifest,
            draft=_draft(called, said, signature),
            own_thread=own_thread,
            tries=tries,
        )
        (registry or default_registry).add(one)
        return _gate(one)

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        called = name or fn.__name__
        if not inspect.isclass(fn):
            return make(fn, called, draft)
        execute, compensate = methods_of(fn, called)
        if compensate is None:
            return make(execute, called, draft)
        if lane == "live" or draft.get("compensate") is not None:
            other = (
                "its adapter undoes it"
                if lane == "live"
                else f"compensate={draft['compensate']!r} takes it back"
            )
            raise RegistrationError(
                f"tool {called!r} has a method `compensate`, and {other}; keep one of them"
            )
        back = Signature(compensate, compensation_name(called))
        mapping = compensation_map(Signature(execute, called), back)
        make(compensate, back.tool, compensation_draft(back, draft))
        return make(execute, called, draft | {"compensate": back.tool, "compensation_map": mapping})

    return decorate


def tool_of(fn: Callable[..., Any]) -> Tool:
    """The tool behind a decorated function.

    Raises:
        RegistrationError: the function is not decorated with `@tool`.
    """
    found = getattr(fn, _ATTRIBUTE, None)
    if not isinstance(found, Tool):
        raise RegistrationError(f"{fn!r} is not a tool; decorate it with @tool")
    return found


def _gate(one: Tool) -> Callable[..., Any]:
    """The function callers get: it stages (or runs live) in the transaction that is watching, or refuses."""
    if one.is_async:

        @functools.wraps(one.fn)
        async def gated_async(*args: Any, **kwargs: Any) -> Any:
            answer = _watching(one).accept(one, args, kwargs)
            return await answer if inspect.isawaitable(answer) else answer

        gated: Callable[..., Any] = gated_async
    else:

        @functools.wraps(one.fn)
        def gated_plain(*args: Any, **kwargs: Any) -> Any:
            return _watching(one).accept(one, args, kwargs)

        gated = gated_plain
    setattr(gated, _ATTRIBUTE, one)
    return gated


def _watching(one: Tool) -> Any:
    txn = current_transaction.get()
    if txn is None:
        raise OutsideTransaction(
            f"{one.name} was called outside a transaction, where nobody would be asked and nothing recorded; call it "
            "inside `with transaction(...)` (a new thread starts outside)"
        )
    return txn


def _require_sound(name: str, lane: str, adapter: LiveAdapter | None) -> None:
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


def _draft(name: str, given: dict[str, Any], signature: Signature) -> Draft:
    unknown = set(given) - set(Draft.__dataclass_fields__)
    if unknown:
        called = "; the name comes first and bare: @tool(NAME, ...)" if "name" in unknown else ""
        raise RegistrationError(
            f"@tool({name!r}) does not know {', '.join(sorted(unknown))}{called}; it takes "
            f"{', '.join(Draft.__dataclass_fields__)}"
        )
    ends = given.get("on_exhausted", "transaction")
    if ends not in _ENDS:
        raise RegistrationError(
            f"tool {name!r} says on_exhausted={ends!r}; write 'transaction' or 'tool': what ends when it is known "
            "not to have acted"
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
