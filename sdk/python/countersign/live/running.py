"""Live effects while they run: which of them a savepoint takes back, when one raises.

An effect that raises leaves nothing of itself on its adapter (adapters/protocol.py), nor of the effects that it had
called there. What it had called on other adapters stands: it is not in that savepoint.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from countersign.errors import SavepointLost, SessionLost
from countersign.journal import Staged

Undone = Callable[[Sequence[Staged], BaseException], None]
Returned = Callable[[Any], None]

_running: ContextVar[Running | None] = ContextVar("countersign_running_live_effect", default=None)

ALL_LOST: Final = (SavepointLost, SessionLost)
"""Nobody knows what stands, so nothing is noted before all of it is undone."""


class Running:
    """One live effect, from where it is written down; `adapter` is the name of its adapter."""

    def __init__(self, row: Staged, adapter: str) -> None:
        self.row, self.adapter = row, adapter
        self._inside: list[Running] = []
        outer = _running.get()
        if outer is not None:
            outer._inside.append(self)

    def run(self, act: Callable[[], Any], undone: Undone, returned: Returned, *, awaited: bool) -> Any:
        """Run it; `returned` hears what it answers. If it raises, `undone` hears which effects nothing stands of, and
        why.
        """
        if awaited:
            return self._run_awaited(act, undone, returned)
        with self._noted(undone):
            answer = act()
        returned(answer)
        return answer

    async def _run_awaited(self, act: Callable[[], Any], undone: Undone, returned: Returned) -> Any:
        with self._noted(undone):
            answer = act()
            if inspect.isawaitable(answer):  # a replay answers without the world
                answer = await answer
        returned(answer)
        return answer

    @contextmanager
    def _noted(self, undone: Undone) -> Iterator[None]:
        token = _running.set(self)
        try:
            yield
        except ALL_LOST:
            raise
        except BaseException as error:
            undone([*self._on(self.adapter)], error)
            raise
        finally:
            _running.reset(token)

    def _on(self, adapter: str) -> Iterator[Staged]:
        """Itself and what it has called, as far as that is on one adapter."""
        if self.adapter == adapter:
            yield self.row
        for one in self._inside:
            yield from one._on(adapter)
