"""Tools declared as a class: `execute` acts, `compensate` undoes it, `probe` finds out whether it happened.

    @tool("charge", resource=("Order", "order_id"))
    class Charge:
        def execute(self, order_id: str, amount_cents: int) -> dict[str, str]: ...
        def compensate(self, order_id: str, result: dict[str, str]) -> None: ...
        def probe(self, order_id: str) -> ProbeAnswer: ...

The compensation is a tool of its own, `charge.compensate`: reviewed, decided and released like any other. It may take
the forward call's arguments by name, and the forward result as `result`; the manifest records where each comes from. If
it leaves out the argument that names the resource, the manifest still lists it and the method is called without it. The
probe is `charge.probe` (tool.py).
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from countersign.errors import RegistrationError
from countersign.tools.declaration import Lane, first_argument, require_resource
from countersign.tools.definition import Probe
from countersign.tools.signature import Signature

EXECUTE: Final = "execute"
COMPENSATE: Final = "compensate"
PROBE: Final = "probe"
_RESULT: Final = "result"


@dataclass(frozen=True, slots=True)
class Methods:
    """The methods of one instance of the class."""

    execute: Callable[..., Any]
    compensate: Callable[..., Any] | None
    probe: Callable[..., Any] | None


def methods_of(cls: type, name: str) -> Methods:
    """The methods of a new instance. An exception of its `__init__` reaches the author unchanged.

    Raises:
        RegistrationError: it has no `execute`, or needs arguments to be made.
    """
    if not callable(getattr(cls, EXECUTE, None)):
        raise RegistrationError(
            f"tool {name!r} is the class {cls.__name__} without a method `execute`; write `def execute(self, ...)`"
        )
    _require_no_arguments(cls, name)
    one = cls()
    return Methods(getattr(one, EXECUTE), getattr(one, COMPENSATE, None), getattr(one, PROBE, None))


def _require_no_arguments(cls: type, name: str) -> None:
    try:
        inspect.signature(cls).bind()
    except TypeError as error:
        raise RegistrationError(
            f"tool {name!r}: {cls.__name__} cannot be created without arguments ({error}); a tool finds what it "
            "works with by itself, or by the ids it is called with"
        ) from error
    except ValueError:  # a class without a signature Python can read
        return


def _compensation_name(name: str) -> str:
    return f"{name}.{COMPENSATE}"


def _probe_name(name: str) -> str:
    return f"{name}.{PROBE}"


def _compensation_map(forward: Signature, back: Signature, given: Mapping[str, str]) -> dict[str, str]:
    """The source of each compensation argument, in the manifest's notation: as given, or by name.

    Raises:
        RegistrationError: an argument has no source, or a source names no argument.
    """
    strange = [name for name in given if name not in back.names]
    if strange:
        raise RegistrationError(
            f"compensation_map of {forward.tool!r} says where {strange[0]!r} comes from, which is no argument of "
            f"{back.tool!r}; it takes {', '.join(back.parameters) or 'none'}"
        )
    mapping = {}
    for argument in back.parameters:
        if argument in given:
            mapping[argument] = given[argument]
        elif argument == _RESULT:
            mapping[argument] = "result:"
        elif argument in forward.names:
            mapping[argument] = f"args:/{argument}"
        else:
            raise RegistrationError(
                f"{back.tool!r} takes {argument!r}, which is neither an argument of {forward.tool!r} nor `result`; "
                f"name it like one of those, or say where it comes from: compensation_map={{{argument!r}: "
                "'result:/id'}"
            )
    return mapping


def _with_forward_argument(
    compensate: Callable[..., Any], execute: Callable[..., Any], argument: str
) -> Callable[..., Any]:
    """Wrap the compensation with one more argument of the forward call, which policy and people see and the method does
    not need.
    """
    theirs = inspect.signature(execute).parameters[argument]
    more = theirs.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=inspect.Parameter.empty)
    signature = inspect.signature(compensate)

    @functools.wraps(compensate)
    def plain(**kwargs: Any) -> Any:
        return compensate(**{name: value for name, value in kwargs.items() if name != argument})

    @functools.wraps(compensate)
    async def awaited(**kwargs: Any) -> Any:
        return await plain(**kwargs)

    fn = awaited if inspect.iscoroutinefunction(compensate) else plain
    fn.__annotations__ = typing.get_type_hints(compensate, include_extras=True) | {
        argument: typing.get_type_hints(execute, include_extras=True).get(argument, Any)
    }
    fn.__signature__ = signature.replace(parameters=[*signature.parameters.values(), more])  # type: ignore[union-attr]
    return fn


def tool_docstring(fn: Callable[..., Any]) -> str:
    """The docstring of a function, or of the class it is a method of; a compensation does not inherit its class's."""
    text = inspect.getdoc(fn)
    if text is None and inspect.ismethod(fn) and fn.__name__ != COMPENSATE:
        text = inspect.getdoc(type(fn.__self__))
    return text or ""


def compensation_of(
    compensate: Callable[..., Any],
    execute: Callable[..., Any],
    called: str,
    options: dict[str, Any],
    lane: Lane,
) -> tuple[Callable[..., Any], str, dict[str, Any]]:
    """A class's compensation as a function, its name, and its options. Updates the forward tool's `options`.

    Raises:
        RegistrationError: the tool is compensated in another way already.
    """
    if lane == "live" or options.get("compensate") is not None:
        other = (
            "its adapter undoes it"
            if lane == "live"
            else f"compensate={options['compensate']!r} takes it back"
        )
        raise RegistrationError(f"tool {called!r} has a method `compensate`, and {other}; keep one of them")
    forward = Signature(execute, called)
    back = Signature(compensate, _compensation_name(called))
    given: dict[str, Any] = {}
    if (resource := options.get("resource")) is not None:
        require_resource(called, resource, forward)
        given["resource"] = resource  # it acts on the same resource
        names_it = first_argument(resource[1])
        if names_it not in back.names and not resource[1].startswith("const:"):
            compensate = _with_forward_argument(compensate, execute, names_it)
            back = Signature(compensate, back.tool)
    mapping = _compensation_map(forward, back, options.get("compensation_map") or {})
    if inspect.getdoc(compensate) is None:
        done = options.get("title") or tool_docstring(execute).partition("\n")[0].rstrip(".") or called
        given["title"] = f"Take back: {done}"
    options |= {"compensate": back.tool, "compensation_map": mapping}
    return compensate, back.tool, given


def probe_of(
    fn: Callable[..., Any], called: str, options: dict[str, Any], execute: Callable[..., Any]
) -> Probe:
    """The probe of a class; the tool's `options` name it.

    Raises:
        RegistrationError: it takes arguments that the tool lacks, or another probe is named.
    """
    if options.get("probe") is not None:
        raise RegistrationError(
            f"tool {called!r} has a method `probe`, and says probe={options['probe']!r}; keep one of them"
        )
    one = Probe.of(fn, _probe_name(called))
    if strange := one.strange(Signature(execute, called)):
        raise RegistrationError(
            f"{one.name!r} takes {strange[0]!r}, which is no argument of {called!r} that is always there; name it like "
            "one of those"
        )
    options["probe"] = one.name
    return one
