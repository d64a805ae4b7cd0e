"""A fork never happens in the middle of a unit: what other threads have locked is waited for, then the child begins
anew.

A lock that another thread held at the fork would stay locked in the child for ever, with nobody to open it.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol
from weakref import WeakSet


class Forks(Protocol):
    """Something with a lock and with what must not be shared with a child."""

    fork_order: int
    """Those that lock others while they are locked have the smaller number."""

    def hold(self) -> None:
        """Wait until nobody is in the middle of anything, and keep it so."""
        ...

    def let_go(self) -> None:
        """The fork is over, this is the parent."""
        ...

    def begin_anew(self) -> None:
        """The fork is over, this is the child: nothing of the parent's is used or closed."""
        ...


class _Forking:
    """All of them, at one fork after another."""

    def __init__(self) -> None:
        self.known: WeakSet[Forks] = WeakSet()
        self._one_at_a_time = threading.Lock()
        self._held: list[Forks] = []

    def before(self) -> None:
        self._one_at_a_time.acquire()
        # One order for all, the one in which they lock each other: a unit that ends a lease holds its database first.
        self._held = sorted(self.known, key=lambda one: one.fork_order)
        for one in self._held:
            one.hold()

    def in_parent(self) -> None:
        held, self._held = self._held, []
        for one in held:
            one.let_go()
        self._one_at_a_time.release()

    def in_child(self) -> None:
        self._held = []
        self._one_at_a_time = threading.Lock()
        for one in list(self.known):
            one.begin_anew()


_forking = _Forking()
os.register_at_fork(
    before=_forking.before, after_in_parent=_forking.in_parent, after_in_child=_forking.in_child
)


def mind_forks(one: Forks) -> None:
    """Hold it at every fork from now on, as long as it lives."""
    _forking.known.add(one)
