"""A step that is registered under a name, and one call of it with its arguments (transactions/registered_steps.py)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from countersign.errors import MisuseError
from countersign.tools.signature import Signature

STEP_ATTRIBUTE: Final = "__countersign_step__"
"""The attribute of a registered function with its `RegisteredStep`."""


@dataclass(frozen=True, eq=False, slots=True)
class RegisteredStep:
    """A registered step. `signature`: of its arguments after the transaction; `secret`: pointers into them. `run_again`
    runs it for recovery (transactions/registered_steps.py, which recovery does not import).
    """

    name: str
    fn: Callable[..., Any]
    signature: Signature
    secret: tuple[str, ...]
    run_again: Callable[..., Coroutine[Any, Any, None]]
    failed: dict[str, str] = field(default_factory=dict)
    """The transactions for which it failed in this process, each with the reason."""

    def bound_to(self, raw: bytes) -> Callable[..., Any]:
        """The function with recorded arguments.

        Raises:
            NotStageable: it does not take them any more.
        """
        return functools.partial(self.fn, **self.signature.retype(raw))


@dataclass(frozen=True, slots=True)
class StepCall:
    """A registered step with its arguments as canonical bytes."""

    step: RegisteredStep
    args: bytes


def step_call(fn: Callable[..., Any]) -> StepCall | None:
    """What `run_transaction` was given, if it is a registered step.

    Raises:
        MisuseError: an argument is not bound by name.
        NotStageable: the arguments do not fit, or cannot be written as JSON.
    """
    inner: Any = fn
    bound: dict[str, Any] = {}
    while isinstance(inner, functools.partial):
        if inner.args and getattr(inner.func, STEP_ATTRIBUTE, None) is not None:
            raise MisuseError(
                f"bind the arguments of a registered step by name: partial({_name(inner.func)}, order_id=...)"
            )
        inner, bound = inner.func, {**inner.keywords, **bound}
    found = getattr(inner, STEP_ATTRIBUTE, None)
    if not isinstance(found, RegisteredStep):
        return None
    return StepCall(found, found.signature.freeze((), bound))


def _name(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__name__", "step"))
