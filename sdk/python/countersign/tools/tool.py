"""`@tool`: registers a function that agents may call by name. Calling a tool stages it; only a commit runs the
function.

A tool is *staged* by default: its call becomes canonical bytes and returns a placeholder. A *live* tool has an adapter
that can undo it and runs at once. Both refuse to run outside a transaction. The decorated object keeps the function's
name, signature and kind (plain or async), so that agent frameworks can read it.

Policy and people see the tool's reviewed manifest, never this declaration. What the decorator says about resource,
risk, money and so on goes into the draft (`countersign tools export`) for review.

Within one transaction equal calls are the same call, unless `repeat` is set. The call key counts intended repeats with
`n`, so the second of two equal refunds is a separate call in every rerun.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, cast, overload

from countersign.adapters.protocol import LiveAdapter
from countersign.adapters.reads import READS
from countersign.contract.manifest import READ_GROUP
from countersign.errors import RegistrationError
from countersign.tools.class_tools import compensation_of, methods_of, probe_of
from countersign.tools.context import (
    TOOL_ATTRIBUTE,
    gate,
)
from countersign.tools.declaration import (
    FailureMeans,
    Lane,
    build_draft,
    require_valid_calls,
    require_valid_lane,
)
from countersign.tools.definition import Probe, Tool
from countersign.tools.registry import ToolRegistry, default_registry
from countersign.tools.results import Placeholder
from countersign.tools.signature import Signature

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class _Class(Protocol[P, R_co]):
    """A tool declared as a class."""

    def execute(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class ToolDecorator(Protocol):
    """The decorator that `tool(...)` returns for a staged tool. Type checkers that ignore what a decorator makes of a
    class (mypy) understand `book_seat = tool("book_seat")(BookSeat)`.
    """

    @overload
    def __call__(  # type: ignore[overload-overlap]  # as below, and a class is a callable as well
        self, fn: type[_Class[P, Coroutine[Any, Any, R]]], /
    ) -> Callable[P, Coroutine[Any, Any, Placeholder[R]]]: ...
    @overload
    def __call__(self, fn: type[_Class[P, R]], /) -> Callable[P, Placeholder[R]]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]  # the narrower async form comes first on purpose
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, Placeholder[R]]]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Callable[P, Placeholder[R]]: ...


class LiveToolDecorator(Protocol):
    """The decorator that `tool(..., lane="live")` returns; the function's type does not change."""

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
    adapter: LiveAdapter | None = None,
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
    """Register a function as a tool and gate it; or a class with `execute` and optionally `compensate` and `probe`
    (class_tools.py).

    Staged tools. `repeat`: equal calls in one transaction are separate calls. `failure_means`: what an exception of the
    tool implies; use "not_done" only for a tool that never raises after it may have acted. `own_thread`: a plain
    function runs in a thread of its own, so that its manifest's timeout can end the wait; False for one that is bound
    to the caller's thread and has a timeout itself. `tries`: the maximum number of calls with the same call key, if its
    reviewed manifest says idempotent; at most 20. Of a class it counts `execute`.

    A live tool needs the `adapter` that undoes it; a tool of the group `read` needs none, if its reviewed manifest has
    that group.

    `manifest`: the reviewed manifest, if it is not `tools/<name>.json` next to the module. `draft`: the fields of
    `Draft`, for the exported manifest.

    Raises:
        RegistrationError: the name is in use or malformed, a live tool lacks its adapter, an argument has no name.
    """
    if callable(name):
        return tool()(cast("Callable[..., Any]", name))

    calling = {"repeat": repeat, "failure_means": failure_means, "own_thread": own_thread, "tries": tries}

    if lane == "live" and adapter is None and READ_GROUP in (draft.get("groups") or ()):
        adapter = READS

    def made(fn: Callable[..., Any], called: str, options: dict[str, Any]) -> Tool:
        require_valid_lane(called, lane, adapter, options | calling)
        require_valid_calls(called, calling)
        signature = Signature(fn, called)
        # a live tool's result is used by its own run, and a replay reports a type that the record lacks
        if lane == "staged":
            signature.result.require_unambiguous()
        return Tool(
            name=called,
            fn=fn,
            signature=signature,
            lane=lane,
            adapter=adapter,
            manifest_path=manifest,
            draft=build_draft(called, options, signature),
            repeat=repeat,
            failure_means=failure_means,
            own_thread=own_thread,
            tries=tries,
        )

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        called, written = name or fn.__name__, fn
        companions: list[Tool | Probe] = []
        options = dict(draft)
        if inspect.isclass(fn):
            methods = methods_of(fn, called)
            fn = methods.execute
            if methods.probe is not None:
                companions.append(probe_of(methods.probe, called, options, fn))
            if methods.compensate is not None:
                undo, back, given = compensation_of(methods.compensate, fn, called, options, lane)
                # `tries` counts calls of `execute`: that `execute` may be repeated says nothing about `compensate`
                companions.append(replace(made(undo, back, given), tries=None))
        one = made(fn, called, options)
        (registry or default_registry).add(one, *companions)
        gated = gate(one)
        gated.__name__, gated.__qualname__ = (
            written.__name__,
            written.__qualname__,
        )  # of a class, not of its method
        return gated

    return decorate


def probe(
    name: str | None = None, /, *, registry: ToolRegistry | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register a function as the probe of that name, or of its own; the function stays as it is.

    It is called with those arguments of the unknown call that it names, typed as the probe declares, and
    `current_effect().call_key` is that call's. It returns `Happened(result)`, `DidNotHappen()` or `Unsure(why)` within
    the tool's timeout; a plain function runs in a thread of its own. Any exception means unsure, even `NotDone`.

    Raises:
        RegistrationError: the name is in use or malformed, or an argument has no name.
    """
    if name is not None and not isinstance(name, str):
        raise RegistrationError(
            f"@probe takes the name that tools call it by: write @probe({_name_of(name)!r})"
        )

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        (registry or default_registry).add(Probe.of(fn, name or _name_of(fn)))
        return fn

    return decorate


def _name_of(fn: object) -> str:
    return str(getattr(fn, "__name__", "find_it"))


def tool_of(fn: Callable[..., Any]) -> Tool:
    """The tool behind a decorated function.

    Raises:
        RegistrationError: the function is not decorated with `@tool`.
    """
    found = getattr(fn, TOOL_ATTRIBUTE, None)
    if not isinstance(found, Tool):
        raise RegistrationError(f"{fn!r} is not a tool; decorate it with @tool")
    return found
