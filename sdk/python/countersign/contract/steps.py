"""Numbered verification steps, run in order; the first refusal ends the verification.

A step inspects the state and returns None, or the code of its refusal. It may store what it has established for the
next steps. The tables are data: documents, test vectors and the suite that removes each step read the same ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from .errors import ContractError, VerificationError

State_contra = TypeVar("State_contra", contravariant=True)
State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Step(Generic[State_contra]):
    """One numbered check: its name, its purpose, and the function that performs it."""

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
