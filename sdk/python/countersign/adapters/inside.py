"""What the tools of an adapter work on: it is there inside a live effect, and over with it.

Threads and tasks that an effect starts have its context, and keep it when it has ended or raised. So what stands in the
context is a turn, one for each effect: once that is over whoever still has it is refused, also while another effect
runs. A turn does not end in the middle of a use.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Generic, TypeVar

from countersign.errors import OutsideTransaction

T = TypeVar("T")


class _Turn(Generic[T]):
    def __init__(self, subject: T) -> None:
        self.subject, self.over, self.used = subject, False, threading.RLock()


class Inside(Generic[T]):
    """Of one adapter: what its tools work on at this place of the program, if anything."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._turn: ContextVar[_Turn[T] | None] = ContextVar(f"countersign_{name}", default=None)

    @contextmanager
    def effect(self, subject: T) -> Iterator[None]:
        """Inside, tools work on it. Whatever has to happen as the effect ends happens after this."""
        turn = _Turn(subject)
        token = self._turn.set(turn)
        try:
            yield
        finally:
            turn.over = True
            with turn.used:  # whoever is in the middle of it ends first
                self._turn.reset(token)

    @contextmanager
    def use(self, otherwise: str) -> Iterator[T]:
        """What the effect works on that runs here. It does not end meanwhile.

        Raises:
            OutsideTransaction: none runs, in the words of `otherwise`; or this is what one has left behind.
        """
        turn = self._turn.get()
        if turn is None:
            raise OutsideTransaction(otherwise)
        with turn.used:
            if turn.over:
                raise OutsideTransaction(
                    f"{self._name} was used by a thread or task that a live effect has started and that goes on after "
                    "it; wait for it inside that effect"
                )
            yield turn.subject

    @property
    def is_over(self) -> bool:
        """Whether this place belongs to an effect that has ended."""
        turn = self._turn.get()
        return turn is not None and turn.over

    def held(self) -> AbstractContextManager[object]:
        """Inside, the effect that this place belongs to does not end; if it belongs to one."""
        turn = self._turn.get()
        return nullcontext() if turn is None else turn.used
