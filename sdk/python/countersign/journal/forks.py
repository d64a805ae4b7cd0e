"""Calls what a forked process must do with the connections and locks of its parent."""

from __future__ import annotations

import os
import threading
from typing import Protocol
from weakref import WeakSet


class ForkAware(Protocol):
    """An object with a lock, and with state that must not be shared with a forked child."""

    fork_order: int
    """The lock order: an object that locks another while locked has the smaller number."""

    def before_fork(self) -> None:
        """Before the fork: wait for work in progress and block new work."""
        ...

    def after_fork_in_parent(self) -> None:
        """After the fork, in the parent."""
        ...

    def after_fork_in_child(self) -> None:
        """After the fork, in the child: use and close nothing of the parent's."""
        ...


class _ForkHandlers:
    """Calls every registered object around a fork."""

    def __init__(self) -> None:
        self.known: WeakSet[ForkAware] = WeakSet()
        self._one_at_a_time = threading.Lock()
        self._held: list[ForkAware] = []

    def before(self) -> None:
        self._one_at_a_time.acquire()
        # One lock order for all: a unit that ends a lease holds its database first.
        self._held = sorted(self.known, key=lambda one: one.fork_order)
        for one in self._held:
            one.before_fork()

    def in_parent(self) -> None:
        held, self._held = self._held, []
        for one in held:
            one.after_fork_in_parent()
        self._one_at_a_time.release()

    def in_child(self) -> None:
        self._held = []
        self._one_at_a_time = threading.Lock()
        for one in list(self.known):
            one.after_fork_in_child()


_fork_handlers = _ForkHandlers()
os.register_at_fork(
    before=_fork_handlers.before,
    after_in_parent=_fork_handlers.in_parent,
    after_in_child=_fork_handlers.in_child,
)


def register_fork_aware(one: ForkAware) -> None:
    """Call this object around every fork, as long as it lives."""
    _fork_handlers.known.add(one)
