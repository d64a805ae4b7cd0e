"""A verification is a numbered list of steps, run in order; the first that refuses ends it.

A step looks at the state and answers None, or the code of its refusal. It may leave what it has proved on the
state for the next one. The tables are data: documents, vectors and the suite that takes each step out read
the same ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from .errors import ContractError, VerificationError

State_contra = TypeVar("State_contra", contravariant=True)
State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Step(Generic[State_contra]):
    """One numbered check: what it is called, why it is there, and the function that makes it."""

    number: int
    name: str
    why: str
    check: Callable[[State_contra], str | None]


def run_steps(steps: Sequence[Step[State]], state: State) -> None:
    """Run every step in order.

    Raises:
        VerificationError: with the number of the step that refused and its code.
    """
    try:
        for step in steps:
            code = step.check(state)
            if code is not None:
                break
        else:
            return
    except ContractError as error:
        raise VerificationError(step.number, error.code, str(error)) from error
    raise VerificationError(step.number, code)
