"""A tool as a class: `execute` does it, `compensate` takes it back.

    @tool("charge", resource=("Order", "order_id"))
    class Charge:
        def execute(self, order_id: str, amount_cents: int) -> dict[str, str]: ...
        def compensate(self, order_id: str, result: dict[str, str]) -> None: ...

The compensation is a tool of its own, `charge.compensate`: reviewed, asked for and released as one. It may take the
forward call's arguments by their names, and what that returned as `result`; where each comes from stands in the
manifest, for people to read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from countersign.errors import RegistrationError
from countersign.signature import Signature

EXECUTE: Final = "execute"
COMPENSATE: Final = "compensate"
_RESULT: Final = "result"


def methods_of(cls: type, name: str) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
    """`execute` and `compensate` of one instance.

    Raises:
        RegistrationError: it has no `execute`, or needs arguments to be made.
    """
    if not callable(getattr(cls, EXECUTE, None)):
        raise RegistrationError(
            f"tool {name!r} is the class {cls.__name__} without a method `execute`; write `def execute(self, ...)`"
        )
    try:
        one = cls()
    except TypeError as error:
        raise RegistrationError(
            f"tool {name!r}: {cls.__name__} cannot be made without arguments ({error}); a tool finds what it works "
            "with by itself, or by the ids it is called with"
        ) from error
    return getattr(one, EXECUTE), getattr(one, COMPENSATE, None)


def compensation_name(name: str) -> str:
    """What the compensation of a class is called."""
    return f"{name}.{COMPENSATE}"


def compensation_map(forward: Signature, back: Signature) -> dict[str, str]:
    """Where each argument of a compensation comes from, as manifests write it.

    Raises:
        RegistrationError: naming one that comes from nowhere.
    """
    mapping = {}
    for argument in back.parameters:
        if argument == _RESULT:
            mapping[argument] = "result:"
        elif argument in forward.names:
            mapping[argument] = f"args:/{argument}"
        else:
            raise RegistrationError(
                f"{back.tool!r} takes {argument!r}, which is neither an argument of {forward.tool!r} nor `result`; "
                "name it like one of those"
            )
    return mapping


def compensation_draft(back: Signature, given: Mapping[str, Any]) -> dict[str, Any]:
    """What the class says of its compensation: it acts on the same resource.

    Raises:
        RegistrationError: the resource cannot be told from its arguments.
    """
    resource = given.get("resource")
    if resource is None:
        return {}
    if resource[1] in back.names or resource[1].startswith("const:"):
        return {"resource": resource}
    raise RegistrationError(
        f"{back.tool!r} does not say what it acts on: take the argument {resource[1]!r} as well, which names the "
        f"{resource[0]}"
    )


def doc_of(fn: Callable[..., Any]) -> str:
    """What a function says of itself, or the class it is a method of."""
    text = inspect.getdoc(fn)
    if text is None and inspect.ismethod(fn):
        text = inspect.getdoc(type(fn.__self__))
    return text or ""
